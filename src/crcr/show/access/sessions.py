"""Named tokens, known by their SHA-256 only, and sessions without a store: a signed cookie that every replica accepts.

Every comparison of tokens checks all of them in constant time. Tokens are long and random, so that one round of a plain
hash is enough. The key of a session is made of the webhook secret and the hash of its token: removing a token from the
settings ends its sessions. The CSRF field of a form is signed with the same key under another purpose, so that neither
signature is valid as the other.
"""

import hmac
import json
import secrets
from base64 import urlsafe_b64decode, urlsafe_b64encode
from binascii import Error as NotBase64
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from hmac import compare_digest

from crcr.ports import Clock

_LONGEST_TOKEN = 512


@dataclass(frozen=True, slots=True)
class NamedToken:
    name: str
    digest: str
    """SHA-256 of the token, in hexadecimal."""
    admin: bool


class TokenStore:
    def __init__(self, tokens: Iterable[NamedToken]) -> None:
        self._tokens = tuple(tokens)

    def replace(self, tokens: Iterable[NamedToken]) -> None:
        self._tokens = tuple(tokens)

    def __bool__(self) -> bool:
        return bool(self._tokens)

    @property
    def has_admins(self) -> bool:
        return any(token.admin for token in self._tokens)

    def find_holder(self, unverified_token: str) -> NamedToken | None:
        """Return the entry of this token; None for an unknown one."""
        digest = sha256(unverified_token[:_LONGEST_TOKEN].encode("utf-8", "replace")).hexdigest()
        holders = [token for token in self._tokens if compare_digest(token.digest, digest)]
        return holders[0] if holders and len(unverified_token) <= _LONGEST_TOKEN else None

    def find_by_name(self, name: str) -> NamedToken | None:
        return next((token for token in self._tokens if token.name == name), None)


LIFE = timedelta(hours=12)
_SKEW = timedelta(minutes=2)
_LONGEST_COOKIE = 1_024
_NAME = "crcr_session"


@dataclass(frozen=True, slots=True)
class Session:
    holder: NamedToken
    csrf: str
    expires_at: datetime


class Sessions:
    def __init__(self, tokens: TokenStore, *, secret: bytes, clock: Clock, secure: bool) -> None:
        self._tokens = tokens
        self._secret = secret
        self._clock = clock
        self._secure = secure
        self.cookie_name = f"__Host-{_NAME}" if secure else _NAME

    def replace_secret(self, secret: bytes) -> None:
        """Sign with another secret; all sessions end."""
        self._secret = secret

    def create(self, holder: NamedToken) -> str:
        """Return the cookie's value for a new session."""
        now = self._clock.now()
        facts = {
            "name": holder.name,
            "role": _role(holder),
            "issued": int(now.timestamp()),
            "expires": int((now + LIFE).timestamp()),
            "nonce": secrets.token_urlsafe(16),
        }
        body = _encode(json.dumps(facts, separators=(",", ":")).encode())
        return f"{body}.{self._sign(holder, 'session', body)}"

    def read(self, unverified_cookie: str) -> Session | None:
        """Return the session if we signed it, its token is still valid, and it has not expired."""
        if len(unverified_cookie) > _LONGEST_COOKIE:
            return None
        body, _, signature = unverified_cookie.partition(".")
        facts = _decode_facts(body)
        holder = self._tokens.find_by_name(str(facts.get("name")))
        if holder is None or not hmac.compare_digest(
            self._sign(holder, "session", body).encode(), signature.encode("utf-8", "replace")
        ):
            return None
        issued_at, expires_at = _parse_time(facts.get("issued")), _parse_time(facts.get("expires"))
        now = self._clock.now()
        if (
            facts.get("role") != _role(holder)
            or not issued_at - _SKEW <= now < expires_at <= issued_at + LIFE
        ):
            return None
        return Session(holder, self._sign(holder, "form", body), expires_at)

    def set_cookie(self, value: str) -> str:
        return f"{self.cookie_name}={value}; Max-Age={int(LIFE.total_seconds())}{self._attributes}"

    def end_cookie(self) -> str:
        return f"{self.cookie_name}=; Max-Age=0{self._attributes}"

    @property
    def _attributes(self) -> str:
        return f"; Path=/; HttpOnly; SameSite=Strict{'; Secure' if self._secure else ''}"

    def _sign(self, holder: NamedToken, purpose: str, body: str) -> str:
        key = hmac.digest(self._secret, f"crcr session\0{holder.digest}".encode(), "sha256")
        return _encode(hmac.digest(key, f"{purpose}\0{body}".encode("utf-8", "replace"), "sha256"))


def _role(holder: NamedToken) -> str:
    return "admin" if holder.admin else "reader"


def _encode(raw: bytes) -> str:
    return urlsafe_b64encode(raw).rstrip(b"=").decode()


def _decode_facts(body: str) -> dict[str, object]:
    """Return the fields of a cookie. They count only once its signature is verified."""
    try:
        facts = json.loads(urlsafe_b64decode(body + "=" * (-len(body) % 4)))
    except (NotBase64, ValueError, RecursionError):
        return {}
    return facts if isinstance(facts, dict) else {}


def _parse_time(seconds: object) -> datetime:
    # Called only after the signature was verified, so this is a number that we wrote.
    return datetime.fromtimestamp(int(str(seconds)), UTC)
