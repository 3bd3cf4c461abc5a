"""Sends webhooks as GitHub does: signed, once, without order or retry, and logged for the App.

The log has one line per attempt; a redelivery is a new line with the same GUID. Webhook faults are applied before
sending.
"""

import asyncio
import hashlib
import hmac
import json
import random
import uuid
from collections.abc import Callable
from datetime import timedelta
from typing import Literal
from urllib.parse import urlencode

import httpx

from github_sim.world.faults import WebhookFate, WebhookFaults
from github_sim.world.records import Json, WebhookDelivery
from github_sim.world.world import World

TIME_OUT_S = 10.0
KEPT = timedelta(days=3)


class Webhooks:
    def __init__(self, world: World, faults: WebhookFaults, client: Callable[[], httpx.AsyncClient]) -> None:
        self._world = world
        self._faults = faults
        self._client = client
        self.url: str | None = None
        self.secret = ""
        self.hook_id = 512_403_118
        self.app_id = 0
        self.content_type: Literal["json", "form"] = "json"
        self.held: list[WebhookDelivery] = []

    async def emit(
        self,
        event: str,
        body: Json,
        *,
        installation_id: int | None = None,
        repository_id: int | None = None,
        guid: str | None = None,
        rng: random.Random | None = None,
    ) -> WebhookDelivery:
        """Build one delivery and give it its fate; the returned entry of the log has the outcome."""
        payload = json.dumps(body, separators=(",", ":"), ensure_ascii=False).encode()
        chance = rng or self._world.rng
        guid = guid or str(uuid.UUID(int=chance.getrandbits(128), version=4))
        delivery = WebhookDelivery(
            id=self._world.next_id("delivery", chance),
            guid=guid,
            event=event,
            action=body.get("action"),
            delivered_at=self._world.now(),
            payload=payload,
            headers=self.headers(event, guid, payload),
            installation_id=installation_id,
            repository_id=repository_id,
        )
        await self._apply_fault(delivery, self._faults.fate(event))
        return delivery

    def headers(self, event: str, guid: str, payload: bytes) -> dict[str, str]:
        """The headers of a webhook with this payload; the signature is over the body as it is sent."""
        digest = hmac.new(self.secret.encode(), self._body(payload), hashlib.sha256).hexdigest()
        return {
            "User-Agent": "GitHub-Hookshot/crcrsim",
            "Accept": "*/*",
            "Content-Type": "application/json"
            if self.content_type == "json"
            else "application/x-www-form-urlencoded",
            "X-GitHub-Event": event,
            "X-GitHub-Delivery": guid,
            "X-GitHub-Hook-ID": str(self.hook_id),
            "X-GitHub-Hook-Installation-Target-ID": str(self.app_id),
            "X-GitHub-Hook-Installation-Target-Type": "integration",
            "X-Hub-Signature-256": f"sha256={digest}",
        }

    def _body(self, payload: bytes) -> bytes:
        return payload if self.content_type == "json" else urlencode({"payload": payload}).encode()

    async def redeliver(self, former: WebhookDelivery) -> WebhookDelivery:
        again = self._copy(former)
        await self._send(again)
        return again

    async def release(self, order: list[int] | None = None) -> list[WebhookDelivery]:
        """Send what was held, in the given order of positions (default: as it happened)."""
        waiting, self.held = self.held, []
        chosen = [waiting[position] for position in order] if order is not None else waiting
        for delivery in chosen:
            await self._send(delivery)
        return chosen

    def log(self) -> list[WebhookDelivery]:
        """The App's delivery log, newest first, as far back as GitHub keeps it."""
        oldest = self._world.now() - KEPT
        return [delivery for delivery in reversed(self._world.deliveries) if delivery.delivered_at >= oldest]

    async def _apply_fault(self, delivery: WebhookDelivery, fate: WebhookFate) -> None:
        if fate is WebhookFate.HOLD:
            self.held.append(delivery)
            return
        if fate is WebhookFate.LOSE:
            self._world.deliveries.append(delivery)
            _failed(delivery, 502, "failed to connect to host")
            return
        await self._send(delivery)
        if fate is WebhookFate.DUPLICATE:
            await self.redeliver(delivery)

    def _copy(self, former: WebhookDelivery) -> WebhookDelivery:
        return WebhookDelivery(
            id=self._world.next_id("delivery"),
            guid=former.guid,
            event=former.event,
            action=former.action,
            delivered_at=self._world.now(),
            payload=former.payload,
            headers=self.headers(former.event, former.guid, former.payload),
            installation_id=former.installation_id,
            repository_id=former.repository_id,
            redelivery=True,
        )

    async def _send(self, delivery: WebhookDelivery) -> None:
        delivery.delivered_at = self._world.now()
        self._world.deliveries.append(delivery)
        if self.url is None:
            _failed(delivery, 502, "failed to connect to host")
            return
        started = asyncio.get_running_loop().time()
        try:
            answer = await self._client().post(
                self.url, content=self._body(delivery.payload), headers=delivery.headers, timeout=TIME_OUT_S
            )
        except httpx.TimeoutException:
            _failed(delivery, 504, "timed out")
        except httpx.TransportError:
            _failed(delivery, 502, "failed to connect to host")
        else:
            _answered(delivery, answer)
        delivery.duration_s = round(asyncio.get_running_loop().time() - started, 2)


def _failed(delivery: WebhookDelivery, status_code: int, status: str) -> None:
    delivery.status_code, delivery.status = status_code, status


def _answered(delivery: WebhookDelivery, answer: httpx.Response) -> None:
    delivery.status_code = answer.status_code
    delivery.status = "OK" if answer.is_success else f"Invalid HTTP Response: {answer.status_code}"
    delivery.answer_headers = dict(answer.headers)
    delivery.answer_body = answer.text
