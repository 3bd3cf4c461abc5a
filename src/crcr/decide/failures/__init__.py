"""What a failure means: its fingerprint, the history that it is compared with, and the verdict."""
