"""Upstreams, downstreams, allowlist versions and installations of the App."""
