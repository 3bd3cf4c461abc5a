"""What pages and the API show, as values."""
