"""The relays that a workflow pins, as its file writes them: callback address, a space, audience; one a line.

The reporter requests tokens for pinned audiences only and sends them to their addresses only, because everyone who may
write to a repository can send it a dispatch. Read here by the same rules as the reporter's.
"""

import re
from collections.abc import Iterable
from enum import StrEnum


class Pinning(StrEnum):
    """How the steps of one file that report pin their relays; the worst of them counts, the last is the worst."""

    NONE = "none"
    """No step of the file reports."""
    PINNED = "pinned"
    UNKNOWN = "unknown"
    """By an expression, which is not worked out."""
    FOREIGN = "foreign"
    """Somebody else's action reports, which may know no pins."""
    MISSING = "missing"
    EVENT = "event"
    """By an expression over the event: the dispatch would pin itself."""

    @classmethod
    def worst(cls, found: "Iterable[Pinning]") -> "Pinning":
        return max(found, key=list(cls).index, default=cls.NONE)


def callback_address(address: str) -> str:
    """Return the address as it is compared: without one slash at its end, and a bare one made complete."""
    plain = address.removesuffix("/")
    return f"{plain}/github/callback" if re.fullmatch(r"https?://[^/?#]+", plain) else plain


def read_pins(text: str) -> tuple[str, ...]:
    """Return each pair as `address audience`; a line that is no pair pins nothing."""
    pairs = [line.split(None, 1) for line in text.splitlines()]
    pins = (f"{callback_address(pair[0])} {pair[1].strip()}" for pair in pairs if len(pair) == 2)
    return tuple(dict.fromkeys(pins))


def relay_pin(public_url: str, audience: str) -> str:
    """Return the relay as workflows pin it."""
    return f"{public_url.rstrip('/')}/github/callback {audience}"
