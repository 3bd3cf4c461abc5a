"""REST routes of the App itself: its installations, their tokens, and its webhook delivery log."""

import json
from typing import TYPE_CHECKING

from github_sim.bodies.repositories import app_json, installation_json, repository_json
from github_sim.clock import stamp
from github_sim.rest.exchange import ApiError, ApiRequest, Auth, Reply, Route, paginate
from github_sim.world.records import Installation, Json, WebhookDelivery

if TYPE_CHECKING:
    from github_sim.simulation import Simulation


async def get_app(sim: "Simulation", _request: ApiRequest) -> Reply:
    return Reply(200, app_json(sim.base_url, sim.world, sim.app_id, sim.app_permissions, sim.app_events))


async def get_hook(sim: "Simulation", _request: ApiRequest) -> Reply:
    url, secret = sim.webhook_url or "", "********" if sim.webhooks.secret else ""
    config = {"content_type": sim.webhooks.content_type, "insecure_ssl": "0", "secret": secret, "url": url}
    return Reply(200, config)


async def list_installations(sim: "Simulation", request: ApiRequest) -> Reply:
    installations = list(sim.world.installations.values())
    page, headers = paginate(sim.base_url, request, installations)
    return Reply(
        200, [installation_json(sim.base_url, sim.app_id, installation) for installation in page], headers
    )


def _installation(sim: "Simulation", request: ApiRequest) -> Installation:
    installation = sim.world.installations.get(request.number("installation_id"))
    if installation is None:
        raise ApiError(404, "Not Found")
    return installation


async def get_installation(sim: "Simulation", request: ApiRequest) -> Reply:
    return Reply(200, installation_json(sim.base_url, sim.app_id, _installation(sim, request)))


async def create_token(sim: "Simulation", request: ApiRequest) -> Reply:
    installation = _installation(sim, request)
    if installation.suspended_at is not None:
        raise ApiError(403, "This installation has been suspended")
    token = sim.auth.mint(installation, request.json())
    body: Json = {
        "token": token.token,
        "expires_at": stamp(token.expires_at),
        "permissions": dict(token.permissions),
        "repository_selection": "selected",
    }
    if token.repository_ids is not None:
        chosen = [sim.world.repositories[id] for id in sorted(token.repository_ids)]
        body["repositories"] = [repository_json(sim.base_url, repository) for repository in chosen]
    return Reply(201, body)


async def list_own_repositories(sim: "Simulation", request: ApiRequest) -> Reply:
    token = request.caller.token if request.caller else None
    if token is None:
        raise ApiError(403, "You must authenticate with an installation access token")
    covered = sim.world.installations[token.installation_id].repository_ids
    if token.repository_ids is not None:
        covered = covered & token.repository_ids
    repositories = [sim.world.repositories[id] for id in sorted(covered)]
    page, headers = paginate(sim.base_url, request, repositories)
    bodies = [repository_json(sim.base_url, repository) for repository in page]
    return Reply(200, {"total_count": len(repositories), "repositories": bodies}, headers)


async def list_deliveries(sim: "Simulation", request: ApiRequest) -> Reply:
    """Newest first; the cursor names the last delivery that was shown."""
    deliveries = sim.webhooks.log()
    status = request.query.get("status")
    if status is not None:
        deliveries = [delivery for delivery in deliveries if delivery.ok == (status == "success")]
    cursor = request.query.get("cursor")
    if cursor is not None:
        last = _cursor_id(cursor)
        deliveries = [delivery for delivery in deliveries if delivery.id < last]
    size = request.bounded_int("per_page", 30, 100)
    headers = {}
    if len(deliveries) > size:
        more = f"&status={status}" if status else ""
        after = f"per_page={size}{more}&cursor=v1_{deliveries[size - 1].id}"
        headers["link"] = f'<{sim.base_url}{request.path}?{after}>; rel="next"'
    return Reply(200, [delivery_json(delivery) for delivery in deliveries[:size]], headers)


def _cursor_id(cursor: str) -> int:
    try:
        return int(cursor.removeprefix("v1_"))
    except ValueError:
        raise ApiError(400, "Invalid cursor") from None


def delivery_json(delivery: WebhookDelivery) -> Json:
    return {
        "id": delivery.id,
        "guid": delivery.guid,
        "delivered_at": stamp(delivery.delivered_at),
        "redelivery": delivery.redelivery,
        "duration": delivery.duration_s,
        "status": delivery.status,
        "status_code": delivery.status_code,
        "event": delivery.event,
        "action": delivery.action,
        "installation_id": delivery.installation_id,
        "repository_id": delivery.repository_id,
        "throttled_at": None,
    }


def _delivery(sim: "Simulation", request: ApiRequest) -> WebhookDelivery:
    delivery_id = request.number("delivery_id")
    for delivery in sim.webhooks.log():
        if delivery.id == delivery_id:
            return delivery
    raise ApiError(404, "Not Found")


async def get_delivery(sim: "Simulation", request: ApiRequest) -> Reply:
    delivery = _delivery(sim, request)
    more = {
        "url": "",
        "request": {"headers": delivery.headers, "payload": json.loads(delivery.payload)},
        "response": {"headers": delivery.answer_headers, "payload": delivery.answer_body},
    }
    return Reply(200, {**delivery_json(delivery), **more})


async def redeliver(sim: "Simulation", request: ApiRequest) -> Reply:
    await sim.webhooks.redeliver(_delivery(sim, request))
    return Reply(202, {})


ROUTES = (
    Route("GET", "/app", get_app, Auth.APP),
    Route("GET", "/app/hook/config", get_hook, Auth.APP),
    Route("GET", "/app/installations", list_installations, Auth.APP),
    Route("GET", "/app/installations/{installation_id}", get_installation, Auth.APP),
    Route("POST", "/app/installations/{installation_id}/access_tokens", create_token, Auth.APP),
    Route("GET", "/installation/repositories", list_own_repositories),
    Route("GET", "/app/hook/deliveries", list_deliveries, Auth.APP),
    Route("GET", "/app/hook/deliveries/{delivery_id}", get_delivery, Auth.APP),
    Route("POST", "/app/hook/deliveries/{delivery_id}/attempts", redeliver, Auth.APP),
)
