"""`crcr init`: writes the files that make a repository a downstream."""
