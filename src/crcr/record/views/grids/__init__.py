"""The grids of pull requests and of base commits: rows along an index, and their cells in a few statements."""
