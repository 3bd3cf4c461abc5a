"""The webhook's response: which requests are accepted or rejected; the handler never calls GitHub."""

import asyncio
import json
from collections.abc import AsyncIterator
from itertools import product
from pathlib import Path
from typing import Any

import httpx
import pytest
from structlog.testing import capture_logs

from crcr.receive.webhook.intake import CAP_BYTES
from github_sim.world.records import WebhookDelivery
from support.github.dispatch_log import BOTH, TWO, dispatched_actions, dispatched_events
from support.published_files import EXAMPLES, example, webhook_examples
from support.running_relay import UPSTREAM, RunningRelay, running_relay

PATH = "/github/webhook"


def answer(delivery: WebhookDelivery | None) -> Any:
    assert delivery is not None
    return json.loads(delivery.answer_body)


async def post(
    relay: RunningRelay, event: str, body: bytes, *, guid: str = "guid-1", **headers: str
) -> httpx.Response:
    signed = {**relay.github.webhooks.headers(event, guid, body), **headers}
    return await relay.http.post(PATH, content=body, headers=signed)


async def test_fault_01_a_webhook_for_100_targets_is_answered_before_any_call_to_github(
    tmp_path: Path,
) -> None:
    names = tuple(f"org{number % 4}/backend{number}" for number in range(100))
    allowlist = "L1:\n" + "".join(f"  - {name}\n" for name in names)
    async with running_relay(tmp_path, allowlist, downstreams=names) as relay:
        calls = len(relay.github.calls)
        pr = await relay.github.open_pr(UPSTREAM)

        assert answer(pr.last_delivery)["dispatches"] == 100
        assert len(relay.github.calls) == calls
        await relay.drain()
        assert [dispatched_events(relay.github, name) for name in names] == [[("opened", pr.head_sha)]] * 100


async def test_fault_04_a_redelivered_webhook_is_a_repeat_and_is_not_dispatched_again(tmp_path: Path) -> None:
    async with running_relay(tmp_path, TWO, downstreams=BOTH) as relay:
        pr = await relay.github.open_pr(UPSTREAM)
        await relay.drain()
        assert pr.last_delivery is not None
        redelivery = await relay.github.redeliver(pr.last_delivery.guid)
        await relay.drain()

        assert answer(redelivery) == {"ok": True, "delivery": pr.last_delivery.guid, "repeat": True}
        assert len(relay.github.dispatches()) == 2


async def test_fault_04_ten_concurrent_webhooks_with_one_guid_are_accepted_once(tmp_path: Path) -> None:
    async with running_relay(tmp_path, TWO, downstreams=BOTH) as relay:
        relay.github.faults.webhooks.hold(times=1)
        await relay.github.open_pr(UPSTREAM)
        [held] = relay.github.webhooks.held
        answers = await asyncio.gather(*(post(relay, "pull_request", held.payload) for _ in range(10)))
        await relay.drain()

        assert [answer.status_code for answer in answers] == [202] * 10
        assert sorted(answer.json().get("dispatches", "repeat") == 2 for answer in answers) == [False] * 9 + [
            True
        ]
        assert len(relay.github.dispatches()) == 2


async def test_fault_04_a_webhook_that_github_sends_twice_is_dispatched_once(tmp_path: Path) -> None:
    async with running_relay(tmp_path, TWO, downstreams=BOTH) as relay:
        relay.github.faults.webhooks.duplicate()
        await relay.github.open_pr(UPSTREAM)
        await relay.drain()

        assert len(relay.github.dispatches()) == 2


async def test_fault_32_a_bad_signature_is_rejected_before_the_event_or_body_is_parsed(
    tmp_path: Path,
) -> None:
    events = ("pull_request", "push", "ping", "installation", "gollum", "not a name!", "")
    signatures = (None, b"", b"sha256=" + b"0" * 64, b"sha1=abc", b"\xff")
    async with running_relay(tmp_path, TWO) as relay:
        for event, signature in product(events, signatures):
            headers = [(b"x-github-event", event.encode())]
            headers += [] if signature is None else [(b"x-hub-signature-256", signature)]
            refused = await relay.http.post(PATH, content=b"}{ garbage", headers=headers)

            assert refused.status_code == 401, (event, signature)
            assert refused.json()["error"]["code"] == "bad_signature"


