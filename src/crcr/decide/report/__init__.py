"""From a downstream's report to a verdict on its job: identity, lifecycle, refusals."""
