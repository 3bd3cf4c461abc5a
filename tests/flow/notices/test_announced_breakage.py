"""Announced breakage from the label to the answers: notified once, updated in place, closed with the pull request."""

from pathlib import Path
from typing import Any

import pytest

from github_sim.github import Match, PullRequest
from support.github.gated_upstream import gated_upstream, write_comment
from support.running_relay import UPSTREAM, RunningRelay

LABEL = "crcr/breaking"
ONE, TWO, OTHER, HIDDEN = "org/one", "org/two", "org/other", "org/hidden"
ALLOWLIST = f"""
L2:
  - {ONE}: {{oncalls: [ann], channels: [issues, pulls]}}
  - {TWO}: {{oncalls: [ann, bob], paths: ["src/**"], channels: [issues]}}
  - {OTHER}: {{oncalls: [eve], paths: ["docs/**"], channels: [issues]}}
  - {HIDDEN}: {{oncalls: [ann], visibility: hidden, channels: [issues, pulls]}}
"""
CHANNELS = '[{"name": "issues", "kind": "issue"}, {"name": "pulls", "kind": "comment"}]'
BODY = "Removes it.\n\n## Downstream\n\nRename `old()` to `new()` by March. @everyone\n"


async def sweep_and_send(relay: RunningRelay) -> None:
    """Run the leader's sweep, and send everything that is due within ten seconds."""
    await relay.drain()
    await relay.services.sweeper.look_at_base()
    await relay.drain()
    await relay.pass_time(10)


async def read_pull(relay: RunningRelay, pull: PullRequest) -> Any:
    send_command = await relay.http.get(f"/api/v1/pulls/{pull.number}", params={"upstream": UPSTREAM})
    return send_command.json()["announcement"]


def issues(relay: RunningRelay) -> dict[str, list[str]]:
    names = (ONE, TWO, OTHER, HIDDEN)
    return {name: [issue.state for issue in relay.github.issues(name)] for name in names}


@pytest.mark.parametrize("end", ["merge", "close", "unlabel", "edit"])
async def test_an_announced_breakage_is_notified_once_acknowledged_and_closed(
    tmp_path: Path, end: str
) -> None:
    async with gated_upstream(
        tmp_path, ALLOWLIST, downstreams=(ONE, TWO, OTHER, HIDDEN), CRCR_CHANNELS=CHANNELS
    ) as relay:
        pull = await relay.github.open_pr(UPSTREAM, title="Remove old()", body="Removes it.")
        await sweep_and_send(relay)
        await relay.github.label_pr(pull, LABEL)
        await sweep_and_send(relay)
        assert (await read_pull(relay, pull))["state"] == "incomplete"
        assert relay.rows("SELECT * FROM notice_threads") == []

        relay.clock.advance(60)
        await relay.github.edit_pr(pull, body=BODY)
        await sweep_and_send(relay)
        await sweep_and_send(relay)
        assert issues(relay) == {ONE: ["open"], TWO: ["open"], OTHER: [], HIDDEN: ["open"]}
        [issue] = relay.github.issues(ONE)
        assert issue.title == f"{UPSTREAM}#{pull.number} announces a breaking change for {ONE}"
        assert "announced: ``Rename `old()` to `new()` by March. @everyone``" in (issue.body or "")
        [comment] = relay.github.comments(pull)
        assert ONE in comment.body
        assert HIDDEN not in comment.body
        events = relay.rows("SELECT * FROM notice_events")
        assert len(events) == 3

        await write_comment(relay, pull, f"/crcr ack {ONE}", author="ann", after_s=300)
        await sweep_and_send(relay)
        announcement = await read_pull(relay, pull)
        assert all(row["has_channel"] and row["notified_at"] for row in announcement["backends"])
        assert [
            (row["name"], [answer["who"] for answer in row["answers"]]) for row in announcement["backends"]
        ] == [
            (TWO, []),
            (ONE, ["ann"]),
        ]
        assert "answered by: `ann`" in (relay.github.issues(ONE)[0].body or "")

        changes = len(relay.rows("SELECT * FROM notice_events"))
        for month in ("April", "June", "May"):
            relay.clock.advance(60)
            await relay.github.edit_pr(pull, body=BODY.replace("March", month))
            await sweep_and_send(relay)
        assert (
            len(relay.rows("SELECT * FROM notice_events")) <= changes + 2
        )  # one of the three threads had no change
        relay.clock.advance(300)
        await sweep_and_send(relay)
        assert "by May" in (relay.github.issues(ONE)[0].body or "")
        assert len(relay.github.issues(ONE)) == 1
        [newest_answer] = (await read_pull(relay, pull))["backends"][1]["answers"]
        assert newest_answer["is_outdated"] is True

        await end_announcement(relay, pull, end)
        await sweep_and_send(relay)
        assert issues(relay) == {ONE: ["closed"], TWO: ["closed"], OTHER: [], HIDDEN: ["closed"]}


