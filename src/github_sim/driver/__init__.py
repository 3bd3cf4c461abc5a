"""Methods for what people and CI do: one class for each subject, combined in `github.GitHub`."""
