"""Named tokens, known by their SHA-256 alone.

Every comparison looks at every token and takes the same time wherever two begin to differ. A token is random and
long, so that one round of a plain hash is enough: there is nothing to guess through.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from hashlib import sha256
from hmac import compare_digest

_LONGEST = 512


@dataclass(frozen=True, slots=True)
class NamedToken:
    name: str
    digest: str
    """SHA-256 of the token, in hexadecimal."""
    admin: bool


class Tokens:
    def __init__(self, tokens: Iterable[NamedToken]) -> None:
        self._tokens = tuple(tokens)

    def __bool__(self) -> bool:
        return bool(self._tokens)

    @property
    def has_admins(self) -> bool:
        return any(each.admin for each in self._tokens)

    def holder(self, unverified_token: str) -> NamedToken | None:
        """Return whose token it is."""
        shown = sha256(unverified_token[:_LONGEST].encode("utf-8", "replace")).hexdigest()
        found = [each for each in self._tokens if compare_digest(each.digest, shown)]
        return found[0] if found and len(unverified_token) <= _LONGEST else None

    def named(self, name: str) -> NamedToken | None:
        return next((each for each in self._tokens if each.name == name), None)
