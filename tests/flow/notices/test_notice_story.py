"""Notices from the event to the receiver: red and recovered, blocked pull requests, silence, broken setups, outages, storms."""

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

    async def sweep_and_send(self, after_s: float = 61) -> None:
        """Run the leader's sweep, and send everything that is due after `after_s`."""
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
    async with notifying_relay(tmp_path) as receivers:
        relay = receivers.relay
        await push_base(relay)
        assert relay.rows("SELECT * FROM notice_marks") == []  # a pass writes nothing
        for _ in range(2):
            await push_base(relay, BROKEN)
        assert len(relay.rows("SELECT * FROM notice_marks")) == 1
        await receivers.sweep_and_send()
        assert relay.rows("SELECT * FROM notice_threads") == relay.rows("SELECT * FROM notice_marks") == []
        await push_base(relay, BROKEN)
        await receivers.sweep_and_send()
        [issue] = relay.github.issues(GATING)
        assert issue.state == "open"
        assert issue.title == f"{GATING} is red on the base branch of {UPSTREAM}"
        assert "UTC: `build`" in (issue.body or "")
        assert "@bob" in (issue.body or "")
        assert receivers.hook_notices == [("red", "opened")]
        [first] = receivers.mail.messages
        assert first["Subject"] == f"[crcr] {GATING} is red on the base branch of {UPSTREAM}"

        await push_base(relay, BROKEN)  # still red: no second notice
        await receivers.sweep_and_send()
        await receivers.sweep_and_send()
        assert receivers.hook_notices == [("red", "opened")]

        await push_base(relay)
        await receivers.sweep_and_send()
        [issue] = relay.github.issues(GATING)
        assert issue.state == "closed"
        assert receivers.hook_notices == [("red", "opened"), ("recovered", "closed")]
        assert ["recovered" in request.json["text"] for request in receivers.chat.requests] == [False, True]
        assert receivers.mail.messages[1]["References"] == first["Message-ID"]
        [thread] = relay.rows("SELECT state, kind FROM notice_threads")
        assert thread == {"state": "closed", "kind": "recovered"}
        assert {row["state"] for row in relay.rows("SELECT state FROM notice_messages")} == {"sent"}


async def test_a_webhook_is_signed_and_names_the_on_calls(tmp_path: Path) -> None:
    async with notifying_relay(tmp_path) as receivers:
        await turn_red(receivers)
        [request] = receivers.hook.requests
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


async def turn_red(receivers: Receivers) -> None:
    await push_base(receivers.relay)
    for _ in range(3):
        await push_base(receivers.relay, BROKEN)
    await receivers.sweep_and_send()


async def test_a_new_failure_at_the_gate_is_one_comment_that_is_updated_in_place(tmp_path: Path) -> None:
    async with notifying_relay(tmp_path) as receivers:
        relay = receivers.relay
        for _ in range(3):
            await push_base(relay)
        pull = await fail_pull(relay, BROKEN)
        await receivers.sweep_and_send()
        [comment] = notice_comments(relay, pull)
        assert f"❌ **{GATING} blocks {UPSTREAM}#{pull.number} with a new failure**" in comment
        assert "On call: @bob" in comment
        assert receivers.hook_notices == [("gate_failed", "opened")]

        await relay.github.push_to_pr(pull)
        await relay.drain()
        await receivers.sweep_and_send()
        assert receivers.hook_notices == [("gate_failed", "opened")]  # no result is known during the rerun
        await end_build(relay, newest_run(relay))
        await receivers.sweep_and_send()
        [comment] = notice_comments(relay, pull)
        assert "✅" in comment
        assert "❌" not in comment
        assert receivers.hook_notices[1:] == [("gate_resolved", "closed")]


def notice_comments(relay: RunningRelay, pull: Any) -> list[str]:
    comments = relay.github.world.comments_on(pull)
    return [comment.body for comment in comments if "crcr notice" in comment.body]


async def test_a_closed_pull_request_ends_its_thread(tmp_path: Path) -> None:
    async with notifying_relay(tmp_path) as receivers:
        for _ in range(3):
            await push_base(receivers.relay)
        pull = await fail_pull(receivers.relay, BROKEN)
        await receivers.sweep_and_send()
        await receivers.relay.github.close_pr(pull)
        await receivers.relay.drain()
        await receivers.sweep_and_send()
        assert receivers.hook_notices == [("gate_failed", "opened"), ("gate_resolved", "closed")]


