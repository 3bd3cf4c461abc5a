"""Sends notices: to GitHub, to webhooks, and by e-mail."""
