"""The upstream's own CI: which of its check runs and statuses count, and how they are counted."""
