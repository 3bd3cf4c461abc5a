"""From a report to a verdict on its job: which job is meant, its lifecycle, refused and forwarded results."""
