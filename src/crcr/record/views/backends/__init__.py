"""Read models of backends: the overview, a backend page with its matrix and jobs, figures, the badge."""
