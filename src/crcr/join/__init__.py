"""How a downstream joins: files, allowlist entry and registration generated from a `JoinRequest`; findings about a set-up.

`crcr init` (`cli.init`) writes the files, and the *onboarding* page (`show.pages.onboarding`) shows them. *Set-up* is the
state of a downstream that GitHub and the relay have recorded (`decide.github.repository_setup`, `show.api.setup`); the
folders named *joining* read what a joining downstream needs to see: its set-up, its refused reports, the sandbox.
"""
