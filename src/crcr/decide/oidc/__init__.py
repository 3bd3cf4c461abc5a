"""Who sent a report: the identity that a verified token proves, and the pipelines of other CIs that are registered."""
