"""The outbox: effects, claims with leases, the leader, and the registry of workers."""
