"""Changes that belong together: an upstream pull request and the pull requests of backends that it depends on."""
