"""Bisection: which upstream commit broke a job, found by testing commits."""
