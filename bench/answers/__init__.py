"""How often the relay's verdicts are right: histories with known causes, and the relay's answers about them."""
