"""What the worker does for each kind of effect."""
