"""The notice after an action: a code from a closed set and a number in the address, never free text."""

from collections.abc import Mapping
from urllib.parse import parse_qsl, urlencode, urlsplit

from starlette.requests import Request

_CODE, _NUMBER = "done", "n"
_MOST_DIGITS = 9

NOTICES: Mapping[str, tuple[str, str, str]] = {
    "replayed": (
        "Nothing to send: every backend has received it, or it is on its way.",
        "Sent again to one backend.",
        "Sent again to {} backends.",
    ),
    "retried": ("No undelivered call matches.", "Retrying one call.", "Retrying {} calls."),
    "suspended": ("The backend is suspended.",) * 3,
    "lifted": ("The backend is no longer suspended.",) * 3,
    "rebound": ("The repository's new id is accepted.",) * 3,
    "paused": ("Dispatching is paused; events are recorded and wait.",) * 3,
    "unpaused": ("Dispatching is resumed.",) * 3,
    "known": ("The failure is linked to the issue.",) * 3,
    "unknown": ("The failure is no longer linked to an issue.",) * 3,
    "overridden": ("The backend's demotion is switched off.",) * 3,
    "override_ended": ("The backend's demotion is in force again.",) * 3,
    "bisected": ("Bisection {} has begun.",) * 3,
    "stopped": ("Bisection {} is stopped.",) * 3,
    "checking": (
        "GitHub was asked a moment ago; its answer is shown below.",
        "Asking GitHub.",
        "Asking GitHub.",
    ),
    "signed_in": ("You are signed in.",) * 3,
}
"""For each code the sentence for a number of 0, 1, and more."""


def with_notice(address: str, code: str, number: int = 1) -> str:
    """Return the local address with a notice, in place of an older one."""
    parts = urlsplit(address)
    parameters = [
        pair for pair in parse_qsl(parts.query, keep_blank_values=True) if pair[0] not in {_CODE, _NUMBER}
    ]
    query = urlencode([*parameters, (_CODE, code), (_NUMBER, str(number))], safe="/")
    return parts._replace(query=query).geturl()


def read_notice(request: Request) -> str | None:
    """Return the sentence of the notice in the address; None if its code is unknown."""
    sentences = NOTICES.get(request.query_params.get(_CODE, ""))
    number = request.query_params.get(_NUMBER, "1")
    if sentences is None or not (number.isascii() and number.isdigit()) or len(number) > _MOST_DIGITS:
        return None
    return sentences[min(int(number), 2)].format(int(number))
