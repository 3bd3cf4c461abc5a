"""Read models behind pages, API, metrics and command line."""
