"""Claims that were proved, and how they are read: a claim is what it must be, or the token is refused by its name."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime

from crcr.decide.model import RepoName
from crcr.errors import NotAuthentic
from crcr.receive.oidc.issuers import Issuer

_INCOMPLETE = "send the token of the job itself, as the CI issues it to a job that asks for one"
# Without leading zeros and within 64 bits, so that one id has one spelling and fits its column.
_NUMBER = re.compile(r"[1-9][0-9]{0,17}")
_EVENT_NAME = re.compile(r"[a-z][a-z_]{0,63}")
_ID_CHARS = 256


@dataclass(frozen=True, slots=True)
class SignedClaims:
    """Claims whose signature, issuer, audience and times were checked. Only `identity` makes one."""

    issuer: Issuer
    claims: Mapping[str, object]
    expires_at: datetime

    def text(self, name: str) -> str:
        value = self.optional_text(name)
        if value is None:
            raise NotAuthentic(f"the token has no claim {name!r}", hint=_INCOMPLETE)
        return value

    def optional_text(self, name: str) -> str | None:
        value = self.claims.get(name)
        if value is None or value == "":
            return None
        if not isinstance(value, str):
            raise NotAuthentic(f"the claim {name!r} must be text", hint=_INCOMPLETE)
        return value

    def id(self, name: str) -> str:
        """An id of any form; numbers are taken as their digits."""
        value = self.claims.get(name)
        if isinstance(value, int) and not isinstance(value, bool) and value >= 0:
            return str(value)
        return self._id_text(name, self.text(name))

    def digits(self, name: str) -> str:
        return self._matching(name, self.text(name), _NUMBER, "a positive number written as text")

    def optional_digits(self, name: str) -> str | None:
        return None if self.optional_text(name) is None else self.digits(name)

    def event(self, name: str) -> str:
        return self._matching(name, self.text(name), _EVENT_NAME, "the name of an event")

    def repository(self, name: str) -> RepoName:
        try:
            return RepoName(self.text(name))
        except ValueError:
            raise NotAuthentic(f"the claim {name!r} must be owner/name", hint=_INCOMPLETE) from None

    @staticmethod
    def _id_text(name: str, value: str) -> str:
        if len(value) > _ID_CHARS or not value.isprintable():
            raise NotAuthentic(f"the claim {name!r} must be an id", hint=_INCOMPLETE)
        return value

    @staticmethod
    def _matching(name: str, value: str, form: re.Pattern[str], wanted: str) -> str:
        if form.fullmatch(value) is None:
            raise NotAuthentic(f"the claim {name!r} must be {wanted}", hint=_INCOMPLETE)
        return value
