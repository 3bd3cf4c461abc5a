"""The App's JWTs: claims, lifetime, and the error for a bad key."""

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    KeySerializationEncryption,
    NoEncryption,
    PrivateFormat,
)

from crcr.github.app_auth import AppAuth, load_private_key
from support.clock import ManualClock

KEY = rsa.generate_private_key(65537, 2048)


def pem(
    key: rsa.RSAPrivateKey | ec.EllipticCurvePrivateKey, lock: KeySerializationEncryption | None = None
) -> str:
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, lock or NoEncryption()).decode()


def test_the_jwt_has_the_claims_that_github_requires() -> None:
    clock = ManualClock()
    now = clock.now().timestamp()
    token = AppAuth("1234", pem(KEY), clock).token()
    claims = jwt.decode(
        token.value,
        KEY.public_key(),
        algorithms=["RS256"],
        options={"verify_exp": False, "verify_iat": False},
    )
    assert claims == {"iat": now - 60, "exp": now + 540, "iss": "1234"}


def test_one_jwt_is_reused_until_two_minutes_before_its_expiry() -> None:
    clock = ManualClock()
    auth = AppAuth("1234", pem(KEY), clock)
    first = auth.token()
    clock.advance(419)
    assert auth.token() is first
    clock.advance(1)
    assert auth.token() is not first


def test_forgetting_an_old_jwt_does_not_drop_its_successor() -> None:
    auth = AppAuth("1234", pem(KEY), ManualClock())
    first = auth.token()
    auth.forget(first)
    second = auth.token()
    auth.forget(first)
    assert second is not first
    assert auth.token() is second


def test_the_key_is_loaded_once_and_its_text_is_not_kept() -> None:
    auth = AppAuth("1234", pem(KEY), ManualClock())
    token = auth.token()
    kept = [getattr(auth, name) for name in AppAuth.__slots__]
    assert not any("PRIVATE KEY" in str(value) for value in kept)
    assert repr(auth) == "AppAuth('1234')"
    assert token.value not in repr(token)


def test_a_key_with_escaped_line_breaks_is_loaded() -> None:
    key = load_private_key(pem(KEY).replace("\n", "\\n"))
    assert key.private_numbers() == KEY.private_numbers()


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "not a readable PEM"),
        ("secret-nonsense", "not a readable PEM"),
        (pem(KEY)[:-200], "not a readable PEM"),
        (pem(KEY, BestAvailableEncryption(b"x")), "protected by a password"),
        (pem(ec.generate_private_key(ec.SECP256R1())), "not an RSA key"),
        (pem(rsa.generate_private_key(65537, 1024)), "fewer than 2,048 bits"),  # noqa: S505 - refused
    ],
)
def test_a_bad_key_is_rejected_with_a_reason_and_without_its_text(text: str, why: str) -> None:
    with pytest.raises(ValueError, match=why) as caught:
        AppAuth("1234", text, ManualClock())
    assert not text or text[:40] not in str(caught.value)
    assert caught.value.__suppress_context__ or caught.value.__context__ is None
