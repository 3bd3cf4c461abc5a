"""GitHub Actions in small: expressions, jobs, steps."""
