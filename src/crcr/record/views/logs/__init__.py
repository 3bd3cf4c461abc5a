"""Read models of deliveries, effects and the audit log."""
