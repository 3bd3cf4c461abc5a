"""Queries of the search: pull requests, commits, authors, backends, jobs, failed tests and messages of failures."""
