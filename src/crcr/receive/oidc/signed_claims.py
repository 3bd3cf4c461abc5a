"""Verified claims and how they are read: a claim has the required form, or the token is refused with the claim's name.

A token's times are read from its claims, and checked against the injected clock each time the token is sent.
"""

import re
from collections.abc import Mapping
from datetime import datetime
from typing import Any

from crcr.decide.model import RepoName
from crcr.decide.row_dataclass import row_dataclass
from crcr.errors import NotAuthentic
from crcr.receive.oidc.issuers import TrustedIssuer

_INCOMPLETE = "send the token of the job itself, as the CI issues it to a job that asks for one"
# Without leading zeros and within 64 bits, so that one id has one spelling and fits its column.
_NUMBER = re.compile(r"[1-9][0-9]{0,17}")
_EVENT_NAME = re.compile(r"[a-z][a-z_]{0,63}")
_ID_CHARS = 256


@row_dataclass(frozen=True, slots=True)
class SignedClaims:
    """Claims whose signature, issuer, audience and times were verified. Only `verifier` makes one."""

    issuer: TrustedIssuer
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
        """Return an id of any form; a number becomes its digits."""
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
    def _matching(name: str, value: str, form: re.Pattern[str], expected: str) -> str:
        if form.fullmatch(value) is None:
            raise NotAuthentic(f"the claim {name!r} must be {expected}", hint=_INCOMPLETE)
        return value


# Times


LEEWAY_S = 60
NEW_TOKEN = "ask the issuer for a new token right before the report is sent"  # noqa: S105
_END_OF_TIME = 253_402_300_800  # the year 10000, where `datetime` ends


@row_dataclass(frozen=True, slots=True)
class TokenTimes:
    issued_at: float
    not_before: float
    expires_at: float
    max_age_s: int

    @property
    def ends_at(self) -> float:
        """By `exp` or by the issuer's maximum age, whichever comes first."""
        return min(self.expires_at, self.issued_at + self.max_age_s)


def read_times(claims: Mapping[str, Any], issuer: TrustedIssuer) -> TokenTimes:
    expires_at, issued_at = _timestamp(claims, "exp"), _timestamp(claims, "iat")
    if expires_at <= issued_at:
        raise NotAuthentic("the token ends before it begins (`exp` is not after `iat`)", hint=NEW_TOKEN)
    not_before = _timestamp(claims, "nbf") if "nbf" in claims else issued_at
    return TokenTimes(issued_at, not_before, expires_at, issuer.max_age_s)


def _timestamp(claims: Mapping[str, Any], name: str) -> float:
    value = claims[name]
    # The comparison is False for NaN and needs no float of a thousand-digit number.
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < _END_OF_TIME:
        raise NotAuthentic(f"the claim {name!r} must be a time as a number of seconds", hint=NEW_TOKEN)
    return float(value)


def check_times(times: TokenTimes, now: float) -> None:
    if now >= times.expires_at + LEEWAY_S:
        raise NotAuthentic(f"the token expired {now - times.expires_at:.0f} s ago (`exp`)", hint=NEW_TOKEN)
    if now >= times.ends_at + LEEWAY_S:
        raise NotAuthentic(
            f"the token is {now - times.issued_at:.0f} s old (`iat`); at most {times.max_age_s} s are taken",
            hint=NEW_TOKEN,
        )
    early_s = max(times.issued_at, times.not_before) - now
    if early_s > LEEWAY_S:
        raise NotAuthentic(
            f"the token begins {early_s:.0f} s from now (`iat` or `nbf`)",
            hint="set the clock of the machine that issued it; up to a minute of difference is accepted",
        )
