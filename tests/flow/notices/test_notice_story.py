"""Notices from the fact to the receiver: red and recovered, blocked pull requests, silence, broken set-ups, outages, storms."""

import hashlib
import hmac
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import text

from crcr.decide.model import RepoName
from crcr.decide.notices.notice import NoticeEvent, NoticeKind
from crcr.record.notices.threads import queue_notice
from crcr.record.store.database import Tx
from crcr.record.store.statement import Statement
from github_sim.github import Match
from support.github.broken_upstream import BISECTABLE, broken_upstream
from support.github.gated_upstream import GATING, gated_upstream, newest_run, run_all
from support.github.verdict_history import BROKEN, JUDGED, end_build, fail_pull, push_base
from support.notices.receivers import (
    HANG_UP,
    MailReceiver,
    WebhookReceiver,
    mail_receiver,
    webhook_receiver,
)
from support.running_relay import UPSTREAM, RunningRelay

MINUTE, HOUR = 60.0, 3600.0
CHANNELS = {"issues": "issue", "pulls": "comment"}
WITH_CHANNELS = JUDGED.replace("paths:", "channels: [issues, pulls, hook, chat, mail, unknown], paths:")


def channel_settings(hook: WebhookReceiver, chat: WebhookReceiver, mail: MailReceiver, **more: Any) -> str:
    private = {"private_hosts": ["127.0.0.1"]}
    channels = [
        {"name": "issues", "kind": "issue"},
        {"name": "pulls", "kind": "comment"},
        {"name": "hook", "kind": "webhook", "url": hook.url, "secret": "shared", **private, **more},
        {"name": "chat", "kind": "slack", "url": chat.url, **private},
        {"name": "mail", "kind": "email", "smtp": mail.url, "sender": "crcr@a.test", "to": ["ann@a.test"]},
    ]
    return json.dumps(channels)


class Receivers:
    def __init__(
        self, relay: RunningRelay, hook: WebhookReceiver, chat: WebhookReceiver, mail: MailReceiver
    ) -> None:
        self.relay, self.hook, self.chat, self.mail = relay, hook, chat, mail

    async def look(self, after_s: float = 61) -> None:
        """The leader looks for changes, and everything that is due a minute later is sent."""
        await self.relay.services.sweeper.look_at_base()
        await self.relay.services.sweeper.look_at_reporting()
        await self.relay.drain()
        await self.relay.pass_time(after_s)

    @property
    def hook_notices(self) -> list[tuple[str, str]]:
        return [
            (notice["kind"], notice["change"])
            for request in self.hook.requests
            for notice in request.json["notices"]
        ]

    def states(self, channel: str) -> list[str]:
        rows = self.relay.rows(
            "SELECT state FROM notice_messages WHERE channel = ? ORDER BY message_id", channel
        )
        return [row["state"] for row in rows]


@asynccontextmanager
async def notifying_relay(
    folder: Path, allowlist: str = WITH_CHANNELS, *, downstreams: tuple[str, ...] = (GATING,), **more: Any
) -> AsyncIterator[Receivers]:
    async with webhook_receiver() as hook, webhook_receiver() as chat, mail_receiver() as mail:
        settings = channel_settings(hook, chat, mail, **more)
        async with gated_upstream(
            folder, allowlist, downstreams=downstreams, CRCR_CHANNELS=settings
        ) as relay:
            yield Receivers(relay, hook, chat, mail)


