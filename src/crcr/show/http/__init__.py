"""Response headers, forms, static files, same-site checks."""
