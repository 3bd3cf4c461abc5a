"""What of a wish is not as by default and matters: where a secret goes, and what is run.

A wish can come with somebody else's link. Whoever takes the files should see such values before the secret is set, so
the page tells them, and the files begin with them.
"""

from collections.abc import Iterator
from urllib.parse import urlsplit

from crcr.join.ci_kinds import CI_LOCATION_PARTS, Ci
from crcr.join.request import DEFAULT_COMMAND, JoinRequest

_LONGEST = 160


def unusual_secret_targets(request: JoinRequest) -> tuple[str, ...]:
    """Where the bridge sends its secret, if that is not where everybody's goes."""
    if request.ci is not Ci.GITLAB:
        return ()
    usual = next(each.default for each in CI_LOCATION_PARTS[Ci.GITLAB] if each.name == "url")
    there = _host(request.where("url") or "")
    if there == _host(usual or ""):
        return ()
    return (f"sends GITLAB_TRIGGER_TOKEN to {there}",)


def chosen_programs(request: JoinRequest) -> tuple[str, ...]:
    """What is run of what was named."""
    return tuple(_run(request))


def _run(request: JoinRequest) -> Iterator[str]:
    if request.command != DEFAULT_COMMAND:
        shown = request.command if len(request.command) <= _LONGEST else request.command[: _LONGEST - 1] + "…"
        yield f"runs the command: {shown}"
    if request.action is not None:
        yield f"runs the action {request.action}"


def _host(url: str) -> str:
    return urlsplit(url).netloc.lower()
