"""Administrative operations: by command line (`operations`), and over HTTP with the relay's clock (`http_operations`)."""
