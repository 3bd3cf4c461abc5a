"""Fault 25: only a token that a trusted issuer signed for the relay, and that is valid now, becomes an identity."""

import base64
import hashlib
import hmac
import json
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.padding import PKCS1v15
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPrivateKey, generate_private_key
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from jwt.algorithms import RSAAlgorithm

from crcr.decide.model import RepoName
from crcr.decide.oidc.identity import Identity, IssuerKind
from crcr.errors import CrcrError, KeysUnavailable, NotAuthentic, NotRegistered
from crcr.receive.oidc.issuers import GITHUB_ACTIONS, TrustedIssuer, complete_issuer, issuer_table
from crcr.receive.oidc.jwks import KeyCache
from crcr.receive.oidc.verifier import MAX_TOKEN_BYTES, OidcVerifier
from support.clock import ManualClock

AUDIENCE = "crcr-relay"
OTHER_AUDIENCE = "https://relay.example"
START = datetime(2026, 1, 1, tzinfo=UTC)
NOW = int(START.timestamp())
KEY = generate_private_key(public_exponent=65537, key_size=2048)
OTHER_KEY = generate_private_key(public_exponent=65537, key_size=2048)
HEADER = {"typ": "JWT", "alg": "RS256", "kid": "k1"}
CLAIMS: dict[str, Any] = {
    "iss": GITHUB_ACTIONS,
    "aud": AUDIENCE,
    "iat": NOW,
    "nbf": NOW - 300,
    "exp": NOW + 300,
    "sub": "repo:Ascend/pytorch:ref:refs/heads/main",
    "repository": "Ascend/pytorch",
    "repository_id": "101",
    "repository_owner_id": "202",
    "run_id": "303",
    "run_attempt": "2",
    "check_run_id": "404",
    "event_name": "repository_dispatch",
    "repository_visibility": "public",
    "workflow_ref": "Ascend/pytorch/.github/workflows/ci.yml@refs/heads/main",
}


def b64(raw: bytes) -> str:
    return base64.urlsafe_b64encode(raw).rstrip(b"=").decode()


def rs256(data: bytes, key: RSAPrivateKey = KEY) -> bytes:
    return key.sign(data, PKCS1v15(), SHA256())


def hs256_with_public_pem(data: bytes) -> bytes:
    pem = KEY.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    return hmac.digest(pem, data, hashlib.sha256)


def sign_raw(header: bytes, claims: bytes, sign: Callable[[bytes], bytes] = rs256) -> str:
    content = f"{b64(header)}.{b64(claims)}"
    return f"{content}.{b64(sign(content.encode()))}"


def token(
    *, header: dict[str, Any] | None = None, sign: Callable[[bytes], bytes] = rs256, **claims: Any
) -> str:
    """Sign the valid claims, with the given ones in their place; an Ellipsis removes a claim."""
    kept = {name: value for name, value in {**CLAIMS, **claims}.items() if value is not ...}
    return sign_raw(json.dumps(HEADER | (header or {})).encode(), json.dumps(kept).encode(), sign)


def token_with(member: bytes) -> str:
    """Sign the valid claims with one more member, written as it is: of two equal names the last counts."""
    return sign_raw(json.dumps(HEADER).encode(), json.dumps(CLAIMS).encode()[:-1] + b"," + member + b"}")


def jwks(**keys: RSAPrivateKey) -> bytes:
    listed = [RSAAlgorithm.to_jwk(key.public_key(), as_dict=True) | {"kid": kid} for kid, key in keys.items()]
    return json.dumps({"keys": listed}).encode()


