"""The doctor for maintainers of a downstream: checkout, set-up, and a test dispatch."""
