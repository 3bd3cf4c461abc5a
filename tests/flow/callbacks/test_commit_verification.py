"""Commits of self-reports are compared with the upstream's branches: only base history counts, and an outage decides nothing."""

from pathlib import Path
from typing import Any

import pytest

from github_sim.world.faults import Match
from support.downstream.callbacks import BACKEND, report_outcome
from support.downstream.self_reports import (
    nightly_run,
    recorded_standing,
    relay_with_backend,
    send_self_report,
    upstream_head,
)
from support.running_relay import UPSTREAM, RunningRelay, running_relay

MADE_UP = "5" * 40
COMPARE, COMMITS = Match(path="*/compare/*"), Match(path="*/git/commits/*")
REPOSITORY = Match(path=f"/repos/{UPSTREAM}")


async def report_and_verify(relay: RunningRelay, sha: str) -> tuple[str, str | None]:
    """Report on the commit, let the relay verify it with GitHub, and return its recorded standing."""
    assert report_outcome(await send_self_report(relay, nightly_run(relay), commit=sha)) == "applied"
    assert recorded_standing(relay, sha) == ("unchecked", None)
    await relay.drain()
    return recorded_standing(relay, sha)


def verification_effects(relay: RunningRelay, sha: str = "%") -> list[dict[str, Any]]:
    wanted = "kind = 'verify_commit' AND lane LIKE ?"
    return relay.rows(f"SELECT target, lane, state FROM effects WHERE {wanted} ORDER BY effect_id", sha)  # noqa: S608


def compare_calls(relay: RunningRelay) -> list[str]:
    return [call.path for call in relay.github.calls if "/compare/" in call.path]


async def push_to_branch(relay: RunningRelay, branch: str) -> str:
    """Push a commit that only this branch has, and return it."""
    await relay.github.push(UPSTREAM, ref=f"refs/heads/{branch}")
    return relay.github.repository(UPSTREAM).branches[branch]


async def test_the_newest_commit_and_its_ancestors_are_base_history(tmp_path: Path) -> None:
    async with relay_with_backend(tmp_path) as relay:
        old = upstream_head(relay)
        await relay.github.push(UPSTREAM, commits=3)
        assert await report_and_verify(relay, old) == ("base", "main")
        assert await report_and_verify(relay, upstream_head(relay)) == ("base", "main")


@pytest.mark.parametrize("branch", ["nightly", "release/2.1", "release/2.1/hotfix"])
async def test_nightly_and_release_branches_are_base_history(tmp_path: Path, branch: str) -> None:
    async with relay_with_backend(tmp_path) as relay:
        sha = await push_to_branch(relay, branch)
        assert await report_and_verify(relay, sha) == ("base", branch)


@pytest.mark.parametrize("branch", ["release-notes", "gh/ada/1", "nightly-old", "releases/2"])
async def test_commits_of_any_other_branch_are_not_base_history(tmp_path: Path, branch: str) -> None:
    async with relay_with_backend(tmp_path) as relay:
        assert await report_and_verify(relay, await push_to_branch(relay, branch)) == ("elsewhere", None)


async def test_the_default_branch_is_read_from_github(tmp_path: Path) -> None:
    async with relay_with_backend(tmp_path) as relay:
        repository = relay.github.repository(UPSTREAM)
        sha = await push_to_branch(relay, "trunk")
        repository.default_branch = "trunk"
        assert await report_and_verify(relay, sha) == ("base", "trunk")


@pytest.mark.parametrize("fork", [True, False])
async def test_fault_24_a_pull_request_commit_that_github_knows_is_not_base_history(
    tmp_path: Path, fork: bool
) -> None:
    async with relay_with_backend(tmp_path) as relay:
        pull = await relay.github.open_pr(UPSTREAM, fork=fork)
        assert await report_and_verify(relay, pull.head_sha) == ("elsewhere", None)
        shown = await relay.http.get(f"/crcr/commit/{pull.head_sha}")
        assert "Not in the upstream&#39;s history" in shown.text
        api = (await relay.http.get(f"/api/v1/commits/{pull.head_sha}")).json()
        assert api["place"] == {"standing": "elsewhere", "branch": None}


async def test_fault_24_a_made_up_commit_is_unknown(tmp_path: Path) -> None:
    async with relay_with_backend(tmp_path) as relay:
        assert await report_and_verify(relay, MADE_UP) == ("unknown", None)
        compare_routes = [call.route for call in relay.github.calls if "/compare/" in call.path]
        assert len(compare_routes) == 1
        row = (await relay.http.get(f"/api/v1/backends/{BACKEND}?kind=nightly")).json()["rows"][0]
        assert row["place"] == {"standing": "unknown", "branch": None}
        page = await relay.http.get(f"/crcr/{BACKEND}?kind=nightly")
        assert "commit unknown" in page.text


