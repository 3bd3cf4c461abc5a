"""Fault 64: unauthenticated senders fill the memory for request bodies, and signed webhooks get 503."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from starlette.types import Message

from crcr.receive.http.body import LARGE_PER_ADDRESS
from support.downstream.callbacks import BACKEND, LISTED, post_report
from support.running_relay import UPSTREAM, RunningRelay, running_relay

MIB = 1024 * 1024
FORGED = "sha256=" + "0" * 64
BLANK = b" " * (24 * MIB)
"""Shared by all senders, so that the test itself holds it once."""


class SlowSender:
    """A webhook whose body never ends."""

    def __init__(self, relay: RunningRelay, first: bytes, address: str, *headers: tuple[str, str]) -> None:
        self.body_was_read = False
        self.status: int | None = None
        self._first: list[Message] = [{"type": "http.request", "body": first, "more_body": True}]
        scope = {
            "type": "http",
            "asgi": {"version": "3.0"},
            "http_version": "1.1",
            "method": "POST",
            "scheme": "http",
            "path": "/github/webhook",
            "raw_path": b"/github/webhook",
            "query_string": b"",
            "root_path": "",
            "headers": [(name.lower().encode(), value.encode()) for name, value in headers],
            "client": (address, 4711),
            "server": ("relay.test", 80),
        }
        self.task = asyncio.create_task(relay.app(scope, self._receive, self._send))

    async def _receive(self) -> Message:
        self.body_was_read = True
        return self._first.pop() if self._first else await asyncio.get_running_loop().create_future()

    async def _send(self, message: Message) -> None:
        self.status = message.get("status", self.status)


@asynccontextmanager
async def under_attack(relay: RunningRelay, senders: list[SlowSender]) -> AsyncIterator[None]:
    for _ in range(10):
        await asyncio.sleep(0)
    try:
        yield
    finally:
        for sender in senders:
            sender.task.cancel()
        await asyncio.gather(*(sender.task for sender in senders), return_exceptions=True)
        assert relay.crashes == []


def forged(relay: RunningRelay, size: int, address: str, *more: tuple[str, str]) -> SlowSender:
    return SlowSender(
        relay, BLANK[:size], address, ("X-GitHub-Event", "push"), ("X-Hub-Signature-256", FORGED), *more
    )


async def assert_everything_passes(relay: RunningRelay) -> None:
    """A webhook is accepted and dispatched, its run reports, and a large signed webhook is accepted."""
    pull = await relay.github.open_pr(UPSTREAM)
    assert pull.last_delivery is not None
    assert pull.last_delivery.status_code == 202
    await relay.drain()
    assert (
        await post_report(relay, relay.github.runs(BACKEND)[-1], "build", "in_progress")
    ).status_code == 200
    large = json.dumps({"zen": "x" * (3 * MIB), "hook_id": 1}).encode()
    headers = relay.github.webhooks.headers("ping", "guid-large", large)
    assert (await relay.http.post("/github/webhook", content=large, headers=headers)).status_code == 200


async def test_fault_64_a_request_without_one_well_formed_signature_is_refused_before_its_body(
    tmp_path: Path,
) -> None:
    signatures: list[list[tuple[str, str]]] = [
        [],
        [("X-Hub-Signature-256", "sha256=")],
        [("X-Hub-Signature-256", FORGED + "0")],
        [("X-Hub-Signature", "sha1=" + "0" * 40)],
        [("X-Hub-Signature-256", FORGED), ("X-Hub-Signature-256", FORGED)],
        [("X-Hub-Signature-256", FORGED.upper())],
    ]
    async with running_relay(tmp_path, LISTED, downstreams=(BACKEND,)) as relay:
        senders = [SlowSender(relay, BLANK, "192.0.2.1", *headers) for headers in signatures]
        async with under_attack(relay, senders):
            assert [(sender.status, sender.body_was_read) for sender in senders] == [(401, False)] * 6
            await assert_everything_passes(relay)


async def test_fault_64_large_bodies_from_several_addresses_do_not_block_other_requests(
    tmp_path: Path,
) -> None:
    """Together they would fill the 128 MiB to the last byte."""
    async with running_relay(tmp_path, LISTED, downstreams=(BACKEND,)) as relay:
        senders = [forged(relay, 24 * MIB, f"192.0.2.{number}") for number in range(5)]
        async with under_attack(relay, senders):
            senders.append(forged(relay, 8 * MIB, "192.0.2.9"))
            await assert_everything_passes(relay)
            assert {sender.status for sender in senders} == {None, 503}


async def test_fault_64_the_oldest_slow_small_bodies_are_dropped_for_fast_senders(
    tmp_path: Path,
) -> None:
    async with running_relay(tmp_path, LISTED, downstreams=(BACKEND,)) as relay:
        senders = [forged(relay, MIB // 2, f"192.0.{number}.1") for number in range(256)]
        async with under_attack(relay, senders):
            await assert_everything_passes(relay)
            given_up = [number for number, sender in enumerate(senders) if sender.status == 503]
            assert given_up == list(
                range(len(given_up))
            )  # the longest waiting first, and no more than needed
            assert 0 < len(given_up) < 16


async def test_fault_64_an_address_can_send_four_large_bodies_at_once_also_behind_a_proxy(
    tmp_path: Path,
) -> None:
    proxies: dict[str, Any] = {"CRCR_TRUSTED_PROXIES": "10.0.0.1"}
    async with running_relay(tmp_path, LISTED, downstreams=(BACKEND,), **proxies) as relay:
        announced = ("Content-Length", str(2 * MIB))
        claims = [f"203.0.113.{number}, 198.51.100.7" for number in range(LARGE_PER_ADDRESS + 2)]
        senders = [forged(relay, 1, "10.0.0.1", announced, ("X-Forwarded-For", claim)) for claim in claims]
        senders.append(forged(relay, 1, "10.0.0.1", announced, ("X-Forwarded-For", "198.51.100.8")))
        async with under_attack(relay, senders):
            assert [sender.status for sender in senders] == [None] * LARGE_PER_ADDRESS + [429, 429, None]
            await assert_everything_passes(relay)
