"""Read models of pull requests and commits."""
