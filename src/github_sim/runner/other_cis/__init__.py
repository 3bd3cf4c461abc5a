"""Buildkite, CircleCI and GitLab in small."""
