"""`crcr levels propose --open` against a served GitHub: one pull request per proposal, even with lost responses and changes."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import Any

import pytest

from github_sim.github import GitHub, Match, PullRequest
from github_sim.rest.server import serve
from support.cli_command import CommandResult, run_in_process
from support.data.operator_database import ALLOWLIST, OperatorShell

REPO, PATH = "org/meta", "lists/allowlist.yml"
MOVED = "    Org/Reporter: {oncalls: [ada]}"


@dataclass(frozen=True)
class Proposing:
    shell: OperatorShell
    github: GitHub

    async def open(self, *words: str, expect: int = 0) -> CommandResult:
        """Run the command in a thread: the simulated GitHub answers it in the event loop."""
        command = ("levels", "propose", "--open", "--device", "org/reporter=npu", *words)
        async with asyncio.timeout(60):
            done = await asyncio.to_thread(
                run_in_process, *command, folder=self.shell.folder, environ=self.shell.environ
            )
        assert done.code == expect, done.out + done.errors
        return done

    @property
    def pulls(self) -> list[PullRequest]:
        return list(self.github.world.pulls.values())

    @property
    def url(self) -> str:
        return f"{self.github.base_url}/{REPO}/pull/1"

    def writes(self) -> list[tuple[str, int]]:
        """The writes to the repository with GitHub's status codes; 0 is a lost response."""
        calls = (call for call in self.github.calls if call.path.startswith(f"/repos/{REPO}"))
        return [(call.method, call.status) for call in calls if call.method != "GET"]

    def assert_one_pull(self) -> None:
        [pull] = self.pulls
        repository = self.github.repository(REPO)
        text = repository.commits[pull.head_sha].tree[PATH].decode()
        assert MOVED in text
        assert pull.files == (PATH,)
        assert repository.commits[repository.head_sha].tree[PATH].decode() == ALLOWLIST
        assert len(repository.commits) == 2
        assert len(repository.branches) == 2
        self.github.finish()


@pytest.fixture
async def proposing(shell: OperatorShell) -> AsyncIterator[Proposing]:
    shell.make_eligible()
    async with GitHub() as github, serve(github):
        github.create_repository(REPO, private=True, files={PATH: ALLOWLIST})
        shell.environ.update(
            {
                "CRCR_ALLOWLIST": f"{github.base_url}/{REPO}/blob/main/{PATH}",
                "CRCR_GITHUB_APP_ID": str(github.app_id),
                "CRCR_GITHUB_APP_PRIVATE_KEY": github.private_key_pem,
                "CRCR_GITHUB_API_URL": github.base_url,
            }
        )
        yield Proposing(shell, github)


async def test_it_opens_one_pull_request_and_a_repeat_prints_its_url(proposing: Proposing) -> None:
    first = await proposing.open()
    assert f"opened {proposing.url}" in first.out
    assert "+++" not in first.out
    proposing.assert_one_pull()
    [pull] = proposing.pulls
    assert pull.title == "Levels by evidence: Org/Reporter from L2 to L3"
    assert pull.body is not None
    assert "jobs passed ≥ 90%: 96% of 400 jobs" in pull.body
    [act] = proposing.shell.rows("SELECT subject FROM audit WHERE act = 'levels_proposed'")
    assert act["subject"] == proposing.url
    call_count = len(proposing.github.calls)

    again = await proposing.open("--json")
    assert json.loads(again.out)["pull_request"]["url"] == proposing.url
    assert json.loads(again.out)["pull_request"]["state"] == "found"
    assert len(proposing.github.calls) == call_count  # the URL is read from the database
    tokens = [json.loads(call.body) for call in proposing.github.calls if call.path.endswith("access_tokens")]
    assert all(len(token["permissions"]) == 1 and token["repositories"] == ["meta"] for token in tokens)


