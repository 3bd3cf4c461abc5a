"""What runs on a timer: sweeping, retention, reconciliation, leadership."""