async def test_a_backend_that_turns_red_and_recovers_is_one_thread_in_every_channel(tmp_path: Path) -> None:
    async with notifying_relay(tmp_path) as told:
        relay = told.relay
        await push_base(relay)
        assert relay.rows("SELECT * FROM notice_marks") == []  # a pass costs nothing
        for _ in range(2):
            await push_base(relay, BROKEN)
        assert len(relay.rows("SELECT * FROM notice_marks")) == 1
        await told.look()
        assert relay.rows("SELECT * FROM notice_threads") == relay.rows("SELECT * FROM notice_marks") == []
        await push_base(relay, BROKEN)
        await told.look()
        [issue] = relay.github.issues(GATING)
        assert issue.state == "open"
        assert issue.title == f"{GATING} is red on the base branch of {UPSTREAM}"
        assert "UTC: `build`" in (issue.body or "")
        assert "@bob" in (issue.body or "")
        assert told.hook_notices == [("red", "opened")]
        [first] = told.mail.messages
        assert first["Subject"] == f"[crcr] {GATING} is red on the base branch of {UPSTREAM}"

        await push_base(relay, BROKEN)  # still red: nobody is told again
        await told.look()
        await told.look()
        assert told.hook_notices == [("red", "opened")]

        await push_base(relay)
        await told.look()
        [issue] = relay.github.issues(GATING)
        assert issue.state == "closed"
        assert told.hook_notices == [("red", "opened"), ("recovered", "closed")]
        assert ["recovered" in request.json["text"] for request in told.chat.requests] == [False, True]
        assert told.mail.messages[1]["References"] == first["Message-ID"]
        [thread] = relay.rows("SELECT state, kind FROM notice_threads")
        assert thread == {"state": "closed", "kind": "recovered"}
        assert {row["state"] for row in relay.rows("SELECT state FROM notice_messages")} == {"sent"}


async def test_a_webhook_is_signed_and_names_the_on_calls(tmp_path: Path) -> None:
    async with notifying_relay(tmp_path) as told:
        await turn_red(told)
        [request] = told.hook.requests
        signed = f"{request.headers['x-crcr-timestamp']}.".encode() + request.body
        expected = hmac.new(b"shared", signed, hashlib.sha256).hexdigest()
        assert request.headers["x-crcr-signature-256"] == f"sha256={expected}"
        body = request.json
        assert (body["version"], body["upstream"], body["id"]) == (
            1,
            UPSTREAM,
            request.headers["x-crcr-delivery"],
        )
        [notice] = body["notices"]
        assert (notice["backend"], notice["oncalls"], notice["state"]) == (GATING, ["bob"], "open")


async def turn_red(told: Receivers) -> None:
    await push_base(told.relay)
    for _ in range(3):
        await push_base(told.relay, BROKEN)
    await told.look()


async def test_a_new_failure_at_the_gate_is_one_comment_that_is_updated(tmp_path: Path) -> None:
    async with notifying_relay(tmp_path) as told:
        relay = told.relay
        for _ in range(3):
            await push_base(relay)
        pull = await fail_pull(relay, BROKEN)
        await told.look()
        [comment] = notices_on(relay, pull)
        assert f"❌ **{GATING} blocks {UPSTREAM}#{pull.number} with a new failure**" in comment
        assert "On call: @bob" in comment
        assert told.hook_notices == [("gate_failed", "opened")]

        await relay.github.push_to_pr(pull)
        await relay.drain()
        await told.look()
        assert told.hook_notices == [("gate_failed", "opened")]  # while it runs again nothing is known
        await end_build(relay, newest_run(relay))
        await told.look()
        [comment] = notices_on(relay, pull)
        assert "✅" in comment
        assert "❌" not in comment
        assert told.hook_notices[1:] == [("gate_resolved", "closed")]


def notices_on(relay: RunningRelay, pull: Any) -> list[str]:
    comments = relay.github.world.comments_on(pull)
    return [comment.body for comment in comments if "crcr notice" in comment.body]


async def test_a_closed_pull_request_ends_its_thread(tmp_path: Path) -> None:
    async with notifying_relay(tmp_path) as told:
        for _ in range(3):
            await push_base(told.relay)
        pull = await fail_pull(told.relay, BROKEN)
        await told.look()
        await told.relay.github.close_pr(pull)
        await told.relay.drain()
        await told.look()
        assert told.hook_notices == [("gate_failed", "opened"), ("gate_resolved", "closed")]


async def test_cancelled_and_superseded_runs_notify_nobody(tmp_path: Path) -> None:
    async with notifying_relay(tmp_path) as told:
        await push_base(told.relay)
        for _ in range(4):
            await push_base(told.relay, BROKEN, conclusion="cancelled")
        pull = await fail_pull(told.relay, BROKEN, conclusion="cancelled")
        await told.relay.github.push_to_pr(pull)
        await told.relay.drain()
        await told.look()
        assert told.relay.rows("SELECT * FROM notice_threads") == []


