"""The truth: schema, statements and the transactions that facts and effects share."""
