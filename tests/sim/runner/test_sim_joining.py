"""Joining a repository to a running demo: authorization, refusals, and the webhooks that the relay receives."""

import json
from pathlib import Path
from typing import Any

import httpx
import pytest
from tools.demo_with_other_ci import REPOSITORY, SimulatedCi, init_command

from crcr.decide.model import RepoName
from crcr.demo.join import PATH, DemoJoin, with_entry
from crcr.join.request import Ci
from github_sim.github import GitHub
from github_sim.runner.runner import Runner
from support.downstream.joined_downstream import downstream_request, write_downstream
from support.downstream.workflow_runs import one_job, workflow, write_files

ALLOWLIST = "allow/list.yml"
LISTED = "# who\nL1:  # are told\n  - a/one\nL2:\n  - b/two\nL4:\n  c/three: {}\n"


@pytest.fixture
async def demo_join(github: GitHub) -> DemoJoin:
    github.write_file("org/upstream", ALLOWLIST, LISTED)
    return DemoJoin(github, Runner(github, limit_s=20), upstream="org/upstream", allowlist=ALLOWLIST)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_files(tmp_path / "checkout", one_job("true"))


async def post_join(api: httpx.AsyncClient, demo_join: DemoJoin, at: Path, **more: Any) -> httpx.Response:
    body = {"name": "me/backend", "folder": str(at), "level": "L2", **more}
    return await api.post(PATH, json=body, headers={"authorization": f"Bearer {demo_join.key}"})


async def test_a_joined_repository_gets_the_app_and_an_allowlist_entry(
    github: GitHub, api: httpx.AsyncClient, demo_join: DemoJoin, folder: Path
) -> None:
    answer = await post_join(api, demo_join, folder)
    assert (answer.status_code, answer.json()["workflows"]) == (201, [".github/workflows/ci.yml"])
    assert listed_in(github) == LISTED.replace("L2:\n", "L2:\n  - me/backend\n")
    webhooks = [(each.event, each.action) for each in github.deliveries()]
    assert webhooks == [("installation", "created"), ("push", None)]
    assert github.installation("me/backend").suspended_at is None
    github.finish()


async def test_joining_again_reads_the_files_again_and_sends_no_more_webhooks(
    github: GitHub, api: httpx.AsyncClient, demo_join: DemoJoin, folder: Path
) -> None:
    await post_join(api, demo_join, folder)
    webhook_count = len(github.deliveries())
    write_files(
        folder, {"more.yml": "on: repository_dispatch\njobs: {a: {runs-on: x, steps: [{run: 'true'}]}}"}
    )
    answer = await post_join(api, demo_join, folder)
    assert len(answer.json()["workflows"]) == 2
    assert len(github.deliveries()) == webhook_count


@pytest.fixture
def folder_for_tests(tmp_path: Path) -> Path:
    """A folder whose workflow listens to test dispatches too."""
    text = "on: repository_dispatch\njobs: {a: {runs-on: x, steps: [{run: 'true'}]}}"
    return write_files(tmp_path / "tested", {"ci.yml": text})


def listed_in(github: GitHub) -> str:
    upstream = github.repository("org/upstream")
    return upstream.commits[upstream.head_sha].tree[ALLOWLIST].decode()


async def test_an_unlisted_repository_gets_a_test_dispatch_and_nothing_else(
    github: GitHub, api: httpx.AsyncClient, demo_join: DemoJoin, folder_for_tests: Path
) -> None:
    for times in (1, 2):
        answer = await post_join(api, demo_join, folder_for_tests, listed=False)
        assert (answer.status_code, answer.json()["level"]) == (201, None)
        assert [each.event_type for each in github.dispatches("me/backend")] == ["crcr_test"] * times
        assert len(github.runs("me/backend")) == times
    assert listed_in(github) == LISTED
    assert github.deliveries() == []
    assert github.world.installation_of(github.repository("me/backend")) is None


async def test_an_unlisted_repository_can_be_listed_later_but_not_removed(
    github: GitHub, api: httpx.AsyncClient, demo_join: DemoJoin, folder_for_tests: Path
) -> None:
    await post_join(api, demo_join, folder_for_tests, listed=False)
    assert (await post_join(api, demo_join, folder_for_tests)).json()["level"] == "L2"
    assert "me/backend" in listed_in(github)
    answer = await post_join(api, demo_join, folder_for_tests, listed=False)
    assert answer.status_code == 422
    assert "on the allowlist already" in answer.json()["message"]


