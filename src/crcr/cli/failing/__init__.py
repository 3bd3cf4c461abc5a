"""`crcr failing`: continuously failing jobs, from the relay's database or from any relay's public API."""
