"""Sessions: verification of the cookie, and the events that end a session."""

import base64
import json
from hashlib import sha256

import pytest

from crcr.show.access.sessions import LIFE, NamedToken, Sessions, TokenStore
from support.clock import ManualClock

SECRET = b"the webhook's secret"


def make_named_token(name: str, token: str, *, admin: bool = True) -> NamedToken:
    return NamedToken(name, sha256(token.encode()).hexdigest(), admin)


ANN, BOB = make_named_token("ann", "ann's token"), make_named_token("bob", "bob's token", admin=False)


def make_sessions(
    *tokens: NamedToken, clock: ManualClock, secret: bytes = SECRET, secure: bool = False
) -> Sessions:
    return Sessions(TokenStore(tokens), secret=secret, clock=clock, secure=secure)


def decode_cookie(cookie: str) -> dict[str, object]:
    body = cookie.partition(".")[0]
    payload = json.loads(base64.urlsafe_b64decode(body + "=" * (-len(body) % 4)))
    assert isinstance(payload, dict)
    return payload


def encode_payload(facts: object) -> str:
    return base64.urlsafe_b64encode(json.dumps(facts).encode()).rstrip(b"=").decode()


def test_a_session_identifies_its_holder_on_every_replica() -> None:
    clock = ManualClock()
    cookie = make_sessions(ANN, BOB, clock=clock).create(BOB)
    session = make_sessions(BOB, ANN, clock=clock).read(cookie)
    assert session is not None
    assert (session.holder.name, session.holder.admin) == ("bob", False)
    assert "token" not in cookie
    assert BOB.digest not in json.dumps(decode_cookie(cookie))


def test_a_session_ends_after_twelve_hours_to_the_second() -> None:
    clock = ManualClock()
    sessions = make_sessions(ANN, clock=clock)
    cookie = sessions.create(ANN)
    clock.advance(LIFE.total_seconds() - 1)
    assert sessions.read(cookie) is not None
    clock.advance(1)
    assert sessions.read(cookie) is None


def test_two_sessions_of_one_token_have_different_csrf_tokens() -> None:
    sessions = make_sessions(ANN, clock=ManualClock())
    first, second = (
        sessions.read(sessions.create(ANN)),
        sessions.read(sessions.create(ANN)),
    )
    assert first is not None
    assert second is not None
    assert first.csrf != second.csrf


def test_the_csrf_token_is_not_in_the_cookie_and_does_not_sign_a_session() -> None:
    sessions = make_sessions(ANN, clock=ManualClock())
    cookie = sessions.create(ANN)
    session = sessions.read(cookie)
    assert session is not None
    assert session.csrf not in cookie
    assert sessions.read(f"{cookie.partition('.')[0]}.{session.csrf}") is None


@pytest.mark.parametrize(
    "now_known",
    [
        (BOB,),
        (make_named_token("ann", "another token"), BOB),
        (NamedToken("ann", ANN.digest, admin=False), BOB),
        (NamedToken("anna", ANN.digest, admin=True), BOB),
    ],
    ids=["removed", "made anew", "may only read now", "renamed"],
)
def test_a_session_ends_when_its_token_is_removed_or_changed(now_known: tuple[NamedToken, ...]) -> None:
    clock = ManualClock()
    cookie = make_sessions(ANN, BOB, clock=clock).create(ANN)
    assert make_sessions(*now_known, clock=clock).read(cookie) is None


def test_a_changed_webhook_secret_ends_all_sessions() -> None:
    clock = ManualClock()
    cookie = make_sessions(ANN, clock=clock).create(ANN)
    assert make_sessions(ANN, clock=clock, secret=b"changed").read(cookie) is None


@pytest.mark.parametrize(
    "change",
    [{"name": "ann"}, {"role": "admin"}, {"expires": 2**40}, {"issued": 0}, {"nonce": "mine"}, {"more": 1}],
    ids=lambda change: next(iter(change)),
)
def test_a_cookie_with_changed_contents_is_invalid(change: dict[str, object]) -> None:
    sessions = make_sessions(ANN, BOB, clock=ManualClock())
    cookie = sessions.create(BOB)
    signature = cookie.partition(".")[2]
    assert sessions.read(f"{encode_payload({**decode_cookie(cookie), **change})}.{signature}") is None


def test_a_session_issued_in_the_future_is_invalid() -> None:
    ahead, behind = ManualClock(), ManualClock()
    ahead.advance(3600)
    assert make_sessions(ANN, clock=behind).read(make_sessions(ANN, clock=ahead).create(ANN)) is None


@pytest.mark.parametrize(
    "forged",
    [
        "",
        ".",
        "x",
        "a.b",
        "é.é",
        "\udcff.x",
        encode_payload({"name": "ann"}) + ".",
        encode_payload({"name": "ann"}) + "." + "A" * 43,
        encode_payload([1]) + ".x",
        encode_payload("ann") + ".x",
        encode_payload({"name": {"a": 1}}) + ".x",
        "[" * 900,
        base64.urlsafe_b64encode(b"[" * 700).decode() + ".x",
        "A" * 100_000,
    ],
)
def test_a_malformed_cookie_is_invalid(forged: str) -> None:
    assert make_sessions(ANN, clock=ManualClock()).read(forged) is None


def test_the_cookie_is_http_only_same_site_and_secure_over_https() -> None:
    plain, secure = (make_sessions(ANN, clock=ManualClock(), secure=secure) for secure in (False, True))
    assert plain.set_cookie("v") == "crcr_session=v; Max-Age=43200; Path=/; HttpOnly; SameSite=Strict"
    assert secure.set_cookie("v").startswith("__Host-crcr_session=v; ")
    assert secure.set_cookie("v").endswith("; Secure")
    assert secure.end_cookie() == "__Host-crcr_session=; Max-Age=0; Path=/; HttpOnly; SameSite=Strict; Secure"


def test_a_token_matches_only_as_a_whole_by_its_hash() -> None:
    tokens = TokenStore((ANN, BOB))
    assert tokens.find_holder("ann's token") == ANN
    for wrong in ("", "ann's toke", "ann's token ", ANN.digest, f"sha256:{ANN.digest}", "ann", "x" * 100_000):
        assert tokens.find_holder(wrong) is None
    assert TokenStore((make_named_token("ann", "x" * 600),)).find_holder("x" * 600) is None
