"""The proof that a webhook comes from GitHub: HMAC-SHA256 over the raw bytes with the App's secret.

No part of a body may be interpreted before `verify_signature` returned. All refusals are the same, so that neither the
response nor its timing tells which part was wrong.
"""

import hashlib
import hmac
import re
from collections.abc import Sequence

from crcr.errors import BadSignature

_PREFIX = "sha256="
_WELL_FORMED = re.compile(r"sha256=[0-9a-f]{64}")


def sign(secret: bytes, body: bytes) -> str:
    """Return the value of `X-Hub-Signature-256` for this body."""
    if not secret:
        # Everybody can compute an HMAC under the empty key: a forgotten secret must not become an open door.
        raise ValueError("the webhook secret is empty")
    return _PREFIX + hmac.new(secret, body, hashlib.sha256).hexdigest()


def require_signature(headers: Sequence[str]) -> str:
    """Return the one `X-Hub-Signature-256` of a request if it is well-formed; raise `BadSignature` otherwise.

    Called before the body is read: a request without a signature must not cost more than its headers.
    """
    if len(headers) != 1 or _WELL_FORMED.fullmatch(headers[0]) is None:
        raise BadSignature
    return headers[0]


def verify_signature(secret: bytes, body: bytes, header: str | None) -> None:
    """Return if `header` signs `body`; raise `BadSignature` otherwise."""
    expected = sign(secret, body).encode()
    # Compared as bytes: `compare_digest` raises for text outside ASCII, and headers may hold any.
    sent_signature = (header or "").encode("utf-8", "replace")
    if not hmac.compare_digest(expected, sent_signature):
        raise BadSignature
