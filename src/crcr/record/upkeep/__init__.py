"""Time-outs of silent jobs, and retention."""
