"""The measured relay as a real process: its set-up, a stub of GitHub, and a load client."""
