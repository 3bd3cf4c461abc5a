"""Read models of the relay itself: health, queues, lag."""
