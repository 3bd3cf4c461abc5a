"""GitHub's REST API as data (requests, responses) and one client that sends it."""
