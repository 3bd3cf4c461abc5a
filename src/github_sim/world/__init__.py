"""The simulator's state: repositories, runs, faults, rate limits."""
