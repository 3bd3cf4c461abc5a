"""Webhook deliveries, their pull requests, merge groups and dispatches."""
