"""Registration of the App from a manifest: the form of the web site, the conversion of its code, and the installation.

A form with `manifest` leads back to its `redirect_url` with a code, which is good for one conversion within an hour. The
person at the browser confirms at once what GitHub would ask: the App's registration, and its installation on the
repository that the address preselects. The simulator has one App: a manifest gives it webhook, permissions and events.
"""

import json
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, cast
from urllib.parse import parse_qs, urlencode, urlsplit

from github_sim.bodies.repositories import APP_SLUG, app_json, client_id
from github_sim.rest.exchange import ApiError, ApiRequest, Auth, Reply, Route, validation_error
from github_sim.web.html import concat, page, tag
from github_sim.world.records import Json

if TYPE_CHECKING:
    from github_sim.github import GitHub
    from github_sim.simulation import Simulation

CODE_LIFE = timedelta(hours=1)
LONGEST_NAME = 34


@dataclass(frozen=True)
class ManifestCode:
    manifest: Json
    created_at: datetime


async def register_app(sim: "Simulation", request: ApiRequest) -> Reply:
    """The form that a browser posts, from whatever page."""
    organization = request.params.get("org")
    if organization is not None and organization.lower() not in sim.world.accounts:
        raise ApiError(404, "Not Found")
    manifest = _read_manifest(request.body)
    code = f"{sim.rng.getrandbits(160):040x}"
    sim.manifest_codes[code] = ManifestCode(manifest, sim.clock.now())
    sim.webhook_url = manifest["hook_attributes"]["url"]
    sim.webhooks.secret = f"{sim.rng.getrandbits(160):040x}"
    sim.app_permissions = dict(manifest.get("default_permissions", {}))
    sim.app_events = tuple(manifest.get("default_events", ()))
    await cast("GitHub", sim).ping()
    state = {"state": request.query["state"]} if "state" in request.query else {}
    location = f"{manifest['redirect_url']}?{urlencode({'code': code, **state})}"
    return Reply(302, headers={"location": location}, raw=b"", media="text/html")


def _read_manifest(body: bytes) -> Json:
    form = parse_qs(body.decode("utf-8", "replace"))
    try:
        manifest = json.loads(form["manifest"][0])
    except (KeyError, ValueError):
        raise ApiError(422, "The manifest is not JSON") from None
    if not isinstance(manifest, dict):
        raise ApiError(422, "The manifest is not an object")
    name = manifest.get("name")
    if not isinstance(name, str) or not 1 <= len(name) <= LONGEST_NAME:
        raise validation_error("App", "name", f"Name is too long (maximum is {LONGEST_NAME} characters)")
    for address in (manifest.get("url"), manifest.get("redirect_url"), _hook(manifest)):
        if urlsplit(str(address)).scheme not in {"http", "https"}:
            raise validation_error("App", "url", f"{address} is not a valid URL")
    return manifest


def _hook(manifest: Json) -> object:
    hook = manifest.get("hook_attributes")
    return hook.get("url") if isinstance(hook, dict) else None


async def convert_manifest(sim: "Simulation", request: ApiRequest) -> Reply:
    """Whoever has the code gets the App's key: there is no other authentication."""
    known = sim.manifest_codes.pop(request.params["code"], None)
    if known is None or sim.clock.now() - known.created_at > CODE_LIFE:
        raise ApiError(404, "Not Found")
    own = app_json(sim.base_url, sim.world, sim.app_id, sim.app_permissions, sim.app_events)
    secrets = {
        "client_id": client_id(sim.app_id),
        "client_secret": f"{sim.rng.getrandbits(160):040x}",
        "webhook_secret": sim.webhooks.secret,
        "pem": sim.private_key_pem,
    }
    return Reply(201, {**own, **secrets})


async def install_preselected(sim: "Simulation", request: ApiRequest) -> Reply:
    repository = sim.world.repositories.get(int(request.query.get("repository_ids[]", "0")))
    if repository is None:
        raise ApiError(404, "Not Found")
    if sim.world.installation_of(repository) is None:
        await cast("GitHub", sim).install(repository.full_name)
    said = tag("p", "The App is installed on ", tag("code", repository.full_name), ".")
    return page("Installed", concat(tag("h1", "Installed"), said))


ROUTES = (
    Route("POST", "/settings/apps/new", register_app, Auth.OPEN),
    Route("POST", "/organizations/{org}/settings/apps/new", register_app, Auth.OPEN),
    Route("POST", "/app-manifests/{code}/conversions", convert_manifest, Auth.OPEN),
    Route("GET", f"/apps/{APP_SLUG}/installations/new/permissions", install_preselected, Auth.OPEN),
)
