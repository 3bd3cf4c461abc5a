"""Read models of deliveries, effects, the audit log and the search."""