async def end_announcement(relay: RunningRelay, pull: PullRequest, end: str) -> None:
    relay.clock.advance(60)
    if end == "unlabel":
        await relay.github.unlabel_pr(pull, LABEL)
    elif end == "edit":
        await relay.github.edit_pr(pull, body="No paragraph.")
    else:
        await relay.github.close_pr(pull, merged=end == "merge")


async def test_only_people_of_a_backend_can_acknowledge_for_it(tmp_path: Path) -> None:
    async with gated_upstream(tmp_path, ALLOWLIST, downstreams=(ONE, TWO, OTHER, HIDDEN)) as relay:
        pull = await relay.github.open_pr(UPSTREAM, body=BODY, labels=[LABEL])
        await relay.drain()
        relay.github.set_permission(TWO, "writer", "write")
        relay.github.set_permission(TWO, "triager", "triage")

        async def send_command(author: str, text: str) -> tuple[list[str], str]:
            before = len(relay.github.comments(pull))
            command = await write_comment(relay, pull, text, author=author)
            replies = [comment.body for comment in relay.github.comments(pull)[before + 1 :]]
            return [reaction.content for reaction in command.reactions], replies[0] if replies else ""

        def count_roles_read() -> int:
            return sum(
                "/collaborators/" in call.path and UPSTREAM not in call.path for call in relay.github.calls
            )

        assert (await send_command("stranger", "/crcr ack"))[0] == ["-1"]
        assert count_roles_read() == 0
        relay.github.faults.answer(
            403, on=Match("GET", f"/repos/{TWO}/collaborators/writer/permission"), times=1
        )
        assert (await send_command("writer", f"/crcr ack {TWO}"))[0] == ["-1"]  # the App may not read it
        for author, text, reason in (
            ("triager", f"/crcr ack {TWO}", "you may not answer for it"),
            ("eve", f"/crcr ack {OTHER}", "was not told"),  # the change does not affect its paths
            ("prober", f"/crcr ack {HIDDEN}", "was not told"),
            ("ann", "/crcr ack", f"3 backends; name one: `/crcr ack {ONE}`, `/crcr ack {TWO}`"),
        ):
            reactions, reply = await send_command(author, text)
            assert (reactions, reason in reply) == (["-1"], True), reply
            assert HIDDEN not in reply or author == "prober"
        assert relay.rows("SELECT * FROM announcement_answers") == []

        assert (await send_command("bob", "/crcr ack"))[0] == ["+1"]
        assert (await send_command("writer", f"/crcr ack {TWO}"))[0] == ["+1"]
        assert (await send_command("ann", f"/crcr ack {HIDDEN}"))[0] == ["+1"]
        assert (await send_command("ann", f"/crcr ack {HIDDEN}"))[0] == ["+1"]  # a repeat is success
        assert count_roles_read() == 4
        rows = relay.rows("SELECT backend, who FROM announcement_answers ORDER BY backend, who")
        assert [tuple(row.values()) for row in rows] == [(HIDDEN, "ann"), (TWO, "bob"), (TWO, "writer")]
        _, reply = await send_command("maintainer", "/crcr status")
        assert f"answered: `{TWO}`; not yet answered: `{ONE}`" in reply
        assert HIDDEN not in reply
        await sweep_and_send(relay)
        backends = (await read_pull(relay, pull))["backends"]
        assert {(row["has_channel"], row["notified_at"]) for row in backends} == {(False, None)}
        page = await relay.http.get(f"/crcr/pr/{pull.number}", params={"upstream": UPSTREAM})
        assert "no channel" in page.text
        listed = await relay.http.get("/api/v1/pulls", params={"only": "breaking", "upstream": UPSTREAM})
        assert [item["number"] for item in listed.json()["items"]] == [pull.number]
