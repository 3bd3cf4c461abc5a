"""The one definition of every number on pages and in the API."""
