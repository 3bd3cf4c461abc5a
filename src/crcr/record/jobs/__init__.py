"""Jobs and their runs as reports make them: callbacks, self-reports, the sandbox, refusals, results of other relays, forwards."""
