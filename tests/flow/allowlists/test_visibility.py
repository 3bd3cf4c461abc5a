"""A hidden or name-only backend leaks into no list, cursor, error or allowlist problem, except for admins."""

import base64
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from github_sim.github import JobSpec, Match, Workflow
from support.github.gated_upstream import finish_jobs, newest_run, open_pull, start_jobs, write_comment
from support.running_relay import UPSTREAM, RunningRelay, running_relay
from support.sign_in import ADMIN, TOKENS

LISTED = """
L1:
  - secretcorp/listens: {visibility: hidden}
L2:
  - aaa/open
  - shyorg/named: {visibility: name, hardware: shyware}
  - secretcorp/hush: {visibility: hidden, hardware: hushware, oncalls: [hushperson]}
  - zzz/open
L4:
  - secretcorp/gates: {visibility: hidden, oncalls: [hushperson], jobs: [hushjob]}
"""
HIDDEN = ("secretcorp/listens", "secretcorp/hush", "secretcorp/gates")
ALL = ("aaa/open", "shyorg/named", "zzz/open", *HIDDEN)
SECRET = re.compile(r"secretcorp|hush|shyware|shyjob", re.IGNORECASE)
NAME_ONLY = re.compile(r"shyorg", re.IGNORECASE)
AS_ADMIN = {"authorization": f"Bearer {ADMIN}"}


@asynccontextmanager
async def relay_with_hidden_backends(folder: Path) -> AsyncIterator[RunningRelay]:
    """Results, waivers, operator acts, and effects of every state, of visible and of hidden backends."""
    async with running_relay(folder, LISTED, downstreams=ALL, CRCR_SANDBOX="on", **TOKENS) as relay:
        relay.github.set_permission(UPSTREAM, "maintainer", "maintain")
        for name in ALL:
            job = "hushjob" if name in HIDDEN else "shyjob" if name == "shyorg/named" else "build"
            relay.github.repository(name).workflows = [Workflow(jobs=(JobSpec(job),))]
        pull = await open_pull(relay, title="one")
        for name in ("aaa/open", "shyorg/named", "secretcorp/hush", "secretcorp/gates"):
            await start_jobs(relay, newest_run(relay, name))
            await finish_jobs(relay, newest_run(relay, name))
        await write_comment(relay, pull, "/crcr waive secretcorp/gates hush now")
        for name in ("zzz/open", "secretcorp/hush", "aaa/open", "shyorg/named"):
            relay.github.faults.answer(422, on=Match("POST", f"/repos/{name}/dispatches"))
        await open_pull(relay, title="two")
        relay.github.faults.clear()
        for act, body in (
            ("suspend", {"repository": "shyorg/named"}),
            ("lift", {"repository": "shyorg/named"}),
            ("pause", {"reason": "hush is on fire"}),
            ("unpause", {}),
            ("rebind", {"repository": "secretcorp/listens", "repository_id": 4242}),
            ("pause", {}),
        ):
            relay.clock.advance(1)
            answer = await relay.http.post(f"/api/v1/admin/{act}", json=body, headers=AS_ADMIN)
            assert answer.status_code == 200
        await open_pull(relay, title="three")
        yield relay


async def paginated_paths(relay: RunningRelay) -> list[str]:
    """Every path of the API that is paginated by a cursor."""
    paths = (await relay.http.get("/api/openapi.json")).json()["paths"]
    paths_with_cursor = [
        path.replace("{org}", "aaa").replace("{repo}", "open")
        for path, ops in paths.items()
        if any(parameter["name"] == "cursor" for parameter in ops.get("get", {}).get("parameters", ()))
    ]
    assert {"/api/v1/effects/list", "/api/v1/audit", "/api/v1/waivers.csv", "/api/v1/jobs"} <= set(
        paths_with_cursor
    )
    return paths_with_cursor


def next_cursor(answer: httpx.Response) -> str | None:
    if answer.headers["content-type"].startswith("application/json"):
        body: dict[str, Any] = answer.json()
        next_page: str | None = body["next"] if "next" in body else body["matrix"]["next"]
        return next_page
    match = re.search(r"[?&]cursor=([\w-]+)", answer.headers.get("link", ""))
    return match[1] if match else None