@dataclass
class VerifierSetup:
    """A verifier over the real key cache; every issuer's endpoint returns `published`."""

    published: bytes | None = field(default_factory=lambda: jwks(k1=KEY))
    issuers: tuple[TrustedIssuer, ...] = ()
    max_proofs: int = 10
    clock: ManualClock = field(default_factory=lambda: ManualClock(START))
    fetched: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        keys = KeyCache(self._fetch, self.clock)
        self.verifier = OidcVerifier(
            issuer_table(self.issuers),
            (AUDIENCE, OTHER_AUDIENCE),
            keys,
            self.clock,
            max_proofs=self.max_proofs,
        )

    async def _fetch(self, url: str) -> bytes:
        self.fetched.append(url)
        if self.published is None:
            raise KeysUnavailable
        return self.published

    async def refusal(self, unverified_token: str) -> CrcrError:
        with pytest.raises(CrcrError) as caught:
            await self.verifier.verify(unverified_token)
        return caught.value


async def test_a_valid_token_becomes_an_identity_of_signed_claims_only() -> None:
    assert await VerifierSetup().verifier.verify(token()) == Identity(
        issuer=GITHUB_ACTIONS,
        kind=IssuerKind.GITHUB,
        repository=RepoName("Ascend/pytorch"),
        repository_id=101,
        owner_id=202,
        run_id="303",
        run_attempt=2,
        check_run_id="404",
        workflow_path=".github/workflows/ci.yml",
        event_name="repository_dispatch",
        expires_at=START + timedelta(minutes=5),
        workflow_from=RepoName("Ascend/pytorch"),
        workflow_at="refs/heads/main",
    )


@pytest.mark.parametrize(
    "claims",
    [
        {"aud": OTHER_AUDIENCE},
        {"aud": [AUDIENCE]},
        {"aud": [AUDIENCE, OTHER_AUDIENCE]},
        {"nbf": ...},
        {"iat": float(NOW), "exp": NOW + 1.5},
        {"iat": NOW + 60, "nbf": NOW + 60},
        {"iat": NOW - 400, "exp": NOW - 59},
        {"iat": NOW - 659, "exp": NOW + 9_000},
        {"sub": ["not", "read"], "jti": 7},
        {"check_run_id": ...},
        {"check_run_id": ""},
        {"workflow_ref": ...},
    ],
    ids=str,
)
async def test_tokens_at_the_limits_of_validity_are_accepted(claims: dict[str, Any]) -> None:
    identity = await VerifierSetup().verifier.verify(token(**claims))
    assert identity.run_id == "303"


