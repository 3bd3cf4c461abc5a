"""Sending webhooks as GitHub does."""
