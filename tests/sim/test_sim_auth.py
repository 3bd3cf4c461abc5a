from collections.abc import Awaitable, Callable

import httpx
import jwt
import pytest

from github_sim.clock import ManualClock
from github_sim.github import GitHub
from github_sim.oidc.signing import rsa_key

AppAuth = Callable[..., dict[str, str]]
TokenFor = Callable[..., Awaitable[dict[str, str]]]
DISPATCH = {"event_type": "push", "client_payload": {}}


async def test_the_app_is_authenticated_by_its_jwt(
    api: httpx.AsyncClient, app_auth: AppAuth, github: GitHub
) -> None:
    assert (await api.get("/app", headers=app_auth())).json()["id"] == github.app_id
    assert (await api.get("/app", headers=app_auth(iss=github.client_id))).status_code == 200


@pytest.mark.parametrize(
    "claims", [{"exp": 1}, {"iss": "1"}, {"exp": 2**33}, {"iat": 2**33}, {"iat": "soon"}, {"exp": None}]
)
async def test_an_invalid_app_jwt_is_refused(
    api: httpx.AsyncClient, app_auth: AppAuth, claims: dict[str, object]
) -> None:
    answer = await api.get("/app", headers=app_auth(**claims))
    assert answer.status_code == 401
    assert answer.json()["status"] == "401"


async def test_the_private_key_is_a_valid_pem(api: httpx.AsyncClient, github: GitHub) -> None:
    now = int(github.clock.now().timestamp())
    claims = {"iat": now, "exp": now + 60, "iss": str(github.app_id)}
    token = jwt.encode(claims, github.private_key_pem, algorithm="RS256")
    assert (await api.get("/app", headers={"authorization": f"Bearer {token}"})).status_code == 200


async def test_an_app_jwt_of_another_key_is_refused(api: httpx.AsyncClient, github: GitHub) -> None:
    now = int(github.clock.now().timestamp())
    claims = {"iat": now, "exp": now + 60, "iss": str(github.app_id)}
    forged = jwt.encode(claims, rsa_key("stranger"), algorithm="RS256")
    answer = await api.get("/app", headers={"authorization": f"Bearer {forged}"})
    assert answer.status_code == 401


async def test_a_token_is_long_and_expires_after_an_hour(
    api: httpx.AsyncClient, token_for: TokenFor, clock: ManualClock
) -> None:
    auth = await token_for("acme/backend")
    assert auth["authorization"].startswith("Bearer ghs_")
    assert len(auth["authorization"]) == len("Bearer ") + 520
    clock.advance(3599)
    assert (await api.get("/repos/acme/backend", headers=auth)).status_code == 200
    clock.advance(1)
    assert (await api.get("/repos/acme/backend", headers=auth)).status_code == 401


async def test_a_token_reaches_only_its_repositories(
    api: httpx.AsyncClient, token_for: TokenFor, github: GitHub
) -> None:
    other = github.create_repository("acme/other")
    auth = await token_for("acme/backend", repository_ids=[other.id])
    listed = (await api.get("/installation/repositories", headers=auth)).json()
    assert [each["full_name"] for each in listed["repositories"]] == ["acme/other"]
    assert (await api.post("/repos/acme/backend/dispatches", json=DISPATCH, headers=auth)).status_code == 404
    assert (await api.post("/repos/acme/other/dispatches", json=DISPATCH, headers=auth)).status_code == 204


async def test_a_token_has_only_its_requested_permissions(
    api: httpx.AsyncClient, token_for: TokenFor
) -> None:
    auth = await token_for("acme/backend", permissions={"contents": "read"})
    answer = await api.post("/repos/acme/backend/dispatches", json=DISPATCH, headers=auth)
    assert (answer.status_code, answer.json()["message"]) == (403, "Resource not accessible by integration")


@pytest.mark.parametrize(
    "body",
    [{"repository_ids": [1]}, {"repositories": ["none"]}, {"permissions": {"administration": "write"}}],
)
async def test_a_token_cannot_exceed_its_installation(
    api: httpx.AsyncClient, app_auth: AppAuth, github: GitHub, body: dict[str, object]
) -> None:
    number = github.installation("acme/backend").id
    answer = await api.post(f"/app/installations/{number}/access_tokens", json=body, headers=app_auth())
    assert answer.status_code == 422


async def test_suspension_and_removal_invalidate_the_tokens(
    api: httpx.AsyncClient, token_for: TokenFor, github: GitHub
) -> None:
    auth = await token_for("acme/backend")
    await github.suspend_installation("acme/backend")
    assert (await api.get("/repos/acme/backend", headers=auth)).status_code == 403
    await github.unsuspend_installation("acme/backend")
    assert (await api.get("/repos/acme/backend", headers=auth)).status_code == 200
    await github.uninstall("acme/backend")
    assert (await api.get("/repos/acme/backend", headers=auth)).status_code == 401


async def test_a_private_repository_is_hidden_from_other_installations(
    api: httpx.AsyncClient, token_for: TokenFor, github: GitHub
) -> None:
    github.create_repository("secret/thing", private=True)
    auth = await token_for("acme/backend")
    assert (await api.get("/repos/secret/thing", headers=auth)).status_code == 404
    own = await token_for("secret/thing")
    assert (await api.get("/repos/secret/thing", headers=own)).json()["private"] is True
