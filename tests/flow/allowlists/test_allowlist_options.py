"""How the options of an allowlist entry filter and hold its events."""

from pathlib import Path

from support.github.dispatch_log import dispatched_actions, dispatched_events
from support.running_relay import UPSTREAM, RunningRelay, running_relay

ONE = ("org/one",)


def listed_with(options: str) -> str:
    return f"L1:\n  - org/one: {{{options}}}\n"


def refs(relay: RunningRelay) -> list[str]:
    return [dispatch.client_payload["payload"]["ref"] for dispatch in relay.github.dispatches("org/one")]


async def test_a_draft_is_held_when_drafts_is_false_and_released_with_its_original_event(
    tmp_path: Path,
) -> None:
    async with running_relay(tmp_path, listed_with("drafts: false"), downstreams=ONE) as relay:
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
    async with running_relay(tmp_path, listed_with("drafts: false"), downstreams=ONE) as relay:
        pr = await relay.github.open_pr(UPSTREAM, draft=True)
        for _ in range(2):
            relay.clock.advance(1)
            await relay.github.push_to_pr(pr)
        relay.clock.advance(1)
        await relay.github.ready_for_review(pr)
        await relay.drain()

        assert dispatched_events(relay.github, "org/one") == [("synchronize", pr.head_sha)]


async def test_a_closed_draft_dispatches_only_the_closed_event(tmp_path: Path) -> None:
    async with running_relay(tmp_path, listed_with("drafts: false"), downstreams=ONE) as relay:
        pr = await relay.github.open_pr(UPSTREAM, draft=True)
        relay.clock.advance(1)
        await relay.github.close_pr(pr)
        await relay.drain()

        assert dispatched_actions(relay.github, "org/one") == ["closed"]


async def test_converting_to_draft_holds_the_next_push(tmp_path: Path) -> None:
    async with running_relay(tmp_path, listed_with("drafts: false"), downstreams=ONE) as relay:
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


async def test_the_labels_option_selects_pull_requests(tmp_path: Path) -> None:
    async with running_relay(tmp_path, listed_with('labels: ["module: npu*"]'), downstreams=ONE) as relay:
        await relay.github.open_pr(UPSTREAM, labels=["module: cuda"])
        matching = await relay.github.open_pr(UPSTREAM, labels=["x", "Module: NPU-core"])
        await relay.drain()

        assert dispatched_events(relay.github, "org/one") == [("opened", matching.head_sha)]


async def test_a_label_added_later_applies_to_the_next_push(tmp_path: Path) -> None:
    async with running_relay(tmp_path, listed_with("labels: [npu]"), downstreams=ONE) as relay:
        pr = await relay.github.open_pr(UPSTREAM)
        relay.clock.advance(1)
        await relay.github.label_pr(pr, "npu")
        relay.clock.advance(1)
        await relay.github.push_to_pr(pr)
        await relay.drain()

        assert dispatched_events(relay.github, "org/one") == [("synchronize", pr.head_sha)]


async def test_authors_trusted_excludes_untrusted_associations(tmp_path: Path) -> None:
    async with running_relay(tmp_path, listed_with("authors: trusted"), downstreams=ONE) as relay:
        for association in ("NONE", "FIRST_TIME_CONTRIBUTOR", "FIRST_TIMER", "MANNEQUIN"):
            await relay.github.open_pr(UPSTREAM, author_association=association, fork=True)
        trusted = [
            await relay.github.open_pr(UPSTREAM, author_association=association)
            for association in ("OWNER", "MEMBER", "COLLABORATOR", "CONTRIBUTOR")
        ]
        await relay.drain()

        assert [head for _, head in dispatched_events(relay.github, "org/one")] == [
            pull.head_sha for pull in trusted
        ]


async def test_authors_approved_holds_every_pull_request_until_approval(tmp_path: Path) -> None:
    async with running_relay(tmp_path, listed_with("authors: approved"), downstreams=ONE) as relay:
        await relay.github.open_pr(UPSTREAM, author_association="OWNER")
        await relay.drain()

        assert relay.github.dispatches() == []
        assert relay.rows("SELECT state, reason FROM dispatches") == [{"state": "held", "reason": "approval"}]


async def test_pushes_are_dispatched_for_branches_tags_and_deletions(tmp_path: Path) -> None:
    async with running_relay(tmp_path, "L1:\n  - org/one\n", downstreams=ONE) as relay:
        for ref in ("refs/heads/topic", "refs/tags/v1.0"):
            await relay.github.push(UPSTREAM, ref=ref, created=True)
            await relay.github.push(UPSTREAM, ref=ref, deleted=True)
        await relay.drain()

        sent = [dispatch.client_payload["payload"] for dispatch in relay.github.dispatches("org/one")]
        assert sorted((payload["ref"], payload["deleted"]) for payload in sent) == [
            ("refs/heads/topic", False),
            ("refs/heads/topic", True),
            ("refs/tags/v1.0", False),
            ("refs/tags/v1.0", True),
        ]


async def test_the_refs_option_filters_pushes_and_not_pull_requests(tmp_path: Path) -> None:
    async with running_relay(
        tmp_path, listed_with('refs: ["main", "refs/heads/release/**"]'), downstreams=ONE
    ) as relay:
        for ref in ("heads/main", "heads/release/2.0", "heads/topic", "tags/v1"):
            await relay.github.push(UPSTREAM, ref=f"refs/{ref}")
        pr = await relay.github.open_pr(UPSTREAM, base="topic")
        await relay.drain()

        payloads = [dispatch.client_payload["payload"] for dispatch in relay.github.dispatches("org/one")]
        assert sorted(payload["ref"] for payload in payloads if "ref" in payload) == [
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

        assert all(delivery and "ignored" in delivery.answer_body for delivery in (stacked, queued))
        assert refs(relay) == ["refs/heads/ghost"]


async def test_two_pushes_to_one_ref_are_dispatched_in_order(tmp_path: Path) -> None:
    async with running_relay(tmp_path, "L1:\n  - org/one\n", downstreams=ONE) as relay:
        relay.github.faults.answer(500, times=2)
        await relay.github.push(UPSTREAM)
        await relay.github.push(UPSTREAM)
        for _ in range(4):
            await relay.pass_time(10)

        first, second = (
            dispatch.client_payload["payload"] for dispatch in relay.github.dispatches("org/one")
        )
        assert first["after"] == second["before"]


async def test_the_events_option_limits_which_events_are_dispatched(tmp_path: Path) -> None:
    async with running_relay(tmp_path, listed_with("events: [nightly]"), downstreams=ONE) as relay:
        await relay.github.push(UPSTREAM)
        await relay.github.open_pr(UPSTREAM)
        await relay.drain()

        assert relay.github.dispatches() == []
