"""The API's lists as CSV."""
