"""Downstreams' reports: jobs, runs, refusals, self-reports, forwards."""