@pytest.mark.parametrize("answers", [[500, HANG_UP, 503], [500] * 12])
async def test_nothing_is_lost_while_the_receiver_is_down_and_each_attempt_is_the_same(
    tmp_path: Path, answers: list[int]
) -> None:
    async with notifying_relay(tmp_path) as told:
        told.hook.answers = list(answers)
        await turn_red(told)
        await push_base(told.relay)  # recovers while the receiver is down
        await told.look()
        for _ in range(40):
            await told.relay.pass_time(15 * MINUTE)
        bodies = {request.body for request in told.hook.requests[: len(answers) + 1]}
        assert len(bodies) == 1
        assert [notice["change"] for notice in json.loads(bodies.pop())["notices"]] == ["opened"]
        assert told.hook_notices[-1] == ("recovered", "closed")
        assert told.states("hook") == ["sent", "sent"]
        assert len(told.chat.requests) == 2  # another channel was not delayed


async def test_a_refused_notice_is_parked_and_sent_once_the_channel_works(tmp_path: Path) -> None:
    async with notifying_relay(tmp_path) as told:
        told.hook.answers = [404]
        await turn_red(told)
        [effect] = told.relay.rows("SELECT effect_id, last_error FROM effects WHERE state = 'parked'")
        assert effect["last_error"] == "127.0.0.1 answered 404"
        assert told.states("hook") == ["waiting"]
        await push_base(told.relay)
        await told.look()
        assert [len(request.json["notices"]) for request in told.hook.requests] == [1, 1, 1]
        assert told.hook.requests[0].body == told.hook.requests[1].body
        assert told.states("hook") == ["sent", "sent"]


async def test_a_lost_answer_leaves_one_issue_and_one_comment(tmp_path: Path) -> None:
    async with notifying_relay(tmp_path) as told:
        github = told.relay.github
        for path in ("*/issues", "*/issues/*/comments"):
            github.faults.lose_answer(on=Match("POST", path), times=1)
        await turn_red(told)
        for _ in range(3):
            await push_base(told.relay)
        pull = await fail_pull(told.relay, "test_new")
        await told.look()
        await told.relay.pass_time(HOUR)
        assert len([i for i in github.issues(GATING) if "is red" in i.title or "recovered" in i.title]) == 1
        assert len(notices_on(told.relay, pull)) == 1


async def test_without_permission_for_issues_the_effect_says_what_to_grant(tmp_path: Path) -> None:
    async with notifying_relay(tmp_path) as told:
        await told.relay.github.change_permissions(GATING, issues=None)
        await turn_red(told)
        [effect] = told.relay.rows("SELECT kind, target, last_error FROM effects WHERE state = 'parked'")
        assert (effect["kind"], effect["target"]) == ("send_notices", f"notices/issues/{GATING}")
        assert f"may not write issues in {GATING}: grant it Issues: write" in effect["last_error"]


async def test_forty_backends_red_at_once_are_one_notice(tmp_path: Path) -> None:
    async with notifying_relay(tmp_path, "L1: []\n", downstreams=()) as told:
        names = [RepoName(f"org/backend-{number:02}") for number in range(40)]
        entries = "".join(f"  - {name}: {{channels: [hook, chat, mail]}}\n" for name in names)
        told.relay.write_allowlist(f"L2:\n{entries}")
        await told.relay.refresh()

        red = [
            NoticeEvent(kind=NoticeKind.RED, upstream=RepoName(UPSTREAM), backend=name, summary="1 job fails")
            for name in names
        ]
        for _ in range(2):  # the same fact twice is one event
            for event in red:
                unit = partial(queue_notice, event=event, now=told.relay.clock.now())
                await told.relay.services.database.write(unit)
            await told.relay.drain()
        await told.relay.pass_time(61)
        assert [len(request.json["notices"]) for request in told.hook.requests] == [40]
        assert len(told.chat.requests) == len(told.mail.messages) == 1
        assert "40 notices (red)" in told.chat.requests[0].json["text"]


