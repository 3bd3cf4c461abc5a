"""The issuers whose tokens are accepted, and what each kind of issuer signs.

Only an issuer in the table counts; nothing about it (address of the keys, algorithm, lifetime) is ever read from a token.
CircleCI has an issuer per organisation: a token of an unlisted one is verified with the keys at CircleCI's own address, so
that an authentic caller learns what to register instead of "unknown issuer".
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from urllib.parse import urlsplit

from crcr.decide.oidc.identity import IssuerKind

GITHUB_ACTIONS = "https://token.actions.githubusercontent.com"

_CIRCLECI_ORGANISATION = re.compile(
    r"https://oidc\.circleci\.com/org/[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}"
)

_RSA_SIGNATURES = frozenset({"RS256", "RS384", "RS512"})
_LOOPBACK = frozenset({"127.0.0.1", "::1", "localhost"})


@dataclass(frozen=True, slots=True)
class _KindDefaults:
    """Defaults of a kind of issuer: where its keys are, and how old a token may be."""

    keys_path: str | None
    """None: the issuer's discovery document has the address."""
    max_age_s: int


_KIND_DEFAULTS: Mapping[IssuerKind, _KindDefaults] = MappingProxyType(
    {
        # Some tokens live for hours, so we limit the age, too, and not only `exp`.
        IssuerKind.GITHUB: _KindDefaults("/.well-known/jwks", 600),
        IssuerKind.BUILDKITE: _KindDefaults("/.well-known/jwks", 600),
        IssuerKind.GITLAB: _KindDefaults(None, 86_400),
        IssuerKind.CIRCLECI: _KindDefaults("/.well-known/jwks-pub.json", 3_600),
        IssuerKind.GENERIC: _KindDefaults(None, 600),
    }
)


@dataclass(frozen=True, slots=True)
class TrustedIssuer:
    issuer: str
    kind: IssuerKind
    jwks_url: str | None
    """None: the issuer's discovery document has it."""
    algorithms: tuple[str, ...] = ("RS256",)
    max_age_s: int = 600
    reads: Mapping[str, str] = field(default_factory=dict)
    """For a generic issuer: the claims for run_id, run_attempt, job_id and workflow."""
    listed: bool = True
    """False for an issuer that is not in the table and was named by a caller."""

    def __post_init__(self) -> None:
        for address in (self.issuer, self.jwks_url):
            if address is not None and not is_safe_address(address):
                raise ValueError(f"{address!r} must be an https:// address (http only on this machine)")
        if not self.algorithms or not _RSA_SIGNATURES.issuperset(self.algorithms):
            raise ValueError(f"algorithms of {self.issuer} must be among {sorted(_RSA_SIGNATURES)}")
        if self.max_age_s <= 0:
            raise ValueError(f"max_age_s of {self.issuer} must be positive")


def complete_issuer(
    issuer: str, kind: IssuerKind, *, jwks_url: str | None = None, reads: Mapping[str, str] | None = None
) -> TrustedIssuer:
    """Complete a configured issuer with the defaults of its kind."""
    defaults = _KIND_DEFAULTS[kind]
    default_url = None if defaults.keys_path is None else issuer.rstrip("/") + defaults.keys_path
    return TrustedIssuer(
        issuer, kind, jwks_url or default_url, max_age_s=defaults.max_age_s, reads=reads or {}
    )


def known_issuers() -> tuple[TrustedIssuer, ...]:
    """Return the issuers that need no configuration. CircleCI has one per organisation: each is configured."""
    return (
        complete_issuer(GITHUB_ACTIONS, IssuerKind.GITHUB),
        complete_issuer("https://agent.buildkite.com", IssuerKind.BUILDKITE),
        complete_issuer("https://gitlab.com", IssuerKind.GITLAB),
    )


def issuer_table(extra: Iterable[TrustedIssuer] = ()) -> dict[str, TrustedIssuer]:
    """Return the known issuers and the configured ones, which replace a known one of the same name."""
    return {issuer.issuer: issuer for issuer in (*known_issuers(), *extra)}


def organisation_issuer(unverified_issuer: str) -> TrustedIssuer | None:
    """Return the issuer of an organisation at CircleCI that is not in the table; none of its pipelines is registered."""
    if _CIRCLECI_ORGANISATION.fullmatch(unverified_issuer) is None:
        return None
    return replace(complete_issuer(unverified_issuer, IssuerKind.CIRCLECI), listed=False)


def is_safe_address(address: str) -> bool:
    try:
        parts = urlsplit(address)
        host = parts.hostname
    except ValueError:
        return False
    return bool(host) and (parts.scheme == "https" or (parts.scheme == "http" and host in _LOOPBACK))
