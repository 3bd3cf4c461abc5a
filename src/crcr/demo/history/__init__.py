"""Made-up history: days or years of an upstream's results, written straight into a database."""
