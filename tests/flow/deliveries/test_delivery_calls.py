"""API calls per dispatch: one, once installation and token are known; tokens have the smallest scope."""

import json
from pathlib import Path
from typing import Any

from github_sim.github import GitHub, Match
from support.github.dispatch_log import BOTH, TWO, dispatched_actions
from support.running_relay import UPSTREAM, running_relay

MINTS = "/app/installations/*/access_tokens"


def token_requests(github: GitHub) -> list[dict[str, Any]]:
    return [json.loads(call.body) for call in github.calls_to("POST", MINTS)]


async def test_a_dispatch_is_one_api_call_once_installation_and_token_are_known(tmp_path: Path) -> None:
    async with running_relay(tmp_path, TWO, downstreams=BOTH) as relay:
        await relay.github.open_pr(UPSTREAM)
        await relay.drain()
        before = len(relay.github.calls)
        for _ in range(10):
            await relay.github.open_pr(UPSTREAM)
        await relay.drain()

        new_calls = relay.github.calls[before:]
        assert len(new_calls) == 20
        assert {call.route for call in new_calls} == {"/repos/{owner}/{repo}/dispatches"}


async def test_a_dispatch_token_is_scoped_to_one_repository_and_one_permission(tmp_path: Path) -> None:
    async with running_relay(tmp_path, TWO, downstreams=BOTH) as relay:
        before = len(token_requests(relay.github))
        await relay.github.open_pr(UPSTREAM)
        await relay.drain()

        new_requests = token_requests(relay.github)[before:]
        assert sorted(request["repository_ids"] for request in new_requests) == sorted(
            [relay.github.repository(name).id] for name in BOTH
        )
        assert [request["permissions"] for request in new_requests] == [{"contents": "write"}] * 2


async def test_a_token_is_renewed_before_it_expires_and_not_earlier(tmp_path: Path) -> None:
    async with running_relay(tmp_path, TWO, downstreams=BOTH) as relay:
        await relay.github.open_pr(UPSTREAM)
        await relay.drain()
        before = len(token_requests(relay.github))
        await relay.github.open_pr(UPSTREAM)
        await relay.pass_time(50 * 60)
        assert len(token_requests(relay.github)) == before

        await relay.github.open_pr(UPSTREAM)
        await relay.pass_time(6 * 60)
        assert len(token_requests(relay.github)) == before + 2
        assert {call.status for call in relay.github.calls_to("POST", "/repos/*/dispatches")} == {204}


async def test_a_target_whose_id_is_unknown_gets_a_token_scoped_to_its_name(tmp_path: Path) -> None:
    names = tuple(f"org/backend{number}" for number in range(20))
    repository_lookup = Match("GET", "/repos/org/*")

    async with running_relay(tmp_path, "L1: []\n", downstreams=names) as relay:
        relay.github.faults.answer(404, message="Not Found", on=repository_lookup)
        relay.write_allowlist("L1:\n" + "".join(f"  - {name}\n" for name in names))
        await relay.refresh()
        await relay.drain()
        relay.github.faults.clear()
        before = len(token_requests(relay.github))
        await relay.github.open_pr(UPSTREAM)
        await relay.drain()

        scopes = [{"permissions": {"contents": "write"}, "repositories": [name[4:]]} for name in names]
        assert sorted(token_requests(relay.github)[before:], key=str) == sorted(scopes, key=str)
        assert [dispatched_actions(relay.github, name) for name in names] == [["opened"]] * 20


async def test_a_token_that_github_rejects_is_replaced_at_once(tmp_path: Path) -> None:
    async with running_relay(tmp_path, TWO, downstreams=BOTH) as relay:
        await relay.github.open_pr(UPSTREAM)
        await relay.drain()
        relay.github.world.tokens.clear()
        await relay.github.open_pr(UPSTREAM)
        await relay.drain()

        assert [dispatched_actions(relay.github, name) for name in BOTH] == [["opened", "opened"]] * 2
