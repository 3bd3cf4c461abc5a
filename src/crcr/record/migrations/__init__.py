"""The schema's history, applied in order; every step is tested on what the one before it left."""