HOSTILE: dict[str, tuple[str, str]] = {
    "other audience": (token(aud="somebody-else"), "another audience; expected crcr-relay or https://relay"),
    "audience list with a stranger": (token(aud=[AUDIENCE, "other"]), "expected crcr-relay"),
    "audience list of others": (token(aud=["a", "b"]), "expected crcr-relay"),
    "audience as a number": (token(aud=5), "another audience; expected"),
    "audience list with a number": (token(aud=[AUDIENCE, 5]), "expected crcr-relay"),
    "audience prefix": (token(aud=AUDIENCE[:-1]), "expected crcr-relay"),
    "empty audience": (token(aud=""), "another audience; expected"),
    "no audience": (token(aud=...), "no claim 'aud'"),
    "other issuer": (token(iss="https://evil.example"), "'https://evil.example' is not known"),
    "issuer with a slash more": (token(iss=GITHUB_ACTIONS + "/"), "is not known"),
    "issuer as a list": (token(iss=[GITHUB_ACTIONS]), "not an OIDC token"),
    "no issuer": (token(iss=...), "not an OIDC token"),
    "alg none, unsigned": (token(header={"alg": "none"}, sign=lambda _: b""), "'none'; "),
    "alg None, signed": (token(header={"alg": "None"}), "'None'; "),
    "alg HS256 keyed by the public PEM": (
        token(header={"alg": "HS256"}, sign=hs256_with_public_pem),
        "signs with RS256",
    ),
    "alg RS256 over an HMAC": (token(sign=hs256_with_public_pem), "signature is not by"),
    "alg RS512, not pinned": (token(header={"alg": "RS512"}), "signs with RS256"),
    "alg rs256 in small letters": (token(header={"alg": "rs256"}), "signs with RS256"),
    "alg as a list": (token(header={"alg": ["RS256"]}), "not an OIDC token"),
    "signed by a stranger": (token(sign=lambda data: rs256(data, OTHER_KEY)), "signature is not by"),
    "own key in the header": (
        token(
            header={"jwk": RSAAlgorithm.to_jwk(OTHER_KEY.public_key(), as_dict=True)},
            sign=lambda data: rs256(data, OTHER_KEY),
        ),
        "signature is not by",
    ),
    "unknown kid": (token(header={"kid": "k9"}), "'k9', which"),
    "kid as a path": (token(header={"kid": "../../dev/null"}), "does not publish"),
    "kid of 256 emoji": (token(header={"kid": "\U0001f511" * 256}), "does not publish"),
    "issuer of 500 emoji": (token(iss="\U0001f511" * 500), "is not known"),
    "empty kid": (token(header={"kid": ""}), "not an OIDC token"),
    "kid of 10,000 characters": (token(header={"kid": "k" * 10_000}), "not an OIDC token"),
    "kid as a number": (token(header={"kid": 1}), "not an OIDC token"),
    "critical extension": (token(header={"crit": ["exp"], "exp": 1}), "cannot be used"),
    "detached payload": (token(header={"b64": False, "crit": ["b64"]}), "cannot be used"),
    "expired": (token(iat=NOW - 400, exp=NOW - 60), "expired 60 s ago"),
    "too old, although exp is hours away": (token(iat=NOW - 660, exp=NOW + 9_000), "660 s old"),
    "not yet valid": (token(nbf=NOW + 61), "begins 61 s from now"),
    "issued in the future": (token(iat=NOW + 61), "begins 61 s from now"),
    "ends before it begins": (token(iat=NOW, exp=NOW), "ends before it begins"),
    "no exp": (token(exp=...), "no claim 'exp'"),
    "no iat": (token(iat=...), "no claim 'iat'"),
    "null exp": (token(exp=None), "'exp' must be a time"),
    "bool exp": (token(exp=True), "'exp' must be a time"),
    "bool nbf": (token(nbf=False), "'nbf' must be a time"),
    "null nbf": (token(nbf=None), "'nbf' must be a time"),
    "text exp": (token(exp=str(NOW + 300)), "'exp' must be a time"),
    "NaN exp": (token(exp=float("nan")), "not an OIDC token"),
    "infinite exp": (token(exp=float("inf")), "not an OIDC token"),
    "NaN iat": (token(iat=float("nan")), "not an OIDC token"),
    "exp beyond any float": (token_with(b'"exp":1e999'), "cannot be used"),
    "negative iat": (token(iat=-1), "'iat' must be a time"),
    "exp of 400 digits": (token(exp=10**400), "'exp' must be a time"),
    "exp of 5,000 digits": (token_with(b'"exp":' + b"9" * 5_000), "cannot be used"),
    "exp as a list": (token(exp=[NOW + 300]), "'exp' must be a time"),
    "claims as a list": (sign_raw(json.dumps(HEADER).encode(), b"[]"), "not an OIDC token"),
    "claims not JSON": (sign_raw(json.dumps(HEADER).encode(), b"{"), "not an OIDC token"),
    "claims not UTF-8": (sign_raw(json.dumps(HEADER).encode(), b'{"iss":"\xff"}'), "not an OIDC token"),
    "header nested 2,000 deep": (
        sign_raw(b'{"alg":"RS256","kid":"k1","x":' + b"[" * 2_000 + b"]" * 2_000 + b"}", b"{}"),
        "not an OIDC token",
    ),
    "oversized": (token(padding="x" * MAX_TOKEN_BYTES), "longer than 16,384 bytes"),
    "empty": ("", "not an OIDC token"),
    "garbage": ("garbage", "not an OIDC token"),
    "two parts": ("e30.e30", "not an OIDC token"),
    "four parts": (token() + ".e30", "not an OIDC token"),
    "not ASCII": ("é.é.é", "not an OIDC token"),
    "lone surrogate": ("\ud800.a.b", "not an OIDC token"),
    "control characters": ("\x00.\n.\r", "not an OIDC token"),
    "cut signature": (token(sign=lambda data: rs256(data)[:-9]), "signature is not by"),
    "no signature": (token(sign=lambda _: b""), "signature is not by"),
    "junk in the signature": (token() + "!!!!", "signature is not by"),
    "padded signature": (token() + "==", "signature is not by"),
    "signature in the letters of base64": (
        token().replace("-", "+").replace("_", "/"),
        "signature is not by",
    ),
    "junk in the claims": ("{}.{}!.{}".format(*token().split(".")), "not an OIDC token"),
    "line break in the header": ("{}\n.{}.{}".format(*token().split(".")), "not an OIDC token"),
    "signature moved to other claims": (
        ".".join((*token(run_id="999").split(".")[:2], token().split(".")[2])),
        "signature is not by",
    ),
}


