"""Text from outside, made safe to display: bounded, and without characters that act on their surroundings.

Templates escape HTML. Here control characters, direction overrides and invisible marks become visible, so that a name on a
page is the name it claims to be; and only http(s) addresses become links.
"""

import re
from urllib.parse import urlsplit

_MOST_LINK = 2_048

# C0 and C1 without tab and newline; soft hyphen; zero width and direction marks (the joiners that emoji and
# Persian need are kept); separators; invisible operators; interlinear marks; lone surrogates; tag characters.
_ACTING = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\xad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180e\u200b\u200e\u200f"
    "\u2028-\u202e\u2060-\u206f\u3164\ufeff\uffa0\ufff9-\ufffb\ud800-\udfff\U000e0000-\U000e0fff]"
)
_UNFIT_FOR_LINKS = re.compile(r"[\s<>\"'`\\^{}|]")


def visible(text: str, most: int = 2_000) -> str:
    """Return the text safe to show, cut after `most` characters."""
    if len(text) <= most and text.isascii() and text.isprintable():
        return text  # as nearly all are
    cut = text[:most]
    clean = _ACTING.sub(_name, cut)
    return f"{clean}…" if len(text) > most else clean


def safe_link(address: str | None) -> str | None:
    """Return the address if it is an ordinary http(s) one, else None."""
    if not address or len(address) > _MOST_LINK:
        return None
    if _ACTING.search(address) or _UNFIT_FOR_LINKS.search(address):
        return None
    try:
        parts = urlsplit(address)
    except ValueError:
        return None
    return address if parts.scheme.lower() in {"http", "https"} and parts.hostname else None


def _name(match: re.Match[str]) -> str:
    code = ord(match[0])
    return chr(0x2400 + code) if code < 0x20 else f"[U+{code:04X}]"
