import hashlib
import hmac

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from crcr.errors import BadSignature
from crcr.receive.webhook.signature import require_signature, sign, verify_signature

SECRET = b"It's a Secret to Everybody"
BODY = b"Hello, World!"
VECTOR = "sha256=757107ea0eb2509fc211221cce984b8a37570b6d7586c22c46f4379c8b043e17"


def test_githubs_published_example_is_signed_and_verified() -> None:
    assert sign(SECRET, BODY) == VECTOR
    verify_signature(SECRET, BODY, VECTOR)


@pytest.mark.parametrize(
    "header",
    [
        None,
        "",
        "sha256=",
        VECTOR.removeprefix("sha256="),
        VECTOR.replace("sha256=", "sha1="),
        "sha1=" + hmac.new(SECRET, BODY, hashlib.sha1).hexdigest(),
        VECTOR.upper(),
        VECTOR[:-1],
        VECTOR + "0",
        VECTOR[:-1] + "8",
        " " + VECTOR,
        "sha256=" + "é" * 64,
        "sha256=\ud800",
    ],
)
def test_a_missing_or_wrong_signature_is_refused(header: str | None) -> None:
    with pytest.raises(BadSignature):
        verify_signature(SECRET, BODY, header)


def test_one_changed_byte_of_body_or_secret_is_refused() -> None:
    with pytest.raises(BadSignature):
        verify_signature(SECRET, BODY + b" ", VECTOR)
    with pytest.raises(BadSignature):
        verify_signature(SECRET + b" ", BODY, VECTOR)


def test_an_empty_secret_is_refused() -> None:
    header = "sha256=" + hmac.new(b"", BODY, hashlib.sha256).hexdigest()
    with pytest.raises(ValueError, match="secret is empty"):
        verify_signature(b"", BODY, header)


@settings(deadline=None)
@given(st.binary(min_size=1), st.binary(), st.text())
def test_only_the_exact_signature_is_accepted(secret: bytes, body: bytes, other: str) -> None:
    verify_signature(secret, body, sign(secret, body))
    with pytest.raises(BadSignature):
        verify_signature(secret, body, other)


@pytest.mark.parametrize(
    "headers",
    [
        [],
        [""],
        ["sha256="],
        [VECTOR[:-1]],
        [VECTOR + "0"],
        [VECTOR.upper()],
        [f"{VECTOR}, {VECTOR}"],
        [VECTOR, VECTOR],
    ],
)
def test_a_request_needs_exactly_one_well_formed_signature_header(headers: list[str]) -> None:
    with pytest.raises(BadSignature):
        require_signature(headers)


def test_a_well_formed_signature_is_required_but_not_yet_verified() -> None:
    assert require_signature(["sha256=" + "0" * 64]) == "sha256=" + "0" * 64
