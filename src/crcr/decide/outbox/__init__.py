"""Effects, their retries and their urgency, as values."""