@pytest.mark.parametrize("case", HOSTILE)
async def test_a_hostile_token_is_not_authentic_and_the_error_names_the_failed_check(case: str) -> None:
    unverified_token, reason = HOSTILE[case]
    refusal = await VerifierSetup().refusal(unverified_token)
    assert type(refusal) is NotAuthentic
    assert reason in refusal.detail
    assert refusal.hint


@pytest.mark.parametrize("case", HOSTILE)
async def test_an_error_neither_contains_the_token_nor_grows_with_it(case: str) -> None:
    unverified_token, _ = HOSTILE[case]
    refusal = await VerifierSetup().refusal(unverified_token)
    parts = [part for part in unverified_token.split(".") if len(part) > 20]
    assert not any(part in f"{refusal.detail} {refusal.hint}" for part in parts)
    assert len(refusal.detail) < 600
    assert refusal.detail.isprintable()
    assert refusal.__cause__ is None


REQUIRED = ("repository", "repository_id", "repository_owner_id", "run_id", "run_attempt", "event_name")


@pytest.mark.parametrize("name", REQUIRED)
@pytest.mark.parametrize("value", [..., None, "", 303, -1, True, 3.5, ["303"], {"a": "b"}], ids=str)
async def test_a_required_claim_that_is_missing_or_not_text_is_named_in_the_error(
    name: str, value: Any
) -> None:
    refusal = await VerifierSetup().refusal(token(**{name: value}))
    assert type(refusal) is NotAuthentic
    assert f"claim '{name}'" in refusal.detail


@pytest.mark.parametrize(
    "name", ["repository_id", "repository_owner_id", "run_id", "run_attempt", "check_run_id"]
)
@pytest.mark.parametrize(
    "value",
    ["0", "-303", "+303", "0303", " 303", "303\n", "3.0", "1e3", "0x1", "٣", "9" * 19, "303a"],
    ids=ascii,
)
async def test_an_id_that_is_not_plain_digits_is_named_in_the_error(name: str, value: str) -> None:
    claims: dict[str, Any] = {name: value}
    refusal = await VerifierSetup().refusal(token(**claims))
    assert type(refusal) is NotAuthentic
    assert f"claim '{name}' must be a positive number" in refusal.detail


@pytest.mark.parametrize("repository", ["pytorch", "a/b/c", "a/..", "a/b\n", "<script>/x", "a b/c"])
async def test_a_repository_claim_that_is_not_owner_and_name_is_refused(repository: str) -> None:
    refusal = await VerifierSetup().refusal(token(repository=repository))
    assert refusal.detail == "the claim 'repository' must be owner/name"


