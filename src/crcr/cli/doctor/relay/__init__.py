"""The doctor for operators: settings, stores, the GitHub App, issuers and allowlists of one relay."""
