"""Read models for downstreams that join: set-up, refused reports, sandbox."""
