"""The registration of the App from a manifest: form, code, conversion, installation."""

import json
from typing import Any
from urllib.parse import parse_qs, urlsplit

import httpx
import pytest

from github_sim.clock import ManualClock
from github_sim.github import GitHub

MANIFEST: dict[str, Any] = {
    "name": "relay",
    "url": "https://relay.test",
    "hook_attributes": {"url": "http://relay.test/github/webhook"},
    "redirect_url": "http://127.0.0.1:4321/created",
    "default_permissions": {"metadata": "read", "contents": "write"},
    "default_events": ["push"],
}


async def post_form(
    api: httpx.AsyncClient, path: str = "/settings/apps/new", **changed: Any
) -> httpx.Response:
    form = {"manifest": json.dumps({**MANIFEST, **changed})}
    return await api.post(path, params={"state": "abc"}, data=form)


async def new_code(api: httpx.AsyncClient) -> str:
    return parse_qs(urlsplit((await post_form(api)).headers["location"]).query)["code"][0]


@pytest.mark.parametrize("path", ["/settings/apps/new", "/organizations/org/settings/apps/new"])
async def test_the_form_redirects_back_with_a_code_and_the_state(api: httpx.AsyncClient, path: str) -> None:
    answer = await post_form(api, path)
    location = urlsplit(answer.headers["location"])
    assert (answer.status_code, location.netloc, location.path) == (302, "127.0.0.1:4321", "/created")
    assert parse_qs(location.query)["state"] == ["abc"]


async def test_a_code_can_be_converted_once_into_the_app_with_its_permissions_and_events(
    github: GitHub, api: httpx.AsyncClient, app_auth: Any
) -> None:
    code = await new_code(api)
    answer = await api.post(f"/app-manifests/{code}/conversions")
    body = answer.json()
    assert (answer.status_code, body["id"], body["pem"]) == (201, github.app_id, github.private_key_pem)
    assert body["webhook_secret"] == github.webhook_secret
    known = (await api.get("/app", headers=app_auth())).json()
    assert (known["permissions"], known["events"]) == (MANIFEST["default_permissions"], ["push"])
    assert [each.event for each in github.deliveries()] == ["ping"]
    assert (await api.post(f"/app-manifests/{code}/conversions")).status_code == 404


async def test_a_code_expires_after_an_hour(api: httpx.AsyncClient, clock: ManualClock) -> None:
    code = await new_code(api)
    clock.advance(3601)
    assert (await api.post(f"/app-manifests/{code}/conversions")).status_code == 404


@pytest.mark.parametrize(
    ("path", "changed", "status"),
    [
        ("/settings/apps/new", {"name": "x" * 35}, 422),
        ("/settings/apps/new", {"redirect_url": "nowhere"}, 422),
        ("/settings/apps/new", {"hook_attributes": {}}, 422),
        ("/organizations/nobody/settings/apps/new", {}, 404),
    ],
)
async def test_a_manifest_that_github_would_refuse_is_refused(
    api: httpx.AsyncClient, path: str, changed: dict[str, Any], status: int
) -> None:
    assert (await post_form(api, path, **changed)).status_code == status


async def test_the_preselected_repository_is_installed(github: GitHub, api: httpx.AsyncClient) -> None:
    repository = github.create_repository("org/second", installed=False)
    path = "/apps/crcr-simulated/installations/new/permissions"
    query = {"repository_ids[]": str(repository.id)}
    page = await api.get(path, params=query, headers={"accept": "text/html"})
    assert "is installed on" in page.text
    assert github.world.installation_of(repository) is not None
    assert (await api.get(path, params={"repository_ids[]": "1"})).status_code == 404
    github.finish()
