"""Runs and jobs as GitHub reports them: by look-up and by webhook."""
