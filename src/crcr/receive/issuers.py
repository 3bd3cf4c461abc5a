"""Whose tokens are taken, and what each kind of issuer signs: the table that `identity` works through.

An issuer counts only when it stands in the table; nothing of it (keys' address, algorithm, life) is ever read
from a token. A kind takes part once `READERS` says how its claims become an `Identity`; the other kinds are
known by name, so that their callers are told what is missing instead of "unknown issuer".
"""

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from types import MappingProxyType
from urllib.parse import urlsplit

from crcr.decide.identity import Identity, IssuerKind
from crcr.decide.model import RepoName
from crcr.errors import NotAuthentic

GITHUB_ACTIONS = "https://token.actions.githubusercontent.com"

_ORGANISATION_ISSUERS = {"https://oidc.circleci.com/org/": IssuerKind.CIRCLECI}
_INCOMPLETE = "send the token of the job itself, as GitHub Actions issues it to a job with `id-token: write`"

_RSA_SIGNATURES = frozenset({"RS256", "RS384", "RS512"})
_LOOPBACK = frozenset({"127.0.0.1", "::1", "localhost"})
# Without leading zeros and within 64 bits, so that one id has one spelling and fits its column.
_NUMBER = re.compile(r"[1-9][0-9]{0,17}")
_EVENT_NAME = re.compile(r"[a-z][a-z_]{0,63}")
# `owner/repo/.github/workflows/ci.yml@refs/heads/x`: a file name and a branch may both hold an `@`.
_WORKFLOW_REF = re.compile(r"[^/]+/[^/]+/(?P<path>.+?)@(?:refs/.+|[0-9a-f]{40})")


@dataclass(frozen=True, slots=True)
class _Habits:
    """What all issuers of a kind have in common: where their keys are, and how long a token may be in use."""

    keys_path: str
    max_age_s: int


_HABITS: Mapping[IssuerKind, _Habits] = MappingProxyType(
    {
        # Tokens that live for hours have been seen, so the age is limited by us and not by `exp` alone.
        IssuerKind.GITHUB: _Habits("/.well-known/jwks", 600),
        IssuerKind.BUILDKITE: _Habits("/.well-known/jwks", 600),
        IssuerKind.GITLAB: _Habits("/oauth/discovery/keys", 86_400),
        IssuerKind.CIRCLECI: _Habits("/.well-known/jwks-pub.json", 3_600),
        IssuerKind.GENERIC: _Habits("/.well-known/jwks.json", 600),
    }
)


@dataclass(frozen=True, slots=True)
class Issuer:
    issuer: str
    kind: IssuerKind
    jwks_url: str
    algorithms: tuple[str, ...] = ("RS256",)
    max_age_s: int = 600

    def __post_init__(self) -> None:
        for address in (self.issuer, self.jwks_url):
            if not _is_safe_address(address):
                raise ValueError(f"{address!r} must be an https:// address (http only on this machine)")
        if not self.algorithms or not _RSA_SIGNATURES.issuperset(self.algorithms):
            raise ValueError(f"algorithms of {self.issuer} must be among {sorted(_RSA_SIGNATURES)}")
        if self.max_age_s <= 0:
            raise ValueError(f"max_age_s of {self.issuer} must be positive")


def issuer_of(issuer: str, kind: IssuerKind, *, jwks_url: str | None = None) -> Issuer:
    """Complete a configured issuer by the habits of its kind."""
    habits = _HABITS[kind]
    return Issuer(issuer, kind, jwks_url or issuer + habits.keys_path, max_age_s=habits.max_age_s)


def known_issuers() -> tuple[Issuer, ...]:
    """Return the issuers that need no configuration. CircleCI has one per organisation: each is configured."""
    return (
        issuer_of(GITHUB_ACTIONS, IssuerKind.GITHUB),
        issuer_of("https://agent.buildkite.com", IssuerKind.BUILDKITE),
        issuer_of("https://gitlab.com", IssuerKind.GITLAB),
    )


def issuer_table(extra: Iterable[Issuer] = ()) -> dict[str, Issuer]:
    """Return the known issuers with the configured ones added, or put in place of one with the same name."""
    return {issuer.issuer: issuer for issuer in (*known_issuers(), *extra)}


def kind_by_name(unverified_issuer: str) -> IssuerKind | None:
    """Return the kind of an issuer that is not in the table but is named like one of a vendor."""
    named = (kind for prefix, kind in _ORGANISATION_ISSUERS.items() if unverified_issuer.startswith(prefix))
    return next(named, None)


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
    def _matching(name: str, value: str, form: re.Pattern[str], wanted: str) -> str:
        if form.fullmatch(value) is None:
            raise NotAuthentic(f"the claim {name!r} must be {wanted}", hint=_INCOMPLETE)
        return value


def _read_github(signed: SignedClaims) -> Identity:
    """`sub` is not read: owners can change its form (docs.github.com, "customizing the token claims")."""
    return Identity(
        issuer=signed.issuer.issuer,
        kind=signed.issuer.kind,
        repository=signed.repository("repository"),
        repository_id=int(signed.digits("repository_id")),
        owner_id=int(signed.digits("repository_owner_id")),
        run_id=signed.digits("run_id"),
        run_attempt=int(signed.digits("run_attempt")),
        check_run_id=signed.optional_digits("check_run_id"),  # GitHub Enterprise Server does not sign it
        workflow_path=_workflow_path(signed.optional_text("workflow_ref")),
        event_name=signed.event("event_name"),
        expires_at=signed.expires_at,
    )


def _workflow_path(workflow_ref: str | None) -> str | None:
    match = _WORKFLOW_REF.fullmatch(workflow_ref or "")
    return match["path"] if match else None


def _is_safe_address(address: str) -> bool:
    try:
        parts = urlsplit(address)
        host = parts.hostname
    except ValueError:
        return False
    return bool(host) and (parts.scheme == "https" or (parts.scheme == "http" and host in _LOOPBACK))


READERS: Mapping[IssuerKind, Callable[[SignedClaims], Identity]] = MappingProxyType(
    {IssuerKind.GITHUB: _read_github}
)
"""How the claims of a kind become an identity. The other kinds sign no repository and wait for registration."""
