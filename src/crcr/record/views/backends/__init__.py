"""Read models of backends: overview, matrix, jobs, figures, badge."""
