"""The simulated issuers of other CIs: their documents, their keys, and the claims that each really signs."""

from typing import Any

import httpx
import jwt
import pytest

from github_sim.github import GitHub, HostileToken
from github_sim.oidc.github_actions import hostile_token
from github_sim.oidc.other_cis import OtherIssuer

AUDIENCE = "crcr-test"
NAMES = ("buildkite", "gitlab", "circleci", "generic")
KEYS_AT = {
    "buildkite": "/_buildkite/.well-known/jwks",
    "gitlab": "/_gitlab/oauth/discovery/keys",
    "circleci": "/.well-known/jwks-pub.json",
    "generic": "/_generic/.well-known/jwks",
}


def unverified_claims(token: str) -> dict[str, Any]:
    token_claims: dict[str, Any] = jwt.decode(token, options={"verify_signature": False})
    return token_claims


async def verified_claims(api: httpx.AsyncClient, issuer: OtherIssuer, token: str) -> dict[str, Any]:
    """Verify a token with the issuer's documents over HTTP only, and return its claims."""
    document = (await api.get(f"{issuer.url}/.well-known/openid-configuration")).raise_for_status().json()
    assert document["issuer"] == issuer.url
    keys = jwt.PyJWKSet.from_dict((await api.get(document["jwks_uri"])).raise_for_status().json())
    key = keys[jwt.get_unverified_header(token)["kid"]]
    quiet: Any = {"verify_exp": False, "verify_nbf": False, "verify_iat": False}
    token_claims: dict[str, Any] = jwt.decode(
        token, key, algorithms=["RS256"], audience=AUDIENCE, options=quiet
    )
    return token_claims


@pytest.mark.parametrize("name", NAMES)
async def test_a_token_is_verified_with_the_documents_of_its_issuer(
    github: GitHub, api: httpx.AsyncClient, name: str
) -> None:
    issuer = github.others[name]
    claims = await verified_claims(api, issuer, issuer.token(AUDIENCE))
    assert claims["iss"] == issuer.url
    assert issuer.jwks_url.endswith(KEYS_AT[name])
    github.finish()


@pytest.mark.parametrize("name", NAMES)
async def test_a_rotated_key_is_published_and_a_retired_one_is_removed(
    github: GitHub, api: httpx.AsyncClient, name: str
) -> None:
    issuer = github.others[name]
    old = issuer.token(AUDIENCE)
    issuer.rotate()
    await verified_claims(api, issuer, issuer.token(AUDIENCE))
    await verified_claims(api, issuer, old)
    issuer.rotate(retire_old=True)
    with pytest.raises(KeyError):
        await verified_claims(api, issuer, old)


def test_no_two_issuers_share_a_key(github: GitHub) -> None:
    published = [key["n"] for each in github.others.values() for key in each.jwks()["keys"]]
    published += [key["n"] for key in github.issuer.jwks()["keys"]]
    assert len(set(published)) == len(published) == 5


def test_buildkite_signs_ids_only_on_request_and_never_a_jti(github: GitHub) -> None:
    plain = github.buildkite.claims(AUDIENCE)
    assert not {"jti", "organization_id", "pipeline_id", "build_tag"} & set(plain)
    assert plain["build_number"] == 1417
    with_ids = github.buildkite.claims(AUDIENCE, wanted=("organization_id", "pipeline_id"))
    assert with_ids["pipeline_id"] == github.buildkite.pipeline_id
    assert plain["exp"] - plain["iat"] == 300


def test_gitlab_claims_are_strings_and_valid_as_long_as_a_job(github: GitHub) -> None:
    claims = github.gitlab.claims(AUDIENCE)
    numbers = {name for name, value in claims.items() if not isinstance(value, str)}
    assert numbers == {"iat", "nbf", "exp", "runner_id"}
    assert claims["ref_protected"] == "true"
    assert claims["exp"] - claims["iat"] == 3600


def test_circleci_has_its_own_claim_names_and_no_jti(github: GitHub) -> None:
    claims = github.circleci.claims(AUDIENCE, project_id="other", ssh_rerun=None)
    assert claims["oidc.circleci.com/project-id"] == "other"
    assert claims["sub"].startswith(f"org/{github.circleci.organization_id}/project/other/user/")
    assert not {"jti", "nbf", "project_id", "oidc.circleci.com/ssh-rerun"} & set(claims)


@pytest.mark.parametrize("name", NAMES)
def test_a_claim_can_be_replaced_or_omitted(github: GitHub, name: str) -> None:
    claims = unverified_claims(github.others[name].token(AUDIENCE, iat=..., exp=None, extra="more"))
    assert (claims["extra"], {"iat", "exp"} & set(claims)) == ("more", set())


def test_the_token_of_a_forks_build_differs_in_one_claim(github: GitHub) -> None:
    buildkite = unverified_claims(github.buildkite.fork_token(AUDIENCE))
    assert (buildkite["pipeline_slug"], buildkite["build_branch"]) == ("backend", "mallory:main")
    gitlab = unverified_claims(github.gitlab.fork_token(AUDIENCE))
    assert (gitlab["project_path"], gitlab["job_project_path"]) == ("mallory/backend", "acme/backend")
    circleci = unverified_claims(github.circleci.fork_token(AUDIENCE))
    assert circleci["oidc.circleci.com/project-id"] == github.circleci.project_id
    assert circleci["oidc.circleci.com/vcs-origin"] == "github.com/mallory/backend"


def test_hostile_tokens_can_be_made_for_any_issuer(github: GitHub) -> None:
    issuer = github.circleci
    token = hostile_token(issuer, HostileToken.ALG_NONE, issuer.claims(AUDIENCE), github.clock.now())
    assert jwt.get_unverified_header(token)["alg"] == "none"
