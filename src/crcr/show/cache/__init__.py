"""Pages rendered once and served to many readers."""