async def test_a_notice_that_arrives_while_another_is_being_sent_is_sent_once(tmp_path: Path) -> None:
    async with notifying_relay(tmp_path) as told:

        async def turn_silent() -> None:
            silent = NoticeEvent(
                kind=NoticeKind.SILENT,
                upstream=RepoName(UPSTREAM),
                backend=RepoName(GATING),
                summary="no answer",
            )
            unit = partial(queue_notice, event=silent, now=told.relay.clock.now())
            await told.relay.services.database.write(unit)
            await told.relay.drain()

        told.hook.before_answer = turn_silent
        await turn_red(told)
        told.hook.before_answer = None
        for _ in range(3):
            await told.relay.pass_time(61)
        assert told.hook_notices == [("red", "opened"), ("silent", "opened")]
        assert told.states("hook") == ["sent", "sent"]


async def test_quiet_hours_and_digest_hold_a_notice_back_and_lose_none(tmp_path: Path) -> None:
    async with notifying_relay(tmp_path, digest="09:00", quiet="08:00-10:00") as told:
        await turn_red(told)
        await push_base(told.relay)
        await told.look()
        assert told.hook.requests == []
        assert len(told.chat.requests) == 2
        for _ in range(24):
            await told.relay.pass_time(HOUR)
        [request] = told.hook.requests
        sent_at = int(request.headers["x-crcr-timestamp"]) % 86_400 / 3600
        assert 10 <= sent_at < 11
        assert told.hook_notices == [("recovered", "closed")]
        assert told.states("hook") == ["sent", "sent"]


async def test_a_retry_does_not_break_the_quiet_hours(tmp_path: Path) -> None:
    async with notifying_relay(tmp_path, quiet="01:00-09:00") as told:
        told.hook.answers = [500] * 8
        await turn_red(told)  # at about half past midnight
        for _ in range(20):
            await told.relay.pass_time(HOUR)
        hours = [int(request.headers["x-crcr-timestamp"]) % 86_400 / 3600 for request in told.hook.requests]
        assert len(hours) > 2
        assert not [hour for hour in hours if 1 <= hour < 9]
        assert told.states("hook") == ["sent"]


def _runs(statement: Statement) -> Callable[[Tx], Awaitable[int]]:
    return lambda tx: tx.run(statement)


async def test_a_message_that_is_due_later_keeps_its_place(tmp_path: Path) -> None:
    """A batch never has the id of a message that is sent with another one."""
    async with notifying_relay(tmp_path, digest="09:00") as told:
        await turn_red(told)
        await push_base(told.relay)
        await told.look()
        at = int(told.relay.clock.now().timestamp() * 1_000_000)
        for table, which in (
            ("notice_messages", "change = 'closed'"),
            ("effects", "target = 'notices/hook'"),
        ):
            bring_forward = Statement(text(f"UPDATE {table} SET due_at = {at} WHERE {which}"))  # noqa: S608
            await told.relay.services.database.write(_runs(bring_forward))
        await told.relay.drain()
        for _ in range(24):
            await told.relay.pass_time(HOUR)
        assert told.hook_notices == [("recovered", "closed"), ("red", "opened")]
        assert len({request.json["id"] for request in told.hook.requests}) == 2


async def test_a_backend_that_goes_silent_and_reports_again(tmp_path: Path) -> None:
    async with notifying_relay(tmp_path) as told:
        await push_base(told.relay)
        for _ in range(3):
            told.relay.clock.advance(60)
            await told.relay.github.push(UPSTREAM)
            await told.relay.drain()
        await told.look()
        assert told.hook_notices == []
        await told.relay.pass_time(30 * HOUR)
        await told.look()
        assert told.hook_notices == [("silent", "opened")]
        told.relay.clock.advance(20 * 24 * HOUR)  # that nobody is asked any more is no answer
        await told.look()
        assert told.hook_notices == [("silent", "opened")]
        await run_all(told.relay, GATING)
        await told.look()
        assert told.hook_notices == [("silent", "opened"), ("reporting", "closed")]


