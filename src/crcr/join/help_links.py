"""Link texts for hints: steps of the onboarding page on that page, full addresses and commands elsewhere."""

import shlex
from dataclasses import dataclass
from urllib.parse import urlencode

from crcr.decide.github.repository_setup import relay_pin
from crcr.decide.model import RepoName


@dataclass(frozen=True, slots=True, kw_only=True)
class HintLinks:
    """Each except the pin is the end of a hint: where to find something."""

    entry: str
    """The allowlist entry."""
    app: str
    """The link to install the App."""
    workflow: str
    """A workflow that listens to dispatches and reports."""
    check: str
    """Checking the set-up at GitHub."""
    test: str
    """A test dispatch."""
    pin: str
    """This relay as workflows pin it: callback address, a space, audience."""


def page_hint_links(pin: str) -> HintLinks:
    return HintLinks(
        entry="step 2 has the entry",
        app="the link is in step 1",
        workflow="step 3 has one",
        check="press Check now below",
        test="the last step sends a test",
        pin=pin,
    )


def doctor_command(
    relay_url: str, repository: RepoName, upstream: RepoName | None, *, test: bool = False
) -> str:
    """`upstream` is None when the relay has only one."""
    arguments = ["crcr", "doctor", "--relay", relay_url, "--repo", str(repository)]
    arguments += ["--upstream", str(upstream)] if upstream else []
    return shlex.join([*arguments, "--test"] if test else arguments)


def hint_links(
    site: str, upstream: RepoName, repository: RepoName, *, audience: str, several: bool
) -> HintLinks:
    """`several`: the relay at `site` has more than one upstream, so the link must name it."""
    chosen = {"repository": str(repository), **({"upstream": str(upstream)} if several else {})}
    page = f"{site}/crcr/onboarding?{urlencode(chosen, safe='/')}"
    named_upstream = upstream if several else None
    return HintLinks(
        entry=f"{page} and `crcr init` write the entry",
        app=f"the link is on {page}",
        workflow=f"`crcr init` in the repository writes one, or use {page}",
        check=f"`{doctor_command(site, repository, named_upstream)}`, or Check now on {page}",
        test="press Run workflow in the Actions tab of a repository with the workflow of `crcr init`, or with a token "
        f"`{doctor_command(site, repository, named_upstream, test=True)}`, to send a test now",
        pin=relay_pin(site, audience),
    )
