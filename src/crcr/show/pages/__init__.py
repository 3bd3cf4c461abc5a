"""The pages, one module for each family."""
