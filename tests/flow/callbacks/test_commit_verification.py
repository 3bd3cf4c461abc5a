"""Commits of self-reports held against the upstream's branches: only base history counts as such, and no outage is a verdict."""

from pathlib import Path
from typing import Any

import pytest

from github_sim.world.faults import Match
from support.downstream.callbacks import BACKEND, LISTED, report_outcome
from support.downstream.self_reports import nightly_run, recorded_standing, send_self_report, upstream_head
from support.stage import UPSTREAM, Stage, stage

MADE_UP = "5" * 40
COMPARE, COMMITS = Match(path="*/compare/*"), Match(path="*/git/commits/*")
REPOSITORY = Match(path=f"/repos/{UPSTREAM}")


def alone(folder: Path, allowlist: str = LISTED, **more: Any) -> Any:
    return stage(folder, allowlist, downstreams=(BACKEND,), **more)


async def verified(it: Stage, sha: str) -> tuple[str, str | None]:
    """Where the relay says that a commit stands, after somebody reported about it and GitHub was asked."""
    assert report_outcome(await send_self_report(it, nightly_run(it), commit=sha)) == "applied"
    assert recorded_standing(it, sha) == ("unchecked", None)
    await it.act()
    return recorded_standing(it, sha)


def questions(it: Stage, sha: str = "%") -> list[dict[str, Any]]:
    wanted = "kind = 'verify_commit' AND lane LIKE ?"
    return it.rows(f"SELECT target, lane, state FROM effects WHERE {wanted} ORDER BY effect_id", sha)  # noqa: S608


def asked(it: Stage) -> list[str]:
    return [call.path for call in it.github.calls if "/compare/" in call.path]


async def on_branch(it: Stage, branch: str) -> str:
    """A commit that only this branch has."""
    await it.github.push(UPSTREAM, ref=f"refs/heads/{branch}")
    return it.github.repository(UPSTREAM).branches[branch]


async def test_the_newest_commit_and_what_it_stands_on_are_base_history(tmp_path: Path) -> None:
    async with alone(tmp_path) as it:
        old = upstream_head(it)
        await it.github.push(UPSTREAM, commits=3)
        assert await verified(it, old) == ("base", "main")
        assert await verified(it, upstream_head(it)) == ("base", "main")


@pytest.mark.parametrize("branch", ["nightly", "release/2.1", "release/2.1/hotfix"])
async def test_nightly_and_release_branches_are_base_history(tmp_path: Path, branch: str) -> None:
    async with alone(tmp_path) as it:
        sha = await on_branch(it, branch)
        assert await verified(it, sha) == ("base", branch)


@pytest.mark.parametrize("branch", ["release-notes", "gh/ada/1", "nightly-old", "releases/2"])
async def test_any_other_branch_is_not(tmp_path: Path, branch: str) -> None:
    async with alone(tmp_path) as it:
        assert await verified(it, await on_branch(it, branch)) == ("elsewhere", None)


async def test_the_default_branch_is_the_one_that_github_names(tmp_path: Path) -> None:
    async with alone(tmp_path) as it:
        repository = it.github.repository(UPSTREAM)
        sha = await on_branch(it, "trunk")
        repository.default_branch = "trunk"
        assert await verified(it, sha) == ("base", "trunk")


@pytest.mark.parametrize("fork", [True, False])
async def test_fault_24_a_commit_that_github_only_knows_is_not_base_history(
    tmp_path: Path, fork: bool
) -> None:
    async with alone(tmp_path) as it:
        pull = await it.github.open_pr(UPSTREAM, fork=fork)
        assert await verified(it, pull.head_sha) == ("elsewhere", None)
        shown = await it.http.get(f"/crcr/commit/{pull.head_sha}")
        assert "Not in the upstream&#39;s history" in shown.text
        api = (await it.http.get(f"/api/v1/commits/{pull.head_sha}")).json()
        assert api["place"] == {"standing": "elsewhere", "branch": None}


async def test_fault_24_a_made_up_commit_is_unknown(tmp_path: Path) -> None:
    async with alone(tmp_path) as it:
        assert await verified(it, MADE_UP) == ("unknown", None)
        asked = [call.route for call in it.github.calls if "/compare/" in call.path]
        assert len(asked) == 1
        row = (await it.http.get(f"/api/v1/backends/{BACKEND}?kind=nightly")).json()["rows"][0]
        assert row["place"] == {"standing": "unknown", "branch": None}
        page = await it.http.get(f"/crcr/{BACKEND}?kind=nightly")
        assert "commit unknown" in page.text


