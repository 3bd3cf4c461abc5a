"""A simulated GitHub for tests of GitHub Apps: REST API, webhooks, Actions and OIDC, in memory and over real HTTP.

`github_sim.github.GitHub` is the entry point; README.md beside this file shows how to test a bot with it. The package
imports nothing of `crcr`, so a misunderstanding of GitHub's protocol in `crcr` cannot be repeated here by shared code.
"""
