"""From the recorded facts of a commit to its gate and its check runs."""
