"""What a hidden or name-only backend leaves behind: nothing, in no list, cursor, error or problem, but for admins."""

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
TELLING = re.compile(r"secretcorp|hush|shyware|shyjob", re.IGNORECASE)
NAME_ONLY = re.compile(r"shyorg", re.IGNORECASE)
EYES = {"authorization": f"Bearer {ADMIN}"}


@asynccontextmanager
async def mixed(folder: Path) -> AsyncIterator[RunningRelay]:
    """Results, waivers, acts, and effects of every state, of backends that are seen and of some that are not."""
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
        for act, told in (
            ("suspend", {"repository": "shyorg/named"}),
            ("lift", {"repository": "shyorg/named"}),
            ("pause", {"reason": "hush is on fire"}),
            ("unpause", {}),
            ("rebind", {"repository": "secretcorp/listens", "repository_id": 4242}),
            ("pause", {}),
        ):
            relay.clock.advance(1)
            answer = await relay.http.post(f"/api/v1/admin/{act}", json=told, headers=EYES)
            assert answer.status_code == 200
        await open_pull(relay, title="three")
        yield relay


async def lists(relay: RunningRelay) -> list[str]:
    """Every address of the API that comes in pages."""
    paths = (await relay.http.get("/api/openapi.json")).json()["paths"]
    found = [
        path.replace("{org}", "aaa").replace("{repo}", "open")
        for path, ops in paths.items()
        if any(each["name"] == "cursor" for each in ops.get("get", {}).get("parameters", ()))
    ]
    assert {"/api/v1/effects/list", "/api/v1/audit", "/api/v1/waivers.csv", "/api/v1/jobs"} <= set(found)
    return found


def next_cursor(answer: httpx.Response) -> str | None:
    if answer.headers["content-type"].startswith("application/json"):
        body: dict[str, Any] = answer.json()
        following: str | None = body["next"] if "next" in body else body["matrix"]["next"]
        return following
    found = re.search(r"[?&]cursor=([\w-]+)", answer.headers.get("link", ""))
    return found[1] if found else None


def decoded(cursor: str) -> str:
    return base64.b64decode(cursor + "==", altchars=b"-_").decode()


@pytest.mark.parametrize("more", [{}, {"state": "waiting"}, {"state": "parked"}, {"order": "oldest"}])
async def test_no_cursor_holds_anything_of_a_backend_that_is_not_shown(
    tmp_path: Path, more: dict[str, str]
) -> None:
    walked = 0
    async with mixed(tmp_path) as relay:
        for path in await lists(relay):
            for limit in (1, 2, 3):
                cursor, places = None, set[str]()
                while True:
                    asked: dict[str, Any] = {"limit": limit, **more, **({"cursor": cursor} if cursor else {})}
                    answer = await relay.http.get(path, params=asked)
                    if answer.status_code == 400:
                        break  # this list has no such choice
                    assert answer.status_code == 200, answer.text
                    cursor = next_cursor(answer)
                    place = decoded(cursor) if cursor else ""
                    for text in (answer.text, place, str(answer.headers)):
                        assert not TELLING.search(text), (path, asked, place)
                    assert not NAME_ONLY.search(place), (path, asked, place)
                    if cursor is None:
                        break
                    assert place not in places
                    places.add(place)
                    walked += 1
    assert walked > 10


async def test_what_went_wrong_and_who_is_not_shown_is_told_to_admins_alone(tmp_path: Path) -> None:
    async with mixed(tmp_path) as relay:
        everybody = (await relay.http.get("/api/v1/effects")).json()["parked"]
        assert {each["target"] for each in everybody} == {"aaa/open", "zzz/open"}
        assert {each["last_error"] for each in everybody} == {None}
        admins = (await relay.http.get("/api/v1/effects", headers=EYES)).json()["parked"]
        assert {"secretcorp/hush", "shyorg/named"} <= {each["target"] for each in admins}
        assert all(each["last_error"] for each in admins)


