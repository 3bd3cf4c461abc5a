"""Files that are shipped to downstreams as text: the reporter and the bridge."""
