"""`crcr init` in a repository: what it writes, what it leaves alone, what it asks and what it refuses."""

import json
import os
import pty
import select
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Self

import pytest
from typer.testing import CliRunner

from crcr.cli.root import app
from crcr.join.files import generate
from join_wishes import wish
from running import environment

WORKFLOW, REPORTER = ".github/workflows/crcr.yml", ".crcr/report.py"
NOBODY = "https://127.0.0.1:1"
TOLD = {
    "upstreams": ["pytorch/pytorch"],
    "audience": "crcr",
    "callback_url": "https://relay.example.org/github/callback",
    "app_url": "https://github.com/apps/crcr",
}
FLAGS = ("--relay", NOBODY, "--upstream", "pytorch/pytorch", "--audience", "crcr")


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    folder = tmp_path / "backend"
    subprocess.run(["git", "init", "-q", str(folder)], check=True)
    remote = ["remote", "add", "origin", "git@github.com:org/backend.git"]
    subprocess.run(["git", "-C", str(folder), *remote], check=True)
    return folder


@pytest.fixture
def relay() -> Iterator[str]:
    yield from _serve(TOLD)


def _serve(told: Any) -> Iterator[str]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            text = json.dumps(told).encode()
            self.send_response(200 if self.path == "/api/v1/onboarding" else 404)
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text)

        def log_message(self, *_: Any) -> None: ...

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


def init(folder: Path, *words: str) -> tuple[int, str]:
    result = CliRunner().invoke(app, ["init", "--folder", str(folder), *words])
    assert result.exception is None or isinstance(result.exception, SystemExit)
    return result.exit_code, result.output


def files(folder: Path) -> dict[str, str]:
    paths = [
        path for path in folder.rglob("*") if path.is_file() and ".git" not in path.relative_to(folder).parts
    ]
    return {str(path.relative_to(folder)): path.read_text(encoding="utf-8") for path in paths}


def test_it_writes_what_the_generator_makes_and_says_what_is_next(repository: Path, relay: str) -> None:
    code, out = init(repository, "--relay", relay)
    assert code == 0
    assert files(repository) == {each.path: each.text for each in generate(wish())}
    for words in (
        f"written    {WORKFLOW}",
        "https://github.com/apps/crcr",
        "- org/backend",
        "crcr doctor --relay https://relay.example.org --repo org/backend",
    ):
        assert words in out


def test_a_second_time_nothing_is_touched(repository: Path) -> None:
    init(repository, *FLAGS)
    before = {path: (repository / path).stat().st_mtime_ns for path in files(repository)}
    code, out = init(repository, *FLAGS)
    assert code == 0
    assert "written" not in out
    assert f"unchanged  {WORKFLOW}" in out
    assert {path: (repository / path).stat().st_mtime_ns for path in files(repository)} == before


def test_what_was_edited_is_shown_and_stays_unless_forced(repository: Path) -> None:
    init(repository, *FLAGS)
    edited = repository / WORKFLOW
    edited.write_text(edited.read_text().replace("timeout-minutes: 360", "timeout-minutes: 60"))
    (repository / REPORTER).unlink()
    code, out = init(repository, *FLAGS)
    assert code == 1
    assert "-    timeout-minutes: 60" in out
    assert "+    timeout-minutes: 360" in out
    assert "--force" in out
    assert "timeout-minutes: 60" in edited.read_text()
    assert not (repository / REPORTER).exists()  # all or nothing
    assert init(repository, *FLAGS, "--force")[0] == 0
    assert files(repository) == {each.path: each.text for each in generate(wish(relay_url=NOBODY))}


def test_a_dry_run_shows_everything_and_writes_nothing(repository: Path) -> None:
    code, out = init(repository, *FLAGS, "--nightly", "--dry-run")
    assert code == 0
    assert files(repository) == {}
    assert "+name: upstream nightly" in out
    assert "nothing was written" in out


def test_it_writes_for_another_ci_and_says_what_to_register(repository: Path) -> None:
    place = ("--place", "organization=acme", "--place", "pipeline=crcr")
    code, out = init(repository, *FLAGS, "--ci", "buildkite", *place)
    assert code == 0
    assert set(files(repository)) == {
        *(".github/workflows/crcr-bridge.yml", ".buildkite/crcr.yml", ".crcr/bridge.py", REPORTER)
    }
    assert "[[oidc.registration]]" in out


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ((), "--relay"),
        (("--relay", NOBODY), "--upstream"),
        (("--relay", NOBODY, "--upstream", "pytorch/pytorch"), "--audience"),
        ((*FLAGS, "--ci", "gitlab"), "--place project_id=…"),
        ((*FLAGS, "--level", "L3"), "--device"),
        ((*FLAGS, "--level", "L4"), "--oncall"),
        ((*FLAGS, "--level", "L9"), "L1, L2, L3, L4"),
        ((*FLAGS, "--place", "nonsense"), "NAME=VALUE"),
        ((*FLAGS, "--job-name", "a${{ secrets.X }}"), "the job's name"),
        ((*FLAGS, "--branch", "x\ny", "--audience", "a b"), "the branch"),
        ((*FLAGS, "--repo", "nonsense"), "is not owner/repo"),
    ],
)
def test_what_is_missing_or_wrong_is_told_and_nothing_is_written(
    repository: Path, words: tuple[str, ...], said: str
) -> None:
    code, out = init(repository, *words)
    assert code == 2
    assert said in " ".join(out.replace("│", " ").split())
    assert files(repository) == {}


