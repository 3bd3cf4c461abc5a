"""Rules of the feeds: what of a backend's results is news."""
