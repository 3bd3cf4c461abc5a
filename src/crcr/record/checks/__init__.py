"""Check runs, gates, waivers and `/crcr` commands in their tables."""
