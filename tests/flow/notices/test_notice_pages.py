"""Visibility of notices on pages, in JSON, CSV and the CLI; channel addresses are never shown in full."""

import asyncio
import csv
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from io import StringIO
from pathlib import Path

import pytest
from sqlalchemy import text

from crcr.decide.notices.notice import NoticeKind
from crcr.record.store.database import Tx
from crcr.record.store.statement import Statement
from support.cli_command import run_in_process
from support.notices.events import make_event, queue, tell_people
from support.notices.receivers import WebhookReceiver, webhook_receiver
from support.running_relay import UPSTREAM, RunningRelay, environment, running_relay
from support.sign_in import ADMIN, TOKENS

ALLOWLIST = """
L2:
  - org/reporter: {oncalls: [alice], channels: [issues, chat, nobody]}
  - org/secret: {visibility: hidden, channels: [chat]}
"""
INSERT_COMMENT_POST = Statement(
    text(
        "INSERT INTO notice_posts (upstream, channel, destination, thread_id, attempted_at, remote_id)"
        " VALUES (:upstream, 'pulls', :destination, 0, 1, 5)"
    )
)
BEARER = {"authorization": f"Bearer {ADMIN}"}


async def write_comment(tx: Tx, number: int) -> None:
    await tx.run(INSERT_COMMENT_POST, upstream=UPSTREAM.lower(), destination=str(number))


def channels(hook: WebhookReceiver) -> str:
    chat = {"name": "chat", "kind": "slack", "url": hook.url, "private_hosts": ["127.0.0.1"]}
    return json.dumps([{"name": "issues", "kind": "issue"}, chat])


@asynccontextmanager
async def relay_with_notices(folder: Path) -> AsyncIterator[tuple[RunningRelay, WebhookReceiver]]:
    async with (
        webhook_receiver() as hook,
        running_relay(
            folder,
            ALLOWLIST,
            downstreams=("org/reporter", "org/secret"),
            CRCR_CHANNELS=channels(hook),
            **TOKENS,
        ) as relay,
    ):
        await tell_people(relay)
        await queue(relay, make_event(NoticeKind.SILENT, "org/secret"))
        await relay.drain()
        yield relay, hook


async def test_readers_see_public_notices_and_administrators_the_channels(tmp_path: Path) -> None:
    async with relay_with_notices(tmp_path) as (relay, hook):
        page = (await relay.http.get("/crcr/notices")).text
        assert "org/secret" not in page
        assert "chat" not in page
        assert "<script>alert" not in page
        public = (await relay.http.get("/api/v1/notices")).json()["notices"]
        assert {notice["backend"] for notice in public} == {"org/reporter", None}
        assert {message["channel"] for notice in public for message in notice["messages"]} == {None}
        assert {message["kind"] for notice in public for message in notice["messages"]} == {"issue", "slack"}

        admin = (await relay.http.get("/api/v1/notices", headers=BEARER)).json()["notices"]
        assert "org/secret" in {notice["backend"] for notice in admin}
        [red] = [notice for notice in admin if notice["kind"] == "red"]
        sent = {message["channel"]: message for message in red["messages"]}
        assert sent["chat"]["address"] == "http://127.0.0.1/…"
        assert sent["issues"]["destination"] == "org/reporter"
        assert sent["issues"]["reason"] == "the entry of org/reporter names it"
        assert {message["state"] for message in red["messages"]} == {"sent"}
        paths = ("/crcr/notices", "/api/v1/notices.csv", "/crcr/audit", "/crcr/deliveries?show=effects")
        answers = [await relay.http.get(path, headers=BEARER) for path in paths]
        texts = [page, json.dumps(admin), *(answer.text for answer in answers)]
        assert not [text for text in texts if "very-secret" in text or str(hook.port) in text]


