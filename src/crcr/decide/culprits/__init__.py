"""Which change broke a job on the base branch: the range of commits, and the candidates in it."""
