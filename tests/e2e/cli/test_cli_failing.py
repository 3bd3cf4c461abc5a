"""`crcr failing`: a relay's failing jobs for its operator, and with --hud from a served relay for everybody."""

import json
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from support.data.operator_database import OperatorShell
from support.github.gated_upstream import gated_upstream, run_all
from support.running_relay import UPSTREAM, RunningRelay, environment
from support.served_relay import serve_relay

LISTED = """
L2:
  - Org/Reporter: {oncalls: [ada]}
  - org/secret: {visibility: hidden}
"""
NAMES = ("org/reporter", "org/secret")


@asynccontextmanager
async def relay_with_failures(folder: Path) -> AsyncIterator[RunningRelay]:
    """Three pushes to the base: the build of two backends passes on the first and fails on the others."""
    async with gated_upstream(folder, LISTED, downstreams=NAMES) as relay:
        relay.clock.advance(datetime.now(UTC) - relay.clock.now())
        for conclusion in ("success", "failure", "failure"):
            await relay.github.push(UPSTREAM)
            await relay.drain()
            for name in NAMES:
                await run_all(relay, name, build=conclusion)
        yield relay


@dataclass(frozen=True)
class Served:
    address: str
    shell: OperatorShell
    commits: list[str]
    """Of the base, oldest first."""


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp("failing")
    with serve_relay(folder, relay_with_failures) as (address, relay):
        settings = environment(folder, relay.github, folder / "allowlist.yml")
        shell = OperatorShell(folder, settings)
        rows = shell.rows("SELECT sha FROM base_commits ORDER BY position")
        yield Served(address, shell, [row["sha"] for row in rows][-3:])


@pytest.fixture
def public_shell(tmp_path: Path) -> OperatorShell:
    """A shell without settings."""
    return OperatorShell(tmp_path, {"XDG_CACHE_HOME": str(tmp_path / "cache"), "HOME": str(tmp_path)})


def jobs(text: str) -> list[tuple[Any, ...]]:
    body = json.loads(text)
    assert body["next"] is None
    return [(job["backend"], job["job"], job["failures_in_a_row"]) for job in body["items"]]


def test_the_operator_sees_hidden_backends_too(served: Served) -> None:
    printed = served.shell.ok("failing", "--format", "json")
    assert jobs(printed) == [("Org/Reporter", "build", 2), ("org/secret", "build", 2)]
    first = json.loads(printed)["items"][0]
    assert [first["last_good"], first["first_bad"], first["last_bad"]] == served.commits
    assert served.shell.ok("failing", "--json") == printed
    assert "ada" in served.shell.ok("failing")
    assert served.shell.ok("failing", "--kind", "nightly") == "no job is failing\n"
    assert jobs(served.shell.ok("failing", "--json", "--backend", "SECRET")) == [("org/secret", "build", 2)]


def test_the_public_list_is_read_without_settings(served: Served, public_shell: OperatorShell) -> None:
    printed = public_shell.ok("failing", "--hud", served.address, "--format", "json")
    assert jobs(printed) == [("Org/Reporter", "build", 2)]
    table = public_shell.ok("failing", "--hud", f"{served.address}/crcr/failing")
    assert "Org/Reporter" in table
    assert served.commits[1][:8] in table
    markdown = public_shell.ok("failing", "--hud", served.address, "--format", "markdown").splitlines()
    assert markdown[0].startswith("**1 failing job**")
    assert markdown[4].startswith("| `Org/Reporter` | `build` | ")
    assert public_shell.ok("failing", "--hud", served.address, "--known") == "no job is failing\n"


@pytest.mark.parametrize(("most", "code"), [("1", 1), ("2", 0)])
def test_fail_on_sets_the_exit_code_when_too_many_jobs_fail(
    served: Served, public_shell: OperatorShell, most: str, code: int
) -> None:
    result = public_shell.crcr("failing", "--hud", served.address, "--fail-on", most)
    assert result.exit_code == code
    assert "Org/Reporter" in result.stdout
    assert ("1 failing job, --fail-on 1" in result.stderr) == bool(code)


def test_responses_are_cached_and_revalidated_unless_no_cache_is_given(
    served: Served, public_shell: OperatorShell
) -> None:
    public_shell.ok("failing", "--hud", served.address, "--no-cache")
    assert not (public_shell.folder / "cache").exists()
    public_shell.ok("failing", "--hud", served.address)
    (kept,) = (public_shell.folder / "cache" / "crcr").iterdir()
    content = json.loads(kept.read_text())
    assert content["etag"], "the relay names the version of its answers"
    content["body"] = json.dumps({"items": [], "next": None})
    kept.write_text(json.dumps(content))
    assert public_shell.ok("failing", "--hud", served.address) == "no job is failing\n", "it is fresh"
    kept.write_text(json.dumps({**content, "at": 0}))
    assert public_shell.ok("failing", "--hud", served.address) == "no job is failing\n", (
        "its version is confirmed"
    )
    kept.write_text(json.dumps({**content, "at": 0, "etag": '"another"'}))
    assert "Org/Reporter" in public_shell.ok("failing", "--hud", served.address)


@pytest.mark.parametrize(
    ("words", "code", "expected"),
    [
        (("--hud", "nowhere"), 2, "is not the address of a relay"),
        (("--hud", "http://127.0.0.1:9", "--config", "crcr.toml"), 2, "about this machine's relay"),
        (("--kind", "all"), 2, "all"),
        (("--fail-on", "0"), 2, "a whole number of 1 or more"),
        ((), 2, "CRCR_"),
    ],
)
def test_invalid_options_are_explained(
    public_shell: OperatorShell, words: tuple[str, ...], code: int, expected: str
) -> None:
    result = public_shell.crcr("failing", *words)
    assert result.exit_code == code
    assert expected in result.output


def test_an_upstream_that_the_relay_does_not_serve_is_reported(
    served: Served, public_shell: OperatorShell
) -> None:
    result = public_shell.crcr("failing", "--hud", served.address, "--upstream", "no/body", "--no-cache")
    assert result.exit_code == 1
    assert "serves no upstream" in result.output


def test_reading_another_relay_imports_no_database_code(served: Served, tmp_path: Path) -> None:
    code = (
        "import sys\nfrom crcr.cli.main import app\n"
        f"app(['failing', '--hud', {served.address!r}, '--no-cache'], standalone_mode=False)\n"
        "assert not {'sqlalchemy', 'asyncpg', 'fastapi', 'cryptography'} & set(sys.modules)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env={"HOME": str(tmp_path)},
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert "Org/Reporter" in done.stdout