async def test_filters_and_cursors_list_every_notice_once(tmp_path: Path) -> None:
    async with relay_with_notices(tmp_path) as (relay, _):
        event_ids: list[int] = []
        cursor: dict[str, str] = {}
        while True:
            page = (await relay.http.get("/api/v1/notices", params={"limit": 3, **cursor})).json()
            event_ids += [notice["event_id"] for notice in page["notices"]]
            if page["next"] is None:
                break
            cursor = {"cursor": page["next"]}
        assert event_ids == sorted(set(event_ids), reverse=True)
        rows = list(csv.DictReader(StringIO((await relay.http.get("/api/v1/notices.csv")).text)))
        assert {int(row["event_id"]) for row in rows} == set(event_ids)
        still_open = (await relay.http.get("/api/v1/notices", params={"state": "open"})).json()["notices"]
        assert "red" not in {notice["kind"] for notice in still_open}
        assert "silent" in {notice["kind"] for notice in still_open}
        unsent = (await relay.http.get("/api/v1/notices", params={"state": "unsent"})).json()["notices"]
        assert {notice["kind"] for notice in unsent} == {"recovered"}
        assert (await relay.http.get("/api/v1/notices", params={"cursor": "x"})).status_code == 400
        assert "No matching notices" in (await relay.http.get("/crcr/notices?backend=nobody")).text


async def test_closed_threads_are_deleted_with_the_audit_log_and_open_ones_stay(tmp_path: Path) -> None:
    async with running_relay(tmp_path, ALLOWLIST, CRCR_KEEP_AUDIT_DAYS="30") as relay:
        for kind in (NoticeKind.SILENT, NoticeKind.RED, NoticeKind.RECOVERED):
            await queue(relay, make_event(kind))
        for number in (1, 2):
            await queue(relay, make_event(NoticeKind.GATE_FAILED, number=number))
            await relay.services.database.write(partial(write_comment, number=number))
        await queue(relay, make_event(NoticeKind.GATE_RESOLVED, number=2))
        relay.clock.advance(31 * 86_400)
        await relay.services.sweeper.forget()
        for table in ("notice_threads", "notice_events"):
            kinds = [row["kind"] for row in relay.rows(f"SELECT kind FROM {table}")]  # noqa: S608
            assert kinds == ["silent", "gate_failed"]
        assert relay.rows("SELECT destination FROM notice_posts") == [{"destination": "1"}]


async def test_the_cli_tests_a_channel_and_lists_notices(tmp_path: Path) -> None:
    async with relay_with_notices(tmp_path) as (relay, hook):
        environ = {
            **environment(tmp_path, relay.github, tmp_path / "allowlist.yml"),
            "CRCR_CHANNELS": channels(hook),
        }
        before = len(hook.requests)

        async def crcr(*arguments: str) -> tuple[int, str]:
            result = await asyncio.to_thread(
                run_in_process, "notices", *arguments, folder=tmp_path, environ=environ
            )
            return result.code, result.out + result.errors

        assert await crcr("test", "chat") == (0, "sent to chat (slack: http://127.0.0.1/…)\n")
        assert "A test notice of" in hook.requests[before].json["text"]
        hook.answers = [404]
        code, output = await crcr("test", "chat")
        assert (code, "127.0.0.1 answered 404" in output) == (1, True)
        code, output = await crcr("test", "nothing")
        assert (code, "the settings have: issues, chat" in output) == (2, True)
        code, output = await crcr("test", "issues")
        assert (code, "pass --repo" in output) == (2, True)
        code, output = await crcr("list", "--json")
        assert (code, json.loads(output)[0]["backend"]) == (0, "org/secret")
        assert "very-secret" not in output


@pytest.mark.parametrize("arguments", [("notices", "list"), ("notices", "test", "chat")])
def test_the_notices_commands_have_help(tmp_path: Path, arguments: tuple[str, ...]) -> None:
    result = run_in_process(*arguments, "--help", folder=tmp_path, environ={})
    assert result.code == 0
    assert "Example" in result.out