async def test_threads_of_a_backend_that_leaves_the_allowlist_are_ended(tmp_path: Path) -> None:
    (tmp_path / "crcr.toml").write_text('[[upstream]]\nchannels = ["hook"]\n')
    async with notifying_relay(tmp_path) as told:
        await turn_red(told)
        await told.relay.github.uninstall(GATING)
        await told.look()
        assert sorted(told.hook_notices) == [("red", "opened"), ("setup_broken", "opened")]
        told.relay.write_allowlist("L1: []\n")
        await told.relay.refresh()
        await told.look()
        assert sorted(told.hook_notices[2:]) == [("recovered", "closed"), ("setup_repaired", "closed")]
        assert told.relay.rows("SELECT * FROM notice_threads WHERE state = 'open'") == []


async def test_threads_about_a_level_end_when_the_allowlist_moves_the_backend(tmp_path: Path) -> None:
    """As the relay itself proposed: nobody recovers at a level that it does not have any more."""
    async with notifying_relay(tmp_path) as told:
        where: dict[str, Any] = {"upstream": RepoName(UPSTREAM), "backend": RepoName(GATING)}
        alarm = NoticeEvent(kind=NoticeKind.ALARMED, summary="it fails", **where)
        queue = partial(queue_notice, event=alarm, now=told.relay.clock.now())
        await told.relay.services.database.write(queue)
        await told.look()
        assert told.hook_notices == [("alarmed", "opened")]
        told.relay.write_allowlist(f"L3:\n  npu:\n    - {GATING}: {{oncalls: [ann], channels: [hook]}}\n")
        await told.relay.refresh()
        await told.look()
        assert told.hook_notices[1:] == [("restored", "closed")]


async def test_an_uninstalled_app_and_a_bad_allowlist_are_told_and_ended(tmp_path: Path) -> None:
    (tmp_path / "crcr.toml").write_text('[[upstream]]\nchannels = ["chat"]\n')
    async with notifying_relay(tmp_path) as told:
        relay = told.relay
        good = (tmp_path / "allowlist.yml").read_text()
        relay.write_allowlist("L9: [")
        await relay.refresh()
        await relay.github.uninstall(GATING)
        await relay.drain()
        await relay.pass_time(61)
        [storm] = told.chat.requests
        assert "the allowlist has 1 error" in storm.json["text"]
        assert "the App was uninstalled" in storm.json["text"]
        assert told.hook_notices == [
            ("setup_broken", "opened")
        ]  # the entry's channel gets what is about the backend
        assert relay.github.issues(GATING) == []
        relay.write_allowlist(good)
        await relay.refresh()
        await relay.github.install(GATING)
        await relay.drain()
        await relay.pass_time(61)
        assert told.hook_notices[1:] == [("setup_repaired", "closed")]
        assert relay.rows("SELECT * FROM notice_threads WHERE state = 'open'") == []


async def test_the_outcome_of_a_bisection_is_told_once(tmp_path: Path) -> None:
    async with webhook_receiver() as hook, mail_receiver() as mail:
        allowlist = BISECTABLE.replace("bisect: manual", "bisect: auto, channels: [hook]")
        settings = channel_settings(hook, hook, mail)
        async with broken_upstream(tmp_path, allowlist, CRCR_CHANNELS=settings) as relay:
            await relay.services.sweeper.begin_bisections()
            bisections = relay.services.bisections
            await bisections.stop(RepoName(UPSTREAM), 1, who="ann", now=relay.clock.now())
            await relay.drain()
            await relay.pass_time(61)
        [request] = hook.requests
        [notice] = request.json["notices"]
        assert (notice["kind"], notice["change"], notice["state"]) == ("bisected", "reported", "closed")
        assert notice["summary"] == "it ended without a culprit: stopped by ann"


async def test_a_channel_that_was_removed_drops_what_waits_and_says_so(tmp_path: Path) -> None:
    async with notifying_relay(tmp_path, digest="09:00") as told:
        await turn_red(told)
        handlers = told.relay.services.worker._handlers
        sender = next(one for kind, one in handlers.items() if kind.value == "send_notices")
        sender._channels.pop("hook")  # type: ignore[attr-defined]
        for _ in range(24):
            await told.relay.pass_time(HOUR)
        [row] = told.relay.rows("SELECT state, note FROM notice_messages WHERE channel = 'hook'")
        assert row == {"state": "dropped", "note": "the settings no longer have this channel"}