@pytest.mark.parametrize(
    ("method", "path"), [("POST", "*/git/refs"), ("PUT", "*/contents/*"), ("POST", "*/pulls")]
)
async def test_after_a_lost_response_the_next_attempt_continues_without_repeating_writes(
    proposing: Proposing, method: str, path: str
) -> None:
    proposing.github.faults.lose_answer(on=Match(method=method, path=path), times=1)
    lost = await proposing.open(expect=1)
    assert "run the command again" in lost.errors
    assert "+++ b/lists/allowlist.yml" in lost.out
    again = await proposing.open()
    assert proposing.url in again.out
    proposing.assert_one_pull()
    assert len([status for _, status in proposing.writes() if status != 0]) == 2  # no write was repeated


async def test_a_closed_pull_request_is_not_opened_again(proposing: Proposing) -> None:
    await proposing.open()
    await proposing.github.close_pr(proposing.pulls[0])
    proposing.shell.write("DELETE FROM level_proposals")
    assert f"it was opened before: {proposing.url}" in (await proposing.open()).out
    assert len(proposing.pulls) == 1


def lack_pull_requests(github: GitHub) -> None:
    github.installation(REPO).permissions["pull_requests"] = "read"


def lack_the_app(github: GitHub) -> None:
    github.world.installations.clear()


def forbid_branches(github: GitHub) -> None:
    github.faults.answer(403, on=Match(method="POST", path="*/git/refs"), message="Resource not accessible")


def change_the_allowlist(github: GitHub) -> None:
    github.write_file(REPO, PATH, f"{ALLOWLIST}# edited\n")


def remove_the_allowlist(github: GitHub) -> None:
    repository = github.repository(REPO)
    commit = github.world.commit(
        repository, "Move", repository.owner, parent=repository.head_sha, changes={PATH: None}
    )
    repository.branches["main"] = commit.sha


def rename_the_branch(github: GitHub) -> None:
    repository = github.repository(REPO)
    repository.branches["trunk"] = repository.branches.pop("main")
    repository.default_branch = "trunk"


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (lack_pull_requests, "the App lacks pull_requests: write on org/meta"),
        (lack_the_app, "the App is not installed on org/meta"),
        (forbid_branches, "--open needs the App on org/meta with Contents: write and Pull requests: write"),
        (change_the_allowlist, "changed since the relay read it"),
        (remove_the_allowlist, "changed since the relay read it"),
        (rename_the_branch, "org/meta has no branch main"),
    ],
)
async def test_when_it_cannot_open_the_pull_request_it_prints_reason_patch_and_link(
    proposing: Proposing, change: Callable[[GitHub], Any], sentence: str
) -> None:
    change(proposing.github)
    refused = await proposing.open(expect=1)
    assert sentence in refused.errors
    assert f"+{MOVED}" in refused.out
    assert f"edit it at {proposing.github.base_url}/{REPO}/edit/main/{PATH}" in refused.out
    assert proposing.pulls == []
    assert [status for _, status in proposing.writes() if status < 300] == []
    assert proposing.shell.rows("SELECT 1 FROM level_proposals") == []


async def test_a_branch_with_foreign_commits_is_left_unchanged(proposing: Proposing) -> None:
    proposing.github.faults.lose_answer(on=Match(method="POST", path="*/git/refs"), times=1)
    await proposing.open(expect=1)
    [branch] = {*proposing.github.repository(REPO).branches} - {"main"}
    await proposing.github.push(REPO, ref=f"refs/heads/{branch}", files={PATH: "L1: []\n"})
    assert "somebody changed it" in (await proposing.open(expect=1)).errors
    assert proposing.pulls == []


def test_an_allowlist_in_a_file_is_refused_with_its_patch(shell: OperatorShell) -> None:
    shell.make_eligible()
    refused = shell.crcr("levels", "propose", "--open")
    assert refused.exit_code == 2
    assert "--open works for an allowlist on GitHub" in refused.stderr
    assert "+    Org/Reporter: {oncalls: [ada]}" in refused.stdout