async def test_only_the_newest_release_branches_are_asked(tmp_path: Path) -> None:
    async with alone(tmp_path) as it:
        oldest = await on_branch(it, "release/1.9")
        for minor in range(12):
            await it.github.push(UPSTREAM, ref=f"refs/heads/release/2.{minor}")
        newest = it.github.repository(UPSTREAM).branches["release/2.2"]
        assert await verified(it, oldest) == ("elsewhere", None)
        asked = [call.path for call in it.github.calls if "/compare/" in call.path]
        assert [path.rpartition("/compare/")[2].partition("...")[0] for path in asked] == [
            "main",
            "nightly",
            *(f"release/2.{minor}" for minor in range(11, 1, -1)),
        ]
        assert await verified(it, newest) == ("base", "release/2.2")


async def test_a_commit_is_asked_about_once_however_many_report_it(tmp_path: Path) -> None:
    async with stage(tmp_path, "L2:\n  - org/a\n  - org/b\n", downstreams=("org/a", "org/b")) as it:
        for name in ("org/a", "org/b", "org/a"):
            run = nightly_run(it, name)
            await send_self_report(it, run, "build", commit=upstream_head(it))
            await send_self_report(it, run, "test", commit=upstream_head(it))
        await it.act()
        await send_self_report(it, nightly_run(it, "org/b"), commit=upstream_head(it))
        await it.pass_time(90_000)
        await send_self_report(it, nightly_run(it, "org/b"), commit=upstream_head(it))
        await it.act()
        assert len([call for call in it.github.calls if "/compare/" in call.path]) == 1


@pytest.mark.parametrize("where", [COMPARE, COMMITS, REPOSITORY], ids=["compare", "commit", "repository"])
@pytest.mark.parametrize("status", [500, 502, 429])
async def test_an_outage_is_no_verdict(tmp_path: Path, where: Match, status: int) -> None:
    async with alone(tmp_path) as it:
        away = it.github.faults.answer(status, on=where)
        assert await verified(it, MADE_UP) == ("unchecked", None)
        assert "being checked" in (await it.http.get(f"/crcr/{BACKEND}?kind=nightly")).text
        it.github.faults.remove(away)
        await it.pass_time(7_200)
        assert recorded_standing(it, MADE_UP) == ("unknown", None)


@pytest.mark.parametrize("status", [403, 404, 422])
async def test_a_refusal_that_is_not_about_the_commit_is_no_verdict(tmp_path: Path, status: int) -> None:
    """The App may be gone from the upstream, or may not read it: that says nothing about a commit."""
    async with alone(tmp_path) as it:
        gone = it.github.faults.answer(status, on=REPOSITORY, message="Not for you")
        assert await verified(it, MADE_UP) == ("unchecked", None)
        it.github.faults.remove(gone)
        await it.pass_time(3_700)
        await send_self_report(it, nightly_run(it), commit=MADE_UP)
        await it.act()
        assert recorded_standing(it, MADE_UP) == ("unknown", None)


async def test_the_app_not_being_installed_is_no_verdict(tmp_path: Path) -> None:
    def uninstalled(github: Any) -> None:
        github.installation(UPSTREAM).repository_ids.discard(github.repository(UPSTREAM).id)

    async with alone(tmp_path, prepare=uninstalled) as it:
        assert await verified(it, upstream_head(it)) == ("unchecked", None)


async def test_a_commit_that_comes_to_the_base_later_is_found_there(tmp_path: Path) -> None:
    async with alone(tmp_path) as it:
        sha = await on_branch(it, "topic")
        assert await verified(it, sha) == ("elsewhere", None)
        it.github.repository(UPSTREAM).branches["main"] = sha
        await send_self_report(it, nightly_run(it), commit=sha)
        await it.act()
        assert recorded_standing(it, sha) == ("elsewhere", None), "not asked again at once"
        await it.pass_time(3_700)
        await send_self_report(it, nightly_run(it), commit=sha)
        await it.act()
        assert recorded_standing(it, sha) == ("base", "main")


async def test_made_up_commits_are_asked_about_slowly_and_not_without_end(tmp_path: Path) -> None:
    async with alone(tmp_path) as it:
        run = nightly_run(it)
        for number in range(120):
            await send_self_report(it, run, commit=f"{number + 1:040x}")
        assert len(questions(it)) == 20
        await it.act()
        assert len(asked(it)) == 1
        await it.pass_time(61)
        assert len(asked(it)) == 11