@pytest.mark.parametrize(
    ("workflow_ref", "path"),
    [
        ("o/r/.github/workflows/ci.yml@refs/heads/main", ".github/workflows/ci.yml"),
        ("o/r/.github/workflows/a@b.yml@refs/heads/x@refs/y", ".github/workflows/a@b.yml"),
        ("o/r/.github/workflows/ci.yml@" + "a" * 40, ".github/workflows/ci.yml"),
        ("o/r/.github/workflows/ci.yml", None),
        ("nonsense", None),
    ],
)
async def test_the_workflow_path_is_read_from_its_signed_ref(workflow_ref: str, path: str | None) -> None:
    identity = await VerifierSetup().verifier.verify(token(workflow_ref=workflow_ref))
    assert identity.workflow_path == path


async def test_an_enterprise_server_can_be_configured_as_issuer_and_signs_no_check_run() -> None:
    setup = VerifierSetup(
        issuers=(complete_issuer("https://ghe.example/_services/token", IssuerKind.GITHUB),)
    )
    signed = token(iss="https://ghe.example/_services/token", check_run_id=...)
    identity = await setup.verifier.verify(signed)
    assert (identity.kind, identity.check_run_id) == (IssuerKind.GITHUB, None)
    assert setup.fetched == ["https://ghe.example/_services/token/.well-known/jwks"]


ORGANISATION = "https://oidc.circleci.com/org/d1f8a4a3-0f6c-4b3e-9f6d-000000000001"
UNREGISTERED = ("https://agent.buildkite.com", "https://gitlab.com", ORGANISATION, "https://ci.example")
FORGED: dict[str, dict[str, Any]] = {
    "signed by a stranger": {"sign": lambda data: rs256(data, OTHER_KEY)},
    "a key that was never published": {"header": {"kid": "k2"}},
    "another algorithm": {"header": {"alg": "HS256"}, "sign": hs256_with_public_pem},
    "expired": {"iat": NOW - 1200, "nbf": NOW - 1200, "exp": NOW - 600},
    "for another audience": {"aud": "https://somebody.example"},
}


def without_registrations() -> VerifierSetup:
    others = (("https://ci.example", IssuerKind.GENERIC), ("https://gitlab.com", IssuerKind.GITLAB))
    return VerifierSetup(
        issuers=tuple(complete_issuer(url, kind, jwks_url=f"{url}/keys") for url, kind in others)
    )


@pytest.mark.parametrize("issuer", UNREGISTERED)
async def test_an_authentic_token_of_an_unregistered_pipeline_raises_not_registered(issuer: str) -> None:
    setup = without_registrations()
    refusal = await setup.refusal(token(iss=issuer))
    assert type(refusal) is NotRegistered
    assert issuer in refusal.detail
    assert [url.startswith(issuer) for url in setup.fetched] == [True]


@pytest.mark.parametrize("case", FORGED)
@pytest.mark.parametrize("issuer", UNREGISTERED)
async def test_a_forged_token_is_not_authentic_for_registered_and_unregistered_pipelines(
    issuer: str, case: str
) -> None:
    refusal = await without_registrations().refusal(token(iss=issuer, **FORGED[case]))
    assert type(refusal) is NotAuthentic
    assert refusal.hint is not None
    assert "ask the relay's operator to add" not in refusal.hint


@pytest.mark.parametrize(
    "issuer",
    [
        "https://oidc.circleci.com/org/1234",
        f"{ORGANISATION}/../x",
        f"{ORGANISATION}@evil.example",
        ORGANISATION.replace("https://", "https://evil.example/"),
    ],
)
async def test_keys_of_circleci_are_fetched_only_from_an_organisations_own_url(issuer: str) -> None:
    setup = VerifierSetup()
    assert type(await setup.refusal(token(iss=issuer))) is NotAuthentic
    assert setup.fetched == []


