"""Opaque cursors: positions in a list as text that callers pass on unchanged."""

import base64
import binascii
import json

import msgspec

from crcr.errors import BadRequest

_MOST = 16_384
_BIGGEST = 2**63
_URL_SAFE = bytes.maketrans(b"+/", b"-_")
_JSON = msgspec.json.Encoder()


def encode(key: tuple[str | int, ...] | None) -> str | None:
    if key is None:
        return None
    # Without `base64`'s wrappers: a page has a link for each of its hundreds of jobs.
    encoded = binascii.b2a_base64(_JSON.encode(key), newline=False)
    return encoded.translate(_URL_SAFE).rstrip(b"=").decode()


def decode(cursor: str | None) -> tuple[str | int, ...] | None:
    """Return the key of a cursor; the list that it belongs to checks its parts."""
    if cursor is None:
        return None
    try:
        raw = base64.b64decode(cursor[:_MOST] + "==", altchars=b"-_", validate=False)
        parts = json.loads(raw)
    except (binascii.Error, ValueError, RecursionError) as fault:
        raise _bad_cursor() from fault
    if not isinstance(parts, list) or not all(map(_is_plain, parts)):
        raise _bad_cursor()
    return tuple(parts)


def _is_plain(part: object) -> bool:
    """Accept text that can be stored and numbers that fit a column; `True` is not a number."""
    if isinstance(part, str):
        return not any("\ud800" <= character <= "\udfff" for character in part)
    return type(part) is int and -_BIGGEST <= part < _BIGGEST


def _bad_cursor() -> BadRequest:
    return BadRequest("the cursor is not one of ours", hint="pass on `next` of the page before, unchanged")
