"""From an upstream event to the dispatches that follow from it, and to their payloads."""
