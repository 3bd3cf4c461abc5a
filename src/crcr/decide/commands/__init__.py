"""The `/crcr` commands in comments: grammar, permissions and answers."""