async def test_tokens_of_many_unlisted_organisations_cause_one_key_fetch_per_second() -> None:
    setup = VerifierSetup(published=None)
    for number in range(100):
        refusal = await setup.refusal(token(iss=f"{ORGANISATION[:-4]}{number:04}"))
        assert type(refusal) is NotAuthentic
    assert len(setup.fetched) == 1
    setup.clock.advance(1)
    await setup.refusal(token(iss=ORGANISATION))
    assert len(setup.fetched) == 2


async def test_unreadable_keys_raise_keys_unavailable_instead_of_a_verdict() -> None:
    assert type(await VerifierSetup(published=None).refusal(token())) is KeysUnavailable


async def test_a_token_may_be_used_many_times_but_not_after_its_expiry() -> None:
    setup = VerifierSetup()
    first = await setup.verifier.verify(token())
    setup.clock.advance(359)
    assert await setup.verifier.verify(token()) is first
    setup.clock.advance(1)
    assert "expired 60 s ago" in (await setup.refusal(token())).detail


async def test_an_accepted_long_lived_token_expires_at_the_maximum_age() -> None:
    setup = VerifierSetup()
    identity = await setup.verifier.verify(token(exp=NOW + 9_000))
    assert identity.expires_at == START + timedelta(minutes=10)
    setup.clock.advance(660)
    assert "660 s old" in (await setup.refusal(token(exp=NOW + 9_000))).detail


@pytest.mark.parametrize(
    "published", [jwks(k2=OTHER_KEY), jwks(k1=OTHER_KEY)], ids=["kid gone", "kid reused"]
)
async def test_an_accepted_token_becomes_invalid_when_its_key_is_withdrawn(published: bytes) -> None:
    setup = VerifierSetup(
        issuers=(TrustedIssuer(GITHUB_ACTIONS, IssuerKind.GITHUB, "https://keys.example", max_age_s=9_000),)
    )
    good = token(exp=NOW + 9_000)
    await setup.verifier.verify(good)
    setup.clock.advance(3_601)
    setup.published = published
    await setup.verifier.verify(good)  # starts the renewal without waiting for it
    await setup.clock.pass_time(0)
    assert type(await setup.refusal(good)) is NotAuthentic


async def test_the_cache_of_verified_tokens_is_bounded_and_evicts_the_least_recently_used() -> None:
    setup = VerifierSetup(max_proofs=2)
    tokens = [token(run_id=str(number)) for number in (1, 2, 3)]
    first, second = [await setup.verifier.verify(each) for each in tokens[:2]]
    assert await setup.verifier.verify(tokens[0]) is first
    await setup.verifier.verify(tokens[2])
    assert await setup.verifier.verify(tokens[0]) is first
    assert await setup.verifier.verify(tokens[1]) is not second


@pytest.mark.parametrize("audiences", [(), ("",), (AUDIENCE, "")])
def test_a_verifier_without_an_audience_cannot_be_created(audiences: tuple[str, ...]) -> None:
    clock = ManualClock()
    with pytest.raises(ValueError, match="audience"):
        OidcVerifier(issuer_table(), audiences, KeyCache(VerifierSetup()._fetch, clock), clock)


@pytest.mark.parametrize(
    ("url", "algorithms"),
    [
        ("http://keys.example/jwks", ("RS256",)),
        ("file:///etc/passwd", ("RS256",)),
        ("https://", ("RS256",)),
        ("https://[", ("RS256",)),
        ("https://keys.example", ("none",)),
        ("https://keys.example", ("RS256", "HS256")),
        ("https://keys.example", ()),
    ],
)
def test_an_unsafe_issuer_cannot_be_configured(url: str, algorithms: tuple[str, ...]) -> None:
    with pytest.raises(ValueError, match=r"must be"):
        TrustedIssuer("https://ci.example", IssuerKind.GENERIC, url, algorithms)


def test_an_issuer_on_loopback_may_be_configured_without_tls() -> None:
    keys = complete_issuer("http://127.0.0.1:8100", IssuerKind.GITHUB).jwks_url
    assert keys == "http://127.0.0.1:8100/.well-known/jwks"