async def test_a_reason_that_an_operator_gave_is_told_to_admins_alone(tmp_path: Path) -> None:
    async with mixed(tmp_path) as relay:
        everybody = (await relay.http.get("/api/v1/audit")).json()["acts"]
        assert [each["act"] for each in everybody] == ["pause", "unpause", "pause"]
        assert "fire" not in str(everybody)
        assert "fire" not in (await relay.http.get("/crcr/audit")).text
        assert "hush is on fire" in (await relay.http.get("/api/v1/audit", headers=EYES)).text


async def test_admins_find_hidden_backends_on_the_allowlist_and_marked(tmp_path: Path) -> None:
    async with mixed(tmp_path) as relay:
        listed = (await relay.http.get("/api/v1/allowlist")).json()["backends"]
        assert {each["name"] for each in listed} == {"aaa/open", "shyorg/named", "zzz/open"}
        listed = (await relay.http.get("/api/v1/allowlist", headers=EYES)).json()["backends"]
        assert {each["name"] for each in listed if each["hidden"]} == set(HIDDEN)
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
async def test_the_problems_of_a_bad_allowlist_quote_it_to_admins_alone(tmp_path: Path, broken: str) -> None:
    async with running_relay(tmp_path, LISTED, downstreams=ALL, **TOKENS) as relay:
        relay.write_allowlist(broken)
        await relay.refresh()
        for path in ("/api/v1/allowlist", "/api/v1/summary", "/crcr"):
            answer = await relay.http.get(path)
            assert not TELLING.search(answer.text)
        state = (await relay.http.get("/api/v1/allowlist")).json()["state"]
        assert state["newest_is_bad"]
        assert all(each["line"] and each["message"] for each in state["problems"])
        told = (await relay.http.get("/api/v1/allowlist", headers=EYES)).json()["state"]["problems"]
        assert [each["line"] for each in told] == [each["line"] for each in state["problems"]]
        assert told != state["problems"]


async def test_search_suggestions_feeds_and_previews_tell_nothing_of_a_hidden_backend(tmp_path: Path) -> None:
    async with mixed(tmp_path) as relay:
        for wanted in ("secretcorp", "hush", "shyjob", "open", "one", "1"):
            for path in ("/crcr/search", "/api/v1/search", "/api/v1/search.csv", "/api/v1/search/suggest"):
                answer = await relay.http.get(path, params={"q": wanted}, follow_redirects=True)
                assert answer.status_code == 200
                assert not TELLING.search(answer.text.replace(wanted, "")), (path, wanted)
        for path in ("/crcr/pr/1/feed.atom", "/crcr/aaa/open/feed.atom", "/crcr", "/crcr/pr/1"):
            answer = await relay.http.get(path)
            assert (answer.status_code, bool(TELLING.search(answer.text))) == (200, False), path
        for name in HIDDEN:
            for path in (f"/crcr/{name}/feed.atom", f"/og/backend/{name}.png"):
                assert (await relay.http.get(path)).status_code == 404
        found = (await relay.http.get("/api/v1/search/suggest?q=secretcorp", headers=EYES)).json()
        assert {each["title"] for each in found["suggestions"]} == set(HIDDEN)


async def test_feeds_and_pictures_are_kept_like_pages_and_follow_the_access_rules(tmp_path: Path) -> None:
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
                    assert "og:" not in (await relay.http.get("/crcr", headers=EYES)).text
                    continue
                assert (answer.status_code, "public" in answer.headers["cache-control"]) == (200, True), path
                again = await relay.http.get(path, headers={"if-none-match": answer.headers["etag"]})
                assert (again.status_code, again.content) == (304, b"")
            feed = await relay.http.get("/crcr/pr/1/feed.atom", headers=EYES)
            assert (feed.status_code, feed.headers["cache-control"]) == (200, "private, no-store")