async def test_a_signed_ping_is_answered_200(tmp_path: Path) -> None:
    async with running_relay(tmp_path, TWO) as relay:
        assert (await relay.github.ping()).status_code == 200


async def test_an_event_that_no_downstream_takes_is_answered_with_a_reason_and_not_stored(
    tmp_path: Path,
) -> None:
    async with running_relay(
        tmp_path, "L1:\n  - org/one: {events: [nightly]}\n", downstreams=("org/one",)
    ) as relay:
        unknown_event = await post(relay, "gollum", b'{"action":"x"}')
        unknown_action = await post(relay, "pull_request", b'{"action":"enqueued"}')
        foreign_upstream = await relay.github.send_webhook("push", json.loads(example("push")))
        unlisted_ref = await relay.github.push(UPSTREAM)

        reasons = [
            unknown_event.json(),
            unknown_action.json(),
            answer(foreign_upstream),
            answer(unlisted_ref),
        ]
        assert [reason["ignored"] for reason in reasons] == [
            "event gollum",
            "action enqueued of pull_request",
            "Codertocat/Hello-World is not an upstream of this relay",
            "no downstream takes pushes to refs/heads/main",
        ]
        assert relay.rows("SELECT guid FROM deliveries") == []


async def test_a_signed_body_that_does_not_parse_as_its_event_is_400(tmp_path: Path) -> None:
    bodies = (b"", b"}{", b"[1]", b'{"action":"opened"}', b'{"action":"opened\xff"}')
    async with running_relay(tmp_path, TWO) as relay:
        refusals = [await post(relay, "pull_request", body) for body in bodies]

        assert [refusal.status_code for refusal in refusals] == [400] * len(bodies)
        assert {refusal.json()["error"]["code"] for refusal in refusals} == {"bad_request"}


async def test_a_form_encoded_webhook_gets_415_with_a_hint_and_is_recovered_from_githubs_log(
    tmp_path: Path,
) -> None:
    async with running_relay(tmp_path, TWO, downstreams=BOTH) as relay:
        relay.github.webhooks.content_type = "form"
        with capture_logs() as lines:
            pull = await relay.github.open_pr(UPSTREAM)
        sent = pull.last_delivery
        assert sent is not None
        assert sent.headers["Content-Type"] == "application/x-www-form-urlencoded"
        error = answer(sent)["error"]
        assert (sent.status_code, error["code"]) == (415, "wrong_content_type")
        assert "application/json" in error["hint"]
        [warning] = [line for line in lines if line["event"] == "webhook_form_encoded"]
        assert (warning["log_level"], warning["hint"]) == ("warning", error["hint"])

        forged = {**sent.headers, "X-Hub-Signature-256": "sha256=" + "0" * 64}
        refused = await relay.http.post(PATH, content=b"payload=%7B%7D", headers=forged)
        assert (refused.status_code, refused.json()["error"]["code"]) == (401, "bad_signature")

        relay.clock.advance(180)
        await relay.services.reconciler.run()
        await relay.drain()
        assert dispatched_actions(relay.github, "org/one") == ["opened"]


async def test_a_signed_body_without_event_or_delivery_header_is_400(tmp_path: Path) -> None:
    async with running_relay(tmp_path, TWO) as relay:
        for missing in ("X-GitHub-Event", "X-GitHub-Delivery"):
            headers = relay.github.webhooks.headers("ping", "guid-1", b"{}")
            del headers[missing]
            refused = await relay.http.post(PATH, content=b"{}", headers=headers)

            assert refused.status_code == 400
            assert missing in refused.json()["error"]["detail"]


