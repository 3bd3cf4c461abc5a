"""The short address of a job: a token of 17 characters that is derived from the job's key, so that no table holds it.

It begins with the first characters of the delivery, which find its jobs along their key; then come digits of a hash for the
backend, and digits for the job. It is a shortcut and no secret: whether its job may be shown is decided where it is resolved.
"""

import re
from dataclasses import dataclass
from hashlib import blake2b

_START = 8
_BACKEND = 2
_JOB = 7
_ALPHABET = "abcdefghijklmnopqrstuvwxyz234567"
_TOKEN = re.compile(rf"([A-Za-z0-9_-]{{1,{_START}}})([a-z2-7]{{{_BACKEND}}})([a-z2-7]{{{_JOB}}})", re.ASCII)
_PLAIN = re.compile(r"[A-Za-z0-9_-]+", re.ASCII)

JobKeyParts = tuple[str, str, str, int, str]
"""Delivery, workflow, run id, attempt and name."""


@dataclass(frozen=True, slots=True)
class ShortAddress:
    """A parsed token: `start` to `end` (exclusive) are the deliveries that it may mean."""

    start: str
    backend: str
    job: str

    @property
    def end(self) -> str:
        return f"{self.start[:-1]}{chr(ord(self.start[-1]) + 1)}"

    def may_be_of(self, upstream: str, downstream: str) -> bool:
        return self.backend == _digits(_BACKEND, upstream, downstream)

    def names(self, upstream: str, downstream: str, key: JobKeyParts) -> bool:
        return self.job == _digits(_JOB, upstream, downstream, *key)


def short_token(upstream: str, downstream: str, key: JobKeyParts) -> str | None:
    """Return the token of a job; None where its delivery has no plain beginning. Names are in lower case."""
    start = key[0][:_START]
    if not _PLAIN.fullmatch(start):
        return None
    return f"{start}{_digits(_BACKEND, upstream, downstream)}{_digits(_JOB, upstream, downstream, *key)}"


def parse_short_token(text: str) -> ShortAddress | None:
    match = _TOKEN.fullmatch(text)
    return ShortAddress(*match.groups()) if match else None


def _digits(length: int, *parts: str | int) -> str:
    content = "\0".join(map(str, parts)).encode("utf-8", "surrogatepass")
    number = int.from_bytes(blake2b(content, digest_size=8).digest(), "big")
    return "".join(_ALPHABET[number >> 5 * place & 31] for place in range(length))