async def test_cancelled_and_superseded_runs_notify_nobody(tmp_path: Path) -> None:
    async with notifying_relay(tmp_path) as receivers:
        await push_base(receivers.relay)
        for _ in range(4):
            await push_base(receivers.relay, BROKEN, conclusion="cancelled")
        pull = await fail_pull(receivers.relay, BROKEN, conclusion="cancelled")
        await receivers.relay.github.push_to_pr(pull)
        await receivers.relay.drain()
        await receivers.sweep_and_send()
        assert receivers.relay.rows("SELECT * FROM notice_threads") == []


@pytest.mark.parametrize("answers", [[500, HANG_UP, 503], [500] * 12])
async def test_no_notice_is_lost_while_the_receiver_is_down_and_every_retry_has_the_same_body(
    tmp_path: Path, answers: list[int]
) -> None:
    async with notifying_relay(tmp_path) as receivers:
        receivers.hook.answers = list(answers)
        await turn_red(receivers)
        await push_base(receivers.relay)  # recovers while the receiver is down
        await receivers.sweep_and_send()
        for _ in range(40):
            await receivers.relay.pass_time(15 * MINUTE)
        bodies = {request.body for request in receivers.hook.requests[: len(answers) + 1]}
        assert len(bodies) == 1
        assert [notice["change"] for notice in json.loads(bodies.pop())["notices"]] == ["opened"]
        assert receivers.hook_notices[-1] == ("recovered", "closed")
        assert receivers.states("hook") == ["sent", "sent"]
        assert len(receivers.chat.requests) == 2  # another channel was not delayed


async def test_a_refused_notice_is_parked_and_sent_once_the_channel_works(tmp_path: Path) -> None:
    async with notifying_relay(tmp_path) as receivers:
        receivers.hook.answers = [404]
        await turn_red(receivers)
        [effect] = receivers.relay.rows("SELECT effect_id, last_error FROM effects WHERE state = 'parked'")
        assert effect["last_error"] == "127.0.0.1 answered 404"
        assert receivers.states("hook") == ["waiting"]
        await push_base(receivers.relay)
        await receivers.sweep_and_send()
        assert [len(request.json["notices"]) for request in receivers.hook.requests] == [1, 1, 1]
        assert receivers.hook.requests[0].body == receivers.hook.requests[1].body
        assert receivers.states("hook") == ["sent", "sent"]


async def test_a_lost_answer_leaves_one_issue_and_one_comment(tmp_path: Path) -> None:
    async with notifying_relay(tmp_path) as receivers:
        github = receivers.relay.github
        for path in ("*/issues", "*/issues/*/comments"):
            github.faults.lose_answer(on=Match("POST", path), times=1)
        await turn_red(receivers)
        for _ in range(3):
            await push_base(receivers.relay)
        pull = await fail_pull(receivers.relay, "test_new")
        await receivers.sweep_and_send()
        await receivers.relay.pass_time(HOUR)
        assert len([i for i in github.issues(GATING) if "is red" in i.title or "recovered" in i.title]) == 1
        assert len(notice_comments(receivers.relay, pull)) == 1


async def test_without_issues_permission_the_parked_effect_names_the_permission_to_grant(
    tmp_path: Path,
) -> None:
    async with notifying_relay(tmp_path) as receivers:
        await receivers.relay.github.change_permissions(GATING, issues=None)
        await turn_red(receivers)
        [effect] = receivers.relay.rows("SELECT kind, target, last_error FROM effects WHERE state = 'parked'")
        assert (effect["kind"], effect["target"]) == ("send_notices", f"notices/issues/{GATING}")
        assert f"may not write issues in {GATING}: grant it Issues: write" in effect["last_error"]


async def test_forty_backends_that_turn_red_at_once_are_one_message(tmp_path: Path) -> None:
    async with notifying_relay(tmp_path, "L1: []\n", downstreams=()) as receivers:
        names = [RepoName(f"org/backend-{number:02}") for number in range(40)]
        entries = "".join(f"  - {name}: {{channels: [hook, chat, mail]}}\n" for name in names)
        receivers.relay.write_allowlist(f"L2:\n{entries}")
        await receivers.relay.refresh()

        red = [
            NoticeEvent(kind=NoticeKind.RED, upstream=RepoName(UPSTREAM), backend=name, summary="1 job fails")
            for name in names
        ]
        for _ in range(2):  # the same fact twice is one event
            for event in red:
                unit = partial(queue_notice, event=event, now=receivers.relay.clock.now())
                await receivers.relay.services.database.write(unit)
            await receivers.relay.drain()
        await receivers.relay.pass_time(61)
        assert [len(request.json["notices"]) for request in receivers.hook.requests] == [40]
        assert len(receivers.chat.requests) == len(receivers.mail.messages) == 1
        assert "40 notices (red)" in receivers.chat.requests[0].json["text"]


