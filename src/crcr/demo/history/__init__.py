"""Generated history: days or years of an upstream's results, written directly into a database."""
