"""`POST /api/crcr/results`: another relay sends results of its own downstreams, authenticated by a shared token."""
