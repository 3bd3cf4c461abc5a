"""A token's times: read from its signed claims, and checked against the injected clock each time it is shown."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from crcr.errors import NotAuthentic
from crcr.receive.oidc.issuers import Issuer

LEEWAY_S = 60
NEW_TOKEN = "ask the issuer for a new token right before the report is sent"  # noqa: S105
_END_OF_TIME = 253_402_300_800  # the year 10000, where `datetime` ends


@dataclass(frozen=True, slots=True)
class TokenTimes:
    issued_at: float
    not_before: float
    expires_at: float
    max_age_s: int

    @property
    def ends_at(self) -> float:
        """By `exp` or by the issuer's maximum age, whichever comes first."""
        return min(self.expires_at, self.issued_at + self.max_age_s)


def read_times(claims: Mapping[str, Any], issuer: Issuer) -> TokenTimes:
    expires_at, issued_at = _moment(claims, "exp"), _moment(claims, "iat")
    if expires_at <= issued_at:
        raise NotAuthentic("the token ends before it begins (`exp` is not after `iat`)", hint=NEW_TOKEN)
    not_before = _moment(claims, "nbf") if "nbf" in claims else issued_at
    return TokenTimes(issued_at, not_before, expires_at, issuer.max_age_s)


def _moment(claims: Mapping[str, Any], name: str) -> float:
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
            hint="set the clock of the machine that issued it; up to a minute of difference is taken",
        )
