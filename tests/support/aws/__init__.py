"""AWS for tests: a server, a table that can be scanned, and made-up history."""