def decode_cursor(cursor: str) -> str:
    return base64.b64decode(cursor + "==", altchars=b"-_").decode()


@pytest.mark.parametrize("more", [{}, {"state": "waiting"}, {"state": "parked"}, {"order": "oldest"}])
async def test_no_list_page_or_cursor_reveals_a_hidden_backend(tmp_path: Path, more: dict[str, str]) -> None:
    pages_read = 0
    async with relay_with_hidden_backends(tmp_path) as relay:
        for path in await paginated_paths(relay):
            for limit in (1, 2, 3):
                cursor, positions = None, set[str]()
                while True:
                    params: dict[str, Any] = {
                        "limit": limit,
                        **more,
                        **({"cursor": cursor} if cursor else {}),
                    }
                    answer = await relay.http.get(path, params=params)
                    if answer.status_code == 400:
                        break  # this list has no such filter
                    assert answer.status_code == 200, answer.text
                    cursor = next_cursor(answer)
                    position = decode_cursor(cursor) if cursor else ""
                    for text in (answer.text, position, str(answer.headers)):
                        assert not SECRET.search(text), (path, params, position)
                    assert not NAME_ONLY.search(position), (path, params, position)
                    if cursor is None:
                        break
                    assert position not in positions
                    positions.add(position)
                    pages_read += 1
    assert pages_read > 10


async def test_errors_and_hidden_targets_of_parked_effects_are_shown_to_admins_only(tmp_path: Path) -> None:
    async with relay_with_hidden_backends(tmp_path) as relay:
        public_view = (await relay.http.get("/api/v1/effects")).json()["parked"]
        assert {effect["target"] for effect in public_view} == {"aaa/open", "zzz/open"}
        assert {effect["last_error"] for effect in public_view} == {None}
        admin_view = (await relay.http.get("/api/v1/effects", headers=AS_ADMIN)).json()["parked"]
        assert {"secretcorp/hush", "shyorg/named"} <= {effect["target"] for effect in admin_view}
        assert all(effect["last_error"] for effect in admin_view)


async def test_an_operators_reason_is_shown_to_admins_only(tmp_path: Path) -> None:
    async with relay_with_hidden_backends(tmp_path) as relay:
        public_view = (await relay.http.get("/api/v1/audit")).json()["acts"]
        assert [act["act"] for act in public_view] == ["pause", "unpause", "pause"]
        assert "fire" not in str(public_view)
        assert "fire" not in (await relay.http.get("/crcr/audit")).text
        assert "hush is on fire" in (await relay.http.get("/api/v1/audit", headers=AS_ADMIN)).text


async def test_admins_see_hidden_backends_on_the_allowlist_marked_as_hidden(tmp_path: Path) -> None:
    async with relay_with_hidden_backends(tmp_path) as relay:
        listed = (await relay.http.get("/api/v1/allowlist")).json()["backends"]
        assert {entry["name"] for entry in listed} == {"aaa/open", "shyorg/named", "zzz/open"}
        listed = (await relay.http.get("/api/v1/allowlist", headers=AS_ADMIN)).json()["backends"]
        assert {entry["name"] for entry in listed if entry["hidden"]} == set(HIDDEN)
        assert len(listed) == len(ALL)


