"""What readers look up: the help page, and the documentation site."""
