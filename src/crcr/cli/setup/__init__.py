"""`crcr setup`: the GitHub App from its manifest, the settings file with its secrets, and the first check."""
