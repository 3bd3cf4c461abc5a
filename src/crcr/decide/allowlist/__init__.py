"""The allowlist: its entries and options, the problems of a file, and the difference between two versions."""
