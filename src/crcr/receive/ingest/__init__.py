"""`POST /api/crcr/results`: another relay's results."""