async def test_a_workflow_without_listeners_is_refused_with_a_hint(
    api: httpx.AsyncClient, demo_join: DemoJoin, tmp_path: Path
) -> None:
    folder = write_files(tmp_path / "other", {"x/y": ""})
    for listed, event in ((True, "pull_request"), (False, "crcr_test")):
        error = (await post_join(api, demo_join, folder, listed=listed)).json()
        assert f"listens to {event} dispatches" in error["message"]
        assert "crcr init" in error["errors"][0]["message"]


@pytest.mark.parametrize("header", [{}, {"authorization": "Bearer guessed"}, {"authorization": "Bearer"}])
async def test_joining_needs_the_key(
    github: GitHub, api: httpx.AsyncClient, demo_join: DemoJoin, folder: Path, header: dict[str, str]
) -> None:
    body = {"name": "me/backend", "folder": str(folder)}
    assert (await api.post(PATH, json=body, headers=header)).status_code == 401
    assert github.world.find("me/backend") is None


async def test_a_simulator_without_a_demo_has_no_join_route(github: GitHub, api: httpx.AsyncClient) -> None:
    answer = await api.post(PATH, json={}, headers={"authorization": "Bearer "})
    assert answer.status_code == 404
    assert github.unexpected == [f"unknown route POST {PATH}"]
    github.unexpected.clear()


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"name": "backend"}, "not owner/name"),
        ({"name": "me/../x"}, "not owner/name"),
        ({"name": "org/upstream"}, "is a repository of the demo"),
        ({"level": "L4"}, "L1 or L2"),
        ({"folder": "relative"}, "is not a folder"),
        ({"folder": "/nowhere/at/all"}, "is not a folder"),
    ],
)
async def test_an_invalid_join_request_is_refused_with_a_reason(
    api: httpx.AsyncClient, demo_join: DemoJoin, folder: Path, changes: dict[str, str], words: str
) -> None:
    answer = await post_join(api, demo_join, folder, **changes)
    assert answer.status_code == 422
    assert words in answer.json()["message"]


@pytest.mark.parametrize(
    ("files", "words"),
    [
        ({"x/y": ""}, "no workflow"),
        (workflow("build: {runs-on: x, steps: [{run: 'true'}]}", head="on: push\n"), "no workflow"),
        ({"ci.yml": "on: repository_dispatch\njobs: {a: {}}"}, "runs-on"),
        (one_job("echo CRCR_BRIDGE_TO"), "another CI"),
    ],
)
async def test_unusable_files_leave_no_repository_behind(
    github: GitHub,
    api: httpx.AsyncClient,
    demo_join: DemoJoin,
    tmp_path: Path,
    files: dict[str, str],
    words: str,
) -> None:
    answer = await post_join(api, demo_join, write_files(tmp_path / "other", files))
    assert answer.status_code == 422
    assert words in answer.json()["message"]
    assert github.world.find("me/backend") is None
    assert github.deliveries() == []


def test_a_missing_level_is_added_to_the_allowlist() -> None:
    assert with_entry("L1: [a/b]\n", "me/backend", "L2") == "L1: [a/b]\nL2:\n  - me/backend\n"


@pytest.mark.parametrize("ci", ["buildkite", "gitlab"])
async def test_a_checkout_can_try_a_join_from_another_ci(
    github: GitHub, api: httpx.AsyncClient, tmp_path: Path, ci: str
) -> None:
    github.write_file("org/upstream", ALLOWLIST, LISTED)
    simulated = SimulatedCi(Ci(ci))
    demo_join = DemoJoin(
        github,
        Runner(github, limit_s=20),
        upstream="org/upstream",
        allowlist=ALLOWLIST,
        connect_builds=simulated.connect,
    )
    words = init_command(Ci(ci), 8000).split()
    assert words[words.index("--ci") + 1] == ci
    [known] = json.loads(simulated.registrations("http://127.0.0.1:1"))
    given = dict(word.split("=") for word in words if "=" in word)
    assert {name: value for name, value in given.items() if known.get(name, value) != value} == {}
    assert (known["repository"], known["branches"]) == (REPOSITORY, [words[words.index("--branch") + 1]])
    write_downstream(tmp_path / "checkout", downstream_request(Ci(ci), repository=RepoName(REPOSITORY)))
    answer = await post_join(api, demo_join, tmp_path / "checkout", name=REPOSITORY)
    assert (answer.status_code, answer.json()["workflows"]) == (201, [".github/workflows/crcr-bridge.yml"])
    github.finish()