async def test_a_notice_that_arrives_while_another_is_being_sent_is_sent_once(tmp_path: Path) -> None:
    async with notifying_relay(tmp_path) as receivers:

        async def turn_silent() -> None:
            silent = NoticeEvent(
                kind=NoticeKind.SILENT,
                upstream=RepoName(UPSTREAM),
                backend=RepoName(GATING),
                summary="no answer",
            )
            unit = partial(queue_notice, event=silent, now=receivers.relay.clock.now())
            await receivers.relay.services.database.write(unit)
            await receivers.relay.drain()

        receivers.hook.before_answer = turn_silent
        await turn_red(receivers)
        receivers.hook.before_answer = None
        for _ in range(3):
            await receivers.relay.pass_time(61)
        assert receivers.hook_notices == [("red", "opened"), ("silent", "opened")]
        assert receivers.states("hook") == ["sent", "sent"]


async def test_quiet_hours_and_digest_delay_notices_and_lose_none(tmp_path: Path) -> None:
    async with notifying_relay(tmp_path, digest="09:00", quiet="08:00-10:00") as receivers:
        await turn_red(receivers)
        await push_base(receivers.relay)
        await receivers.sweep_and_send()
        assert receivers.hook.requests == []
        assert len(receivers.chat.requests) == 2
        for _ in range(24):
            await receivers.relay.pass_time(HOUR)
        [request] = receivers.hook.requests
        sent_at = int(request.headers["x-crcr-timestamp"]) % 86_400 / 3600
        assert 10 <= sent_at < 11
        assert receivers.hook_notices == [("recovered", "closed")]
        assert receivers.states("hook") == ["sent", "sent"]


async def test_a_retry_does_not_break_the_quiet_hours(tmp_path: Path) -> None:
    async with notifying_relay(tmp_path, quiet="01:00-09:00") as receivers:
        receivers.hook.answers = [500] * 8
        await turn_red(receivers)  # at about half past midnight
        for _ in range(20):
            await receivers.relay.pass_time(HOUR)
        hours = [
            int(request.headers["x-crcr-timestamp"]) % 86_400 / 3600 for request in receivers.hook.requests
        ]
        assert len(hours) > 2
        assert not [hour for hour in hours if 1 <= hour < 9]
        assert receivers.states("hook") == ["sent"]


def _run_statement(statement: Statement) -> Callable[[Tx], Awaitable[int]]:
    return lambda tx: tx.run(statement)


async def test_a_message_that_is_due_later_is_not_sent_with_an_earlier_batch(tmp_path: Path) -> None:
    """A batch never reuses the id of a message that is sent with another batch."""
    async with notifying_relay(tmp_path, digest="09:00") as receivers:
        await turn_red(receivers)
        await push_base(receivers.relay)
        await receivers.sweep_and_send()
        at = int(receivers.relay.clock.now().timestamp() * 1_000_000)
        for table, condition in (
            ("notice_messages", "change = 'closed'"),
            ("effects", "target = 'notices/hook'"),
        ):
            bring_forward = Statement(text(f"UPDATE {table} SET due_at = {at} WHERE {condition}"))  # noqa: S608
            await receivers.relay.services.database.write(_run_statement(bring_forward))
        await receivers.relay.drain()
        for _ in range(24):
            await receivers.relay.pass_time(HOUR)
        assert receivers.hook_notices == [("recovered", "closed"), ("red", "opened")]
        assert len({request.json["id"] for request in receivers.hook.requests}) == 2


