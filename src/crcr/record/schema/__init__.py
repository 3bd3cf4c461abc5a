"""The tables, defined once for every dialect."""
