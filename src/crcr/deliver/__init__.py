"""The way out: workers that claim effects, do them, and record what happened."""