async def test_only_the_newest_release_branches_are_compared(tmp_path: Path) -> None:
    async with relay_with_backend(tmp_path) as relay:
        oldest = await push_to_branch(relay, "release/1.9")
        for minor in range(12):
            await relay.github.push(UPSTREAM, ref=f"refs/heads/release/2.{minor}")
        newest = relay.github.repository(UPSTREAM).branches["release/2.2"]
        assert await report_and_verify(relay, oldest) == ("elsewhere", None)
        compared_paths = [call.path for call in relay.github.calls if "/compare/" in call.path]
        assert [path.rpartition("/compare/")[2].partition("...")[0] for path in compared_paths] == [
            "main",
            "nightly",
            *(f"release/2.{minor}" for minor in range(11, 1, -1)),
        ]
        assert await report_and_verify(relay, newest) == ("base", "release/2.2")


async def test_a_commit_is_compared_once_regardless_of_the_number_of_reports(tmp_path: Path) -> None:
    async with running_relay(
        tmp_path, "L2:\n  - org/a\n  - org/b\n", downstreams=("org/a", "org/b")
    ) as relay:
        for name in ("org/a", "org/b", "org/a"):
            run = nightly_run(relay, name)
            await send_self_report(relay, run, "build", commit=upstream_head(relay))
            await send_self_report(relay, run, "test", commit=upstream_head(relay))
        await relay.drain()
        await send_self_report(relay, nightly_run(relay, "org/b"), commit=upstream_head(relay))
        await relay.pass_time(90_000)
        await send_self_report(relay, nightly_run(relay, "org/b"), commit=upstream_head(relay))
        await relay.drain()
        assert len([call for call in relay.github.calls if "/compare/" in call.path]) == 1


@pytest.mark.parametrize("where", [COMPARE, COMMITS, REPOSITORY], ids=["compare", "commit", "repository"])
@pytest.mark.parametrize("status", [500, 502, 429])
async def test_a_github_outage_leaves_a_commit_unchecked(tmp_path: Path, where: Match, status: int) -> None:
    async with relay_with_backend(tmp_path) as relay:
        fault = relay.github.faults.answer(status, on=where)
        assert await report_and_verify(relay, MADE_UP) == ("unchecked", None)
        assert "being checked" in (await relay.http.get(f"/crcr/{BACKEND}?kind=nightly")).text
        relay.github.faults.remove(fault)
        await relay.pass_time(7_200)
        assert recorded_standing(relay, MADE_UP) == ("unknown", None)


@pytest.mark.parametrize("status", [403, 404, 422])
async def test_a_refusal_that_is_not_about_the_commit_leaves_it_unchecked(
    tmp_path: Path, status: int
) -> None:
    """The App may be uninstalled or may lack read access; neither says anything about the commit."""
    async with relay_with_backend(tmp_path) as relay:
        fault = relay.github.faults.answer(status, on=REPOSITORY, message="Not for you")
        assert await report_and_verify(relay, MADE_UP) == ("unchecked", None)
        relay.github.faults.remove(fault)
        await relay.pass_time(3_700)
        await send_self_report(relay, nightly_run(relay), commit=MADE_UP)
        await relay.drain()
        assert recorded_standing(relay, MADE_UP) == ("unknown", None)


async def test_a_missing_app_installation_leaves_a_commit_unchecked(tmp_path: Path) -> None:
    def uninstalled(github: Any) -> None:
        github.installation(UPSTREAM).repository_ids.discard(github.repository(UPSTREAM).id)

    async with relay_with_backend(tmp_path, prepare=uninstalled) as relay:
        assert await report_and_verify(relay, upstream_head(relay)) == ("unchecked", None)


async def test_a_commit_that_reaches_the_base_branch_later_becomes_base_history(tmp_path: Path) -> None:
    async with relay_with_backend(tmp_path) as relay:
        sha = await push_to_branch(relay, "topic")
        assert await report_and_verify(relay, sha) == ("elsewhere", None)
        relay.github.repository(UPSTREAM).branches["main"] = sha
        await send_self_report(relay, nightly_run(relay), commit=sha)
        await relay.drain()
        assert recorded_standing(relay, sha) == ("elsewhere", None), "not asked again at once"
        await relay.pass_time(3_700)
        await send_self_report(relay, nightly_run(relay), commit=sha)
        await relay.drain()
        assert recorded_standing(relay, sha) == ("base", "main")


async def test_checks_of_made_up_commits_are_rate_limited_and_bounded(tmp_path: Path) -> None:
    async with relay_with_backend(tmp_path) as relay:
        run = nightly_run(relay)
        for number in range(120):
            await send_self_report(relay, run, commit=f"{number + 1:040x}")
        assert len(verification_effects(relay)) == 20
        await relay.drain()
        assert len(compare_calls(relay)) == 1
        await relay.pass_time(61)
        assert len(compare_calls(relay)) == 11


