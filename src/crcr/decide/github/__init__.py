"""What the relay asks GitHub and what GitHub answers, as values."""