async def test_one_backends_made_up_commits_take_no_turn_of_anothers(tmp_path: Path) -> None:
    async with stage(
        tmp_path, "L2:\n  - org/evil\n  - org/good\n", downstreams=("org/evil", "org/good")
    ) as it:
        evil = nightly_run(it, "org/evil")
        for number in range(25):
            await send_self_report(it, evil, commit=f"{number + 1:040x}")
        await send_self_report(it, evil, commit=upstream_head(it))  # for which its share has no room
        await send_self_report(it, nightly_run(it, "org/good"), commit=upstream_head(it))
        assert {row["target"] for row in questions(it, upstream_head(it))} == {"commits org/good"}
        await it.pass_time(125)
        assert recorded_standing(it, upstream_head(it)) == ("base", "main")
        shown = (await it.http.get("/api/v1/effects")).text + (await it.http.get("/crcr/effects")).text
        assert "commits org" not in shown


async def test_what_found_no_room_is_asked_later_the_oldest_first(tmp_path: Path) -> None:
    async with alone(tmp_path) as it:
        run = nightly_run(it)
        shas = [f"{number + 1:040x}" for number in range(50)]
        for sha in reversed(shas):
            it.clock.advance(3)
            await send_self_report(it, run, commit=sha)
        waits = [
            row["sha"] for row in it.rows("SELECT sha FROM commits WHERE ask_at = seen_at ORDER BY seen_at")
        ]
        await it.services.sweeper.sweep()
        mine = {row["lane"] for row in questions(it) if row["target"] == "commits"}
        assert mine == set(waits[:20])
        await it.services.sweeper.sweep()
        assert len([row for row in questions(it) if row["target"] == "commits"]) == 20, "bounded"
        for _ in range(30):
            await it.pass_time(30)
            await it.services.sweeper.sweep()
        assert {recorded_standing(it, sha) for sha in shas} == {("unknown", None)}


async def test_a_question_that_was_given_up_is_asked_again_by_itself(tmp_path: Path) -> None:
    async with alone(tmp_path) as it:
        gone = it.github.faults.answer(403, on=REPOSITORY, message="Not for you")
        assert await verified(it, upstream_head(it)) == ("unchecked", None)
        assert [row["state"] for row in questions(it)] == ["parked"]
        it.github.faults.remove(gone)
        await it.services.sweeper.sweep()
        assert len(questions(it)) == 1, "not at once"
        await it.pass_time(26 * 3600)
        await it.services.sweeper.sweep()
        await it.act()
        assert recorded_standing(it, upstream_head(it)) == ("base", "main")
        assert [row["state"] for row in questions(it)] == ["cancelled", "done"]


async def test_nothing_is_being_checked_for_ever(tmp_path: Path) -> None:
    async with alone(tmp_path) as it:
        it.github.faults.answer(403, on=REPOSITORY, message="Not for you")
        assert await verified(it, MADE_UP) == ("unchecked", None)
        for _ in range(16):
            await it.pass_time(24 * 3600 + 3601)
            await it.services.sweeper.sweep()
            await it.act()
        assert recorded_standing(it, MADE_UP) == ("unanswered", None)
        asked_so_far = len(questions(it))
        assert {row["state"] for row in questions(it)} == {"cancelled"}
        page = (await it.http.get(f"/crcr/commit/{MADE_UP}")).text
        assert ("Being checked" in page, "Not checked" in page) == (False, True)
        await it.pass_time(24 * 3600 + 3601)
        await it.services.sweeper.sweep()
        assert len(questions(it)) == asked_so_far
        it.github.faults.clear()
        await send_self_report(it, nightly_run(it), commit=MADE_UP)
        await it.act()
        assert recorded_standing(it, MADE_UP) == ("unknown", None), "somebody reported about it again"


async def test_pages_follow_what_github_said(tmp_path: Path) -> None:
    async with alone(tmp_path) as it:
        await send_self_report(it, nightly_run(it), commit=upstream_head(it))
        before = it.rows("SELECT max(change_id) AS id FROM changes")[0]["id"]
        await it.act()
        [change] = it.rows("SELECT kind, downstream FROM changes WHERE change_id > ?", before)
        assert change == {"kind": "commit", "downstream": None}