async def test_made_up_commits_of_one_backend_do_not_delay_checks_of_another(tmp_path: Path) -> None:
    async with running_relay(
        tmp_path, "L2:\n  - org/evil\n  - org/good\n", downstreams=("org/evil", "org/good")
    ) as relay:
        evil = nightly_run(relay, "org/evil")
        for number in range(25):
            await send_self_report(relay, evil, commit=f"{number + 1:040x}")
        await send_self_report(relay, evil, commit=upstream_head(relay))  # over the share of this backend
        await send_self_report(relay, nightly_run(relay, "org/good"), commit=upstream_head(relay))
        assert {row["target"] for row in verification_effects(relay, upstream_head(relay))} == {
            "commits org/good"
        }
        await relay.pass_time(125)
        assert recorded_standing(relay, upstream_head(relay)) == ("base", "main")
        shown = (await relay.http.get("/api/v1/effects")).text + (await relay.http.get("/crcr/effects")).text
        assert "commits org" not in shown


async def test_commits_over_the_limit_are_checked_later_oldest_first(tmp_path: Path) -> None:
    async with relay_with_backend(tmp_path) as relay:
        run = nightly_run(relay)
        shas = [f"{number + 1:040x}" for number in range(50)]
        for sha in reversed(shas):
            relay.clock.advance(3)
            await send_self_report(relay, run, commit=sha)
        waiting_shas = [
            row["sha"]
            for row in relay.rows("SELECT sha FROM commits WHERE ask_at = seen_at ORDER BY seen_at")
        ]
        await relay.services.sweeper.sweep()
        queued_shas = {row["lane"] for row in verification_effects(relay) if row["target"] == "commits"}
        assert queued_shas == set(waiting_shas[:20])
        await relay.services.sweeper.sweep()
        assert len([row for row in verification_effects(relay) if row["target"] == "commits"]) == 20, (
            "bounded"
        )
        for _ in range(30):
            await relay.pass_time(30)
            await relay.services.sweeper.sweep()
        assert {recorded_standing(relay, sha) for sha in shas} == {("unknown", None)}


async def test_a_parked_verification_is_retried_automatically(tmp_path: Path) -> None:
    async with relay_with_backend(tmp_path) as relay:
        fault = relay.github.faults.answer(403, on=REPOSITORY, message="Not for you")
        assert await report_and_verify(relay, upstream_head(relay)) == ("unchecked", None)
        assert [row["state"] for row in verification_effects(relay)] == ["parked"]
        relay.github.faults.remove(fault)
        await relay.services.sweeper.sweep()
        assert len(verification_effects(relay)) == 1, "not at once"
        await relay.pass_time(26 * 3600)
        await relay.services.sweeper.sweep()
        await relay.drain()
        assert recorded_standing(relay, upstream_head(relay)) == ("base", "main")
        assert [row["state"] for row in verification_effects(relay)] == ["cancelled", "done"]


async def test_verification_ends_as_unanswered_after_enough_attempts(tmp_path: Path) -> None:
    async with relay_with_backend(tmp_path) as relay:
        relay.github.faults.answer(403, on=REPOSITORY, message="Not for you")
        assert await report_and_verify(relay, MADE_UP) == ("unchecked", None)
        for _ in range(16):
            await relay.pass_time(24 * 3600 + 3601)
            await relay.services.sweeper.sweep()
            await relay.drain()
        assert recorded_standing(relay, MADE_UP) == ("unanswered", None)
        effects_so_far = len(verification_effects(relay))
        assert {row["state"] for row in verification_effects(relay)} == {"cancelled"}
        page = (await relay.http.get(f"/crcr/commit/{MADE_UP}")).text
        assert ("Being checked" in page, "Not checked" in page) == (False, True)
        await relay.pass_time(24 * 3600 + 3601)
        await relay.services.sweeper.sweep()
        assert len(verification_effects(relay)) == effects_so_far
        relay.github.faults.clear()
        await send_self_report(relay, nightly_run(relay), commit=MADE_UP)
        await relay.drain()
        assert recorded_standing(relay, MADE_UP) == ("unknown", None), "somebody reported about it again"


async def test_a_verified_commit_is_published_to_the_pages(tmp_path: Path) -> None:
    async with relay_with_backend(tmp_path) as relay:
        await send_self_report(relay, nightly_run(relay), commit=upstream_head(relay))
        before = relay.rows("SELECT max(change_id) AS id FROM changes")[0]["id"]
        await relay.drain()
        [change] = relay.rows("SELECT kind, downstream FROM changes WHERE change_id > ?", before)
        assert change == {"kind": "commit", "downstream": None}