async def test_a_backend_that_goes_silent_and_reports_again(tmp_path: Path) -> None:
    async with notifying_relay(tmp_path) as receivers:
        await push_base(receivers.relay)
        for _ in range(3):
            receivers.relay.clock.advance(60)
            await receivers.relay.github.push(UPSTREAM)
            await receivers.relay.drain()
        await receivers.sweep_and_send()
        assert receivers.hook_notices == []
        await receivers.relay.pass_time(30 * HOUR)
        await receivers.sweep_and_send()
        assert receivers.hook_notices == [("silent", "opened")]
        receivers.relay.clock.advance(
            20 * 24 * HOUR
        )  # the absence of new dispatches does not count as a report
        await receivers.sweep_and_send()
        assert receivers.hook_notices == [("silent", "opened")]
        await run_all(receivers.relay, GATING)
        await receivers.sweep_and_send()
        assert receivers.hook_notices == [("silent", "opened"), ("reporting", "closed")]


async def test_threads_of_a_backend_that_leaves_the_allowlist_are_ended(tmp_path: Path) -> None:
    (tmp_path / "crcr.toml").write_text('[[upstream]]\nchannels = ["hook"]\n')
    async with notifying_relay(tmp_path) as receivers:
        await turn_red(receivers)
        await receivers.relay.github.uninstall(GATING)
        await receivers.sweep_and_send()
        assert sorted(receivers.hook_notices) == [("red", "opened"), ("setup_broken", "opened")]
        receivers.relay.write_allowlist("L1: []\n")
        await receivers.relay.refresh()
        await receivers.sweep_and_send()
        assert sorted(receivers.hook_notices[2:]) == [("recovered", "closed"), ("setup_repaired", "closed")]
        assert receivers.relay.rows("SELECT * FROM notice_threads WHERE state = 'open'") == []


async def test_threads_about_a_level_end_when_the_allowlist_changes_the_backends_level(
    tmp_path: Path,
) -> None:
    """As proposed by the relay itself: a backend cannot recover at a level that it no longer has."""
    async with notifying_relay(tmp_path) as receivers:
        subject: dict[str, Any] = {"upstream": RepoName(UPSTREAM), "backend": RepoName(GATING)}
        alarm = NoticeEvent(kind=NoticeKind.ALARMED, summary="it fails", **subject)
        queue = partial(queue_notice, event=alarm, now=receivers.relay.clock.now())
        await receivers.relay.services.database.write(queue)
        await receivers.sweep_and_send()
        assert receivers.hook_notices == [("alarmed", "opened")]
        receivers.relay.write_allowlist(
            f"L3:\n  npu:\n    - {GATING}: {{oncalls: [ann], channels: [hook]}}\n"
        )
        await receivers.relay.refresh()
        await receivers.sweep_and_send()
        assert receivers.hook_notices[1:] == [("restored", "closed")]


async def test_an_uninstalled_app_and_a_bad_allowlist_are_notified_and_closed(tmp_path: Path) -> None:
    (tmp_path / "crcr.toml").write_text('[[upstream]]\nchannels = ["chat"]\n')
    async with notifying_relay(tmp_path) as receivers:
        relay = receivers.relay
        good = (tmp_path / "allowlist.yml").read_text()
        relay.write_allowlist("L9: [")
        await relay.refresh()
        await relay.github.uninstall(GATING)
        await relay.drain()
        await relay.pass_time(61)
        [message] = receivers.chat.requests
        assert "the allowlist has 1 error" in message.json["text"]
        assert "the App was uninstalled" in message.json["text"]
        assert receivers.hook_notices == [
            ("setup_broken", "opened")
        ]  # the entry's channel gets only notices about the backend
        assert relay.github.issues(GATING) == []
        relay.write_allowlist(good)
        await relay.refresh()
        await relay.github.install(GATING)
        await relay.drain()
        await relay.pass_time(61)
        assert receivers.hook_notices[1:] == [("setup_repaired", "closed")]
        assert relay.rows("SELECT * FROM notice_threads WHERE state = 'open'") == []


async def test_the_outcome_of_a_bisection_is_notified_once(tmp_path: Path) -> None:
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


async def test_waiting_messages_of_a_removed_channel_are_dropped_with_a_note(tmp_path: Path) -> None:
    async with notifying_relay(tmp_path, digest="09:00") as receivers:
        await turn_red(receivers)
        handlers = receivers.relay.services.worker._handlers
        sender = next(handler for kind, handler in handlers.items() if kind.value == "send_notices")
        sender._channels.pop("hook")  # type: ignore[attr-defined]
        for _ in range(24):
            await receivers.relay.pass_time(HOUR)
        [row] = receivers.relay.rows("SELECT state, note FROM notice_messages WHERE channel = 'hook'")
        assert row == {"state": "dropped", "note": "the settings no longer have this channel"}
