"""The grids of pull requests and commits in a browser."""
