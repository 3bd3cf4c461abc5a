"""What of a wish is not as by default and matters: where a secret goes, and what is run.

A wish can come with somebody else's link. Whoever takes the files should see such values before the secret is set, so
the page tells them, and the files begin with them.
"""

from collections.abc import Iterator
from urllib.parse import urlsplit

from crcr.join.ci_kinds import PLACES, Ci
from crcr.join.request import USUAL_COMMAND, Wanted

_LONGEST = 160


def secret_goes_elsewhere(wanted: Wanted) -> tuple[str, ...]:
    """Where the bridge sends its secret, if that is not where everybody's goes."""
    if wanted.ci is not Ci.GITLAB:
        return ()
    usual = next(each.default for each in PLACES[Ci.GITLAB] if each.name == "url")
    there = _host(wanted.where("url") or "")
    if there == _host(usual or ""):
        return ()
    return (f"sends GITLAB_TRIGGER_TOKEN to {there}",)


def runs_what_was_named(wanted: Wanted) -> tuple[str, ...]:
    """What is run of what was named."""
    return tuple(_run(wanted))


def _run(wanted: Wanted) -> Iterator[str]:
    if wanted.command != USUAL_COMMAND:
        shown = wanted.command if len(wanted.command) <= _LONGEST else wanted.command[: _LONGEST - 1] + "…"
        yield f"runs the command: {shown}"
    if wanted.action is not None:
        yield f"runs the action {wanted.action}"


def _host(url: str) -> str:
    return urlsplit(url).netloc.lower()
