"""What in-tree checks cost: time of the store for each webhook, rows for each commit."""
