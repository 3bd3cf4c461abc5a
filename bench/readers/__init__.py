"""Many readers of live pages, and a flood of page requests, while webhooks and callbacks go on."""
