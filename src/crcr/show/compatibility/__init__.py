"""The compatibility matrix: page, JSON, CSV, plain text and badge."""
