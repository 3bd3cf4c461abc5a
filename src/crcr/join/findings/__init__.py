"""What is right and wrong with a downstream's set-up, as findings with advice."""
