"""What is recorded, as pages, JSON, live events and metrics."""
