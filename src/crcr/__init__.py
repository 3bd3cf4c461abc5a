"""Cross-Repository CI Relay: fan a change out to the repositories that build on it, and show what it breaks."""

__version__ = "1.0.0"
