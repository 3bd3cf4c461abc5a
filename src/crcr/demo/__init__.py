"""The demo: a simulated GitHub with made-up traffic, and the relay that serves it."""
