"""Commands that run the relay's processes and look after its database."""
