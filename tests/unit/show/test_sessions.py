"""Sessions: what a cookie proves, and what ends it."""

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


def sessions(
    *tokens: NamedToken, clock: ManualClock, secret: bytes = SECRET, secure: bool = False
) -> Sessions:
    return Sessions(TokenStore(tokens), secret=secret, clock=clock, secure=secure)


def unpacked(cookie: str) -> dict[str, object]:
    body = cookie.partition(".")[0]
    found = json.loads(base64.urlsafe_b64decode(body + "=" * (-len(body) % 4)))
    assert isinstance(found, dict)
    return found


def packed(facts: object) -> str:
    return base64.urlsafe_b64encode(json.dumps(facts).encode()).rstrip(b"=").decode()


def test_a_session_names_its_holder_on_every_replica() -> None:
    clock = ManualClock()
    cookie = sessions(ANN, BOB, clock=clock).create(BOB)
    found = sessions(BOB, ANN, clock=clock).read(cookie)
    assert found is not None
    assert (found.holder.name, found.holder.admin) == ("bob", False)
    assert "token" not in cookie
    assert BOB.digest not in json.dumps(unpacked(cookie))


def test_a_session_ends_after_twelve_hours_to_the_second() -> None:
    clock = ManualClock()
    here = sessions(ANN, clock=clock)
    cookie = here.create(ANN)
    clock.advance(LIFE.total_seconds() - 1)
    assert here.read(cookie) is not None
    clock.advance(1)
    assert here.read(cookie) is None


def test_two_sessions_of_one_token_have_forms_of_their_own() -> None:
    here = sessions(ANN, clock=ManualClock())
    first, second = here.read(here.create(ANN)), here.read(here.create(ANN))
    assert first is not None
    assert second is not None
    assert first.csrf != second.csrf


def test_the_field_of_a_form_is_no_session_and_no_signature_of_one() -> None:
    here = sessions(ANN, clock=ManualClock())
    cookie = here.create(ANN)
    session = here.read(cookie)
    assert session is not None
    assert session.csrf not in cookie
    assert here.read(f"{cookie.partition('.')[0]}.{session.csrf}") is None


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
def test_a_session_ends_with_its_token(now_known: tuple[NamedToken, ...]) -> None:
    clock = ManualClock()
    cookie = sessions(ANN, BOB, clock=clock).create(ANN)
    assert sessions(*now_known, clock=clock).read(cookie) is None


def test_another_webhook_secret_ends_all_sessions() -> None:
    clock = ManualClock()
    cookie = sessions(ANN, clock=clock).create(ANN)
    assert sessions(ANN, clock=clock, secret=b"changed").read(cookie) is None


@pytest.mark.parametrize(
    "change",
    [{"name": "ann"}, {"role": "admin"}, {"expires": 2**40}, {"issued": 0}, {"nonce": "mine"}, {"more": 1}],
    ids=lambda change: next(iter(change)),
)
def test_a_cookie_that_was_changed_is_nobodys(change: dict[str, object]) -> None:
    here = sessions(ANN, BOB, clock=ManualClock())
    cookie = here.create(BOB)
    signature = cookie.partition(".")[2]
    assert here.read(f"{packed({**unpacked(cookie), **change})}.{signature}") is None


def test_a_session_from_the_future_does_not_count() -> None:
    ahead, behind = ManualClock(), ManualClock()
    ahead.advance(3600)
    assert sessions(ANN, clock=behind).read(sessions(ANN, clock=ahead).create(ANN)) is None


@pytest.mark.parametrize(
    "forged",
    [
        "",
        ".",
        "x",
        "a.b",
        "é.é",
        "\udcff.x",
        packed({"name": "ann"}) + ".",
        packed({"name": "ann"}) + "." + "A" * 43,
        packed([1]) + ".x",
        packed("ann") + ".x",
        packed({"name": {"a": 1}}) + ".x",
        "[" * 900,
        base64.urlsafe_b64encode(b"[" * 700).decode() + ".x",
        "A" * 100_000,
    ],
)
def test_nonsense_is_nobody(forged: str) -> None:
    assert sessions(ANN, clock=ManualClock()).read(forged) is None


def test_the_cookie_is_out_of_reach_of_scripts_and_other_sites() -> None:
    plain, secure = (sessions(ANN, clock=ManualClock(), secure=secure) for secure in (False, True))
    assert plain.set_cookie("v") == "crcr_session=v; Max-Age=43200; Path=/; HttpOnly; SameSite=Strict"
    assert secure.set_cookie("v").startswith("__Host-crcr_session=v; ")
    assert secure.set_cookie("v").endswith("; Secure")
    assert secure.end_cookie() == "__Host-crcr_session=; Max-Age=0; Path=/; HttpOnly; SameSite=Strict; Secure"


def test_a_token_is_known_whole_and_by_its_hash_only() -> None:
    tokens = TokenStore((ANN, BOB))
    assert tokens.find_holder("ann's token") == ANN
    for wrong in ("", "ann's toke", "ann's token ", ANN.digest, f"sha256:{ANN.digest}", "ann", "x" * 100_000):
        assert tokens.find_holder(wrong) is None
    assert TokenStore((make_named_token("ann", "x" * 600),)).find_holder("x" * 600) is None