def test_an_upstream_that_the_relay_does_not_serve_is_refused(repository: Path, relay: str) -> None:
    code, out = init(repository, "--relay", relay, "--upstream", "other/upstream")
    assert code == 2
    assert "it serves pytorch/pytorch" in " ".join(out.replace("│", " ").split())


@pytest.mark.parametrize(
    "told", [[], "x", {"upstreams": 7, "audience": ["x"]}, {"upstreams": ["not a name"]}]
)
def test_a_relay_that_answers_nonsense_is_as_one_that_does_not_answer(repository: Path, told: Any) -> None:
    for url in _serve(told):
        assert init(repository, "--relay", url)[0] == 2
        flags = ("--relay", url, "--upstream", "pytorch/pytorch", "--audience", "crcr")
        assert init(repository, *flags)[0] == 0


def test_a_link_that_leads_out_of_the_repository_is_not_followed(repository: Path, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (repository / ".crcr").symlink_to(outside)
    code, out = init(repository, *FLAGS)
    assert code == 1
    assert "leads out of" in out
    assert list(outside.iterdir()) == []
    assert files(repository) == {}


def test_a_folder_in_a_files_place_ends_it_and_leaves_no_rest(repository: Path) -> None:
    (repository / REPORTER).mkdir(parents=True)
    code, out = init(repository, *FLAGS)
    assert code == 1
    assert "cannot be read" in out
    assert files(repository) == {}


def test_a_place_that_cannot_be_written_leaves_no_half_file(repository: Path) -> None:
    (repository / ".crcr").write_text("a file where the folder should be")
    code, _ = init(repository, *FLAGS)
    assert code == 1
    assert set(files(repository)) == {".crcr"}


def test_on_a_terminal_it_asks_for_what_is_missing(repository: Path, relay: str) -> None:
    with Terminal(repository, "init") as terminal:
        terminal.answer("the relay's URL", relay)
        terminal.answer("where the build runs", "")
        terminal.answer("the level", "L4")
        terminal.answer("this repository, as owner/name [org/backend]", "")
        terminal.answer("the upstream (pytorch/pytorch)", "")
        terminal.answer("the on-calls", "ada, org/team")
        terminal.answer("the command that builds and tests", "make test")
        assert terminal.end() == 0
    assert "make test" in files(repository)[WORKFLOW]
    assert "merge_group" in files(repository)[WORKFLOW]


@pytest.mark.parametrize(("answer", "code"), [("y", 0), ("n", 1)])
def test_on_a_terminal_it_asks_before_it_overwrites(repository: Path, answer: str, code: int) -> None:
    init(repository, *FLAGS)
    edited = repository / WORKFLOW
    edited.write_text("mine\n")
    with Terminal(
        repository, "init", *FLAGS, "--ci", "github", "--level", "L2", "--command", "make"
    ) as terminal:
        terminal.answer("this repository", "")
        terminal.answer(f"overwrite {WORKFLOW}? [y/N]", answer)
        assert terminal.end() == code
    assert (edited.read_text() == "mine\n") is (answer == "n")


class Terminal:
    """`crcr` with a terminal in front of it."""

    WITHIN_S = 30.0

    def __init__(self, folder: Path, *words: str) -> None:
        self.ours, theirs = pty.openpty()
        self.seen = ""
        self.process = subprocess.Popen(
            [sys.executable, "-m", "crcr", *words], cwd=folder, stdin=theirs, stdout=theirs, stderr=theirs,
            env=environment({"COLUMNS": "200", "TERM": "dumb"}),
        )  # fmt: skip
        os.close(theirs)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self.ours)

    def answer(self, question: str, words: str) -> None:
        until = time.monotonic() + self.WITHIN_S
        while question not in self.seen or not self.seen.rstrip(" ").endswith(":"):
            assert self._read(until), f"{question!r} was not asked: {self.seen}"
        self.seen = ""
        os.write(self.ours, f"{words}\n".encode())

    def end(self) -> int:
        while self._read(time.monotonic() + self.WITHIN_S):
            pass
        return self.process.wait(self.WITHIN_S)

    def _read(self, until: float) -> bool:
        ready, _, _ = select.select([self.ours], [], [], max(0.0, until - time.monotonic()))
        try:
            text = os.read(self.ours, 4096) if ready else b""
        except OSError:  # how Linux tells that the other side is gone
            text = b""
        self.seen += text.decode(errors="replace")
        return bool(text)
