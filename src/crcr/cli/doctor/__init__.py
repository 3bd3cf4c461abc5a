"""`crcr doctor`: checks a downstream's set-up or a whole relay, and prints what to do."""
