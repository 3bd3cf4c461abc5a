"""What an entry's options do to the events it gets."""

from pathlib import Path

from support.github.dispatch_log import dispatched_actions, dispatched_events
from support.running_relay import UPSTREAM, RunningRelay, running_relay

ONE = ("org/one",)


def one(options: str) -> str:
    return f"L1:\n  - org/one: {{{options}}}\n"


def refs(relay: RunningRelay) -> list[str]:
    return [each.client_payload["payload"]["ref"] for each in relay.github.dispatches("org/one")]


async def test_a_draft_is_held_where_drafts_are_not_wanted_and_released_as_it_was(tmp_path: Path) -> None:
    async with running_relay(tmp_path, one("drafts: false"), downstreams=ONE) as relay:
        pr = await relay.github.open_pr(UPSTREAM, draft=True)
        assert pr.last_delivery is not None
        opened = pr.last_delivery.guid
        await relay.drain()
        assert relay.github.dispatches() == []
        relay.clock.advance(60)
        await relay.github.ready_for_review(pr)
        await relay.drain()

        [sent] = relay.github.dispatches()
        assert (sent.delivery_id, sent.client_payload["payload"]["action"]) == (opened, "opened")


async def test_only_the_newest_head_of_a_draft_is_released(tmp_path: Path) -> None:
    async with running_relay(tmp_path, one("drafts: false"), downstreams=ONE) as relay:
        pr = await relay.github.open_pr(UPSTREAM, draft=True)
        for _ in range(2):
            relay.clock.advance(1)
            await relay.github.push_to_pr(pr)
        relay.clock.advance(1)
        await relay.github.ready_for_review(pr)
        await relay.drain()

        assert dispatched_events(relay.github, "org/one") == [("synchronize", pr.head_sha)]


async def test_a_draft_that_is_closed_tells_its_closing_only(tmp_path: Path) -> None:
    async with running_relay(tmp_path, one("drafts: false"), downstreams=ONE) as relay:
        pr = await relay.github.open_pr(UPSTREAM, draft=True)
        relay.clock.advance(1)
        await relay.github.close_pr(pr)
        await relay.drain()

        assert dispatched_actions(relay.github, "org/one") == ["closed"]


async def test_back_to_draft_holds_the_next_push(tmp_path: Path) -> None:
    async with running_relay(tmp_path, one("drafts: false"), downstreams=ONE) as relay:
        pr = await relay.github.open_pr(UPSTREAM)
        await relay.pass_time(1)
        await relay.github.convert_to_draft(pr)
        relay.clock.advance(1)
        await relay.github.push_to_pr(pr)
        await relay.drain()

        assert dispatched_actions(relay.github, "org/one") == ["opened"]


async def test_drafts_are_sent_by_default(tmp_path: Path) -> None:
    async with running_relay(tmp_path, "L1:\n  - org/one\n", downstreams=ONE) as relay:
        await relay.github.open_pr(UPSTREAM, draft=True)
        await relay.drain()

        assert dispatched_actions(relay.github, "org/one") == ["opened"]


async def test_labels_choose_the_pull_requests(tmp_path: Path) -> None:
    async with running_relay(tmp_path, one('labels: ["module: npu*"]'), downstreams=ONE) as relay:
        await relay.github.open_pr(UPSTREAM, labels=["module: cuda"])
        wanted = await relay.github.open_pr(UPSTREAM, labels=["x", "Module: NPU-core"])
        await relay.drain()

        assert dispatched_events(relay.github, "org/one") == [("opened", wanted.head_sha)]


async def test_a_label_counts_for_the_next_push(tmp_path: Path) -> None:
    async with running_relay(tmp_path, one("labels: [npu]"), downstreams=ONE) as relay:
        pr = await relay.github.open_pr(UPSTREAM)
        relay.clock.advance(1)
        await relay.github.label_pr(pr, "npu")
        relay.clock.advance(1)
        await relay.github.push_to_pr(pr)
        await relay.drain()

        assert dispatched_events(relay.github, "org/one") == [("synchronize", pr.head_sha)]


