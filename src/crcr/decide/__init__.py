"""The rules. Pure: no IO, no clock, no randomness, no logging, no third-party import."""
