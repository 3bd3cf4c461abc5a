"""Rate limits, in memory and in Redis."""