@pytest.mark.parametrize(
    "broken",
    [
        "L2:\n  - aaa/open\n  - secretcorp//hush: {visibility: hidden}\n",
        "L2:\n  - secretcorp: {visibility: hidden}\n",
        "L2:\n  - secretcorp/hush {visibility: hidden}\n",
        "L2:\n  - secretcorp/hush: {visibility: hidden, oncalls: ['hush person!']}\n",
        "L2:\n  secretcorp/hush: [}\n",
        "L2:\n  - secretcorp\\hush\n",
        "L4:\n  hushdevice:\n    secretcorp/hush: {visibility: hidden}\n",
        "L3:\n  hush!device:\n    secretcorp/hush: {visibility: hidden, oncalls: [x]}\n",
        "L2:\n  - secretcorp/hush: {visibility: hidden, hushoption: 3}\n",
        "L2:\n  - secretcorp/hush: {visibility: hidden, expect: {hushjob: hushed}}\n",
        "L2:\n  - secretcorp/hush: {visibility: hidden}\n  - secretcorp/hush\n",
        "L4:\n  - secretcorp/hush: {visibility: hidden}\n",
        "L2:\n  - secretcorp/hush: &a {visibility: hidden}\n  - *hushalias\n",
        "hush: [secretcorp/hush]\n",
    ],
)
async def test_problems_of_a_bad_allowlist_quote_the_file_to_admins_only(tmp_path: Path, broken: str) -> None:
    async with running_relay(tmp_path, LISTED, downstreams=ALL, **TOKENS) as relay:
        relay.write_allowlist(broken)
        await relay.refresh()
        for path in ("/api/v1/allowlist", "/api/v1/summary", "/crcr"):
            answer = await relay.http.get(path)
            assert not SECRET.search(answer.text)
        state = (await relay.http.get("/api/v1/allowlist")).json()["state"]
        assert state["newest_is_bad"]
        assert all(problem["line"] and problem["message"] for problem in state["problems"])
        admin_problems = (await relay.http.get("/api/v1/allowlist", headers=AS_ADMIN)).json()["state"][
            "problems"
        ]
        assert [problem["line"] for problem in admin_problems] == [
            problem["line"] for problem in state["problems"]
        ]
        assert admin_problems != state["problems"]


async def test_search_suggestions_feeds_and_previews_reveal_no_hidden_backend(tmp_path: Path) -> None:
    async with relay_with_hidden_backends(tmp_path) as relay:
        for query in ("secretcorp", "hush", "shyjob", "open", "one", "1"):
            for path in ("/crcr/search", "/api/v1/search", "/api/v1/search.csv", "/api/v1/search/suggest"):
                answer = await relay.http.get(path, params={"q": query}, follow_redirects=True)
                assert answer.status_code == 200
                assert not SECRET.search(answer.text.replace(query, "")), (path, query)
        for path in ("/crcr/pr/1/feed.atom", "/crcr/aaa/open/feed.atom", "/crcr", "/crcr/pr/1"):
            answer = await relay.http.get(path)
            assert (answer.status_code, bool(SECRET.search(answer.text))) == (200, False), path
        for name in HIDDEN:
            for path in (f"/crcr/{name}/feed.atom", f"/og/backend/{name}.png"):
                assert (await relay.http.get(path)).status_code == 404
        suggested = (await relay.http.get("/api/v1/search/suggest?q=secretcorp", headers=AS_ADMIN)).json()
        assert {suggestion["title"] for suggestion in suggested["suggestions"]} == set(HIDDEN)


async def test_feeds_and_preview_images_are_cached_like_pages_and_follow_the_access_rules(
    tmp_path: Path,
) -> None:
    public, private = tmp_path / "public", tmp_path / "private"
    for folder, access in ((public, "public"), (private, "token")):
        folder.mkdir()
        async with running_relay(folder, LISTED, downstreams=ALL, CRCR_HUD_ACCESS=access, **TOKENS) as relay:
            await open_pull(relay, title="one")
            for path in (
                "/crcr/pr/1/feed.atom",
                "/crcr/aaa/open/feed.atom",
                "/og/summary.png",
                "/og/pr/1.png",
            ):
                answer = await relay.http.get(path)
                if folder is private:
                    assert answer.status_code == 401, path
                    assert "og:" not in (await relay.http.get("/crcr", headers=AS_ADMIN)).text
                    continue
                assert (answer.status_code, "public" in answer.headers["cache-control"]) == (200, True), path
                revalidated = await relay.http.get(path, headers={"if-none-match": answer.headers["etag"]})
                assert (revalidated.status_code, revalidated.content) == (304, b"")
            feed = await relay.http.get("/crcr/pr/1/feed.atom", headers=AS_ADMIN)
            assert (feed.status_code, feed.headers["cache-control"]) == (200, "private, no-store")
