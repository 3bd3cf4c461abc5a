"""`crcr doctor`: examines a downstream's set-up or a whole relay, and says what to do."""