async def test_trusted_authors_leaves_strangers_out(tmp_path: Path) -> None:
    async with running_relay(tmp_path, one("authors: trusted"), downstreams=ONE) as relay:
        for association in ("NONE", "FIRST_TIME_CONTRIBUTOR", "FIRST_TIMER", "MANNEQUIN"):
            await relay.github.open_pr(UPSTREAM, author_association=association, fork=True)
        trusted = [
            await relay.github.open_pr(UPSTREAM, author_association=association)
            for association in ("OWNER", "MEMBER", "COLLABORATOR", "CONTRIBUTOR")
        ]
        await relay.drain()

        assert [head for _, head in dispatched_events(relay.github, "org/one")] == [
            each.head_sha for each in trusted
        ]


async def test_approved_authors_are_held_until_somebody_approves(tmp_path: Path) -> None:
    async with running_relay(tmp_path, one("authors: approved"), downstreams=ONE) as relay:
        await relay.github.open_pr(UPSTREAM, author_association="OWNER")
        await relay.drain()

        assert relay.github.dispatches() == []
        assert relay.rows("SELECT state, reason FROM dispatches") == [{"state": "held", "reason": "approval"}]


async def test_pushes_go_out_for_branches_tags_and_deletions_alike(tmp_path: Path) -> None:
    async with running_relay(tmp_path, "L1:\n  - org/one\n", downstreams=ONE) as relay:
        for ref in ("refs/heads/topic", "refs/tags/v1.0"):
            await relay.github.push(UPSTREAM, ref=ref, created=True)
            await relay.github.push(UPSTREAM, ref=ref, deleted=True)
        await relay.drain()

        sent = [each.client_payload["payload"] for each in relay.github.dispatches("org/one")]
        assert sorted((each["ref"], each["deleted"]) for each in sent) == [
            ("refs/heads/topic", False),
            ("refs/heads/topic", True),
            ("refs/tags/v1.0", False),
            ("refs/tags/v1.0", True),
        ]


async def test_refs_choose_the_pushes_and_no_pull_request(tmp_path: Path) -> None:
    async with running_relay(
        tmp_path, one('refs: ["main", "refs/heads/release/**"]'), downstreams=ONE
    ) as relay:
        for ref in ("heads/main", "heads/release/2.0", "heads/topic", "tags/v1"):
            await relay.github.push(UPSTREAM, ref=f"refs/{ref}")
        pr = await relay.github.open_pr(UPSTREAM, base="topic")
        await relay.drain()

        payloads = [each.client_payload["payload"] for each in relay.github.dispatches("org/one")]
        assert sorted(each["ref"] for each in payloads if "ref" in each) == [
            "refs/heads/main",
            "refs/heads/release/2.0",
        ]
        assert dispatched_events(relay.github, "org/one") == [("opened", pr.head_sha)]


async def test_refs_that_the_upstream_ignores_are_never_dispatched(tmp_path: Path) -> None:
    async with running_relay(tmp_path, "L1:\n  - org/one\n", downstreams=ONE) as relay:
        stacked = await relay.github.push(UPSTREAM, ref="refs/heads/gh/someone/12/head")
        queued = await relay.github.push(UPSTREAM, ref="refs/heads/gh-readonly-queue/main/pr-1-abc")
        await relay.github.push(UPSTREAM, ref="refs/heads/ghost")
        await relay.drain()

        assert all(each and "ignored" in each.answer_body for each in (stacked, queued))
        assert refs(relay) == ["refs/heads/ghost"]


async def test_two_pushes_to_one_ref_arrive_in_their_order(tmp_path: Path) -> None:
    async with running_relay(tmp_path, "L1:\n  - org/one\n", downstreams=ONE) as relay:
        relay.github.faults.answer(500, times=2)
        await relay.github.push(UPSTREAM)
        await relay.github.push(UPSTREAM)
        for _ in range(4):
            await relay.pass_time(10)

        first, second = (each.client_payload["payload"] for each in relay.github.dispatches("org/one"))
        assert first["after"] == second["before"]


async def test_events_choose_what_comes_at_all(tmp_path: Path) -> None:
    async with running_relay(tmp_path, one("events: [nightly]"), downstreams=ONE) as relay:
        await relay.github.push(UPSTREAM)
        await relay.github.open_pr(UPSTREAM)
        await relay.drain()

        assert relay.github.dispatches() == []
