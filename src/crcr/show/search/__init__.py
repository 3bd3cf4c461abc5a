"""The search: its page, its suggestions, and how a result is shown."""
