"""The HTML pages that a demo links to."""