async def test_a_body_over_25_mib_is_rejected_by_its_content_length(tmp_path: Path) -> None:
    async with running_relay(tmp_path, TWO) as relay:
        refused = await post(relay, "ping", b"{}", **{"content-length": str(CAP_BYTES + 1)})

        assert (refused.status_code, refused.json()["error"]["code"]) == (413, "too_large")


async def test_a_body_over_25_mib_without_content_length_is_rejected_while_it_is_read(tmp_path: Path) -> None:
    given = 0

    async def endless() -> AsyncIterator[bytes]:
        nonlocal given
        while True:
            given += 1024 * 1024
            yield b" " * 1024 * 1024

    async with running_relay(tmp_path, TWO) as relay:
        headers = relay.github.webhooks.headers("ping", "guid-1", b"another body")
        refused = await relay.http.post(PATH, content=endless(), headers=headers)

        assert refused.status_code == 413
        assert given <= CAP_BYTES + 2 * 1024 * 1024


async def test_a_webhook_is_answered_503_with_retry_after_while_the_store_is_unavailable(
    tmp_path: Path,
) -> None:
    async with running_relay(tmp_path, TWO, downstreams=BOTH) as relay:
        await relay.services.database.close()
        pr = await relay.github.open_pr(UPSTREAM)

        assert pr.last_delivery is not None
        assert pr.last_delivery.status_code == 503
        assert int(pr.last_delivery.answer_headers["retry-after"]) > 0


UPSTREAM_OF_EXAMPLES = {"Codertocat/Hello-World": TWO}


def with_current_push_time(relay: RunningRelay, body: bytes) -> bytes:
    """The published push with the test clock's time: a push of years ago is not accepted."""
    event = json.loads(body)
    event["repository"]["pushed_at"] = int(relay.clock.now().timestamp())
    return json.dumps(event).encode()


async def test_all_published_webhook_examples_are_answered_with_200_or_202(tmp_path: Path) -> None:
    async with running_relay(tmp_path, UPSTREAM_OF_EXAMPLES, downstreams=BOTH) as relay:
        answers = [
            await post(
                relay,
                event,
                with_current_push_time(relay, body) if event == "push" else body,
                guid=f"example-{number}",
            )
            for number, (event, body) in enumerate(webhook_examples())
        ]
        await relay.drain()

        assert len(answers) == EXAMPLES
        assert [answer.text for answer in answers if answer.status_code not in {200, 202}] == []
        assert {dispatch["event_type"] for dispatch in map(dispatch_fields, relay.github.dispatches())} == {
            "pull_request",
            "push",
        }


def dispatch_fields(dispatch: Any) -> dict[str, Any]:
    return dict(vars(dispatch))


@pytest.mark.parametrize("action", ["opened", "reopened", "synchronize", "closed"])
async def test_published_pull_request_examples_are_dispatched(tmp_path: Path, action: str) -> None:
    async with running_relay(tmp_path, UPSTREAM_OF_EXAMPLES, downstreams=BOTH) as relay:
        accepted = await post(relay, "pull_request", example("pull_request", action))
        await relay.drain()

        assert accepted.json()["dispatches"] == 2
        assert [dispatched_actions(relay.github, name) for name in BOTH] == [[action], [action]]


async def test_published_push_examples_are_dispatched_unchanged(tmp_path: Path) -> None:
    async with running_relay(tmp_path, UPSTREAM_OF_EXAMPLES, downstreams=BOTH) as relay:
        bodies = [
            with_current_push_time(relay, body) for event, body in webhook_examples() if event == "push"
        ]
        for number, body in enumerate(bodies):
            await post(relay, "push", body, guid=f"push-{number}")
        await relay.drain()

        dispatched_payloads = [
            dispatch.client_payload["payload"] for dispatch in relay.github.dispatches("org/one")
        ]
        assert sorted(map(str, dispatched_payloads)) == sorted(str(json.loads(body)) for body in bodies)
