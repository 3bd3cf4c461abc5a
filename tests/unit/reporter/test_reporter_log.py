"""How the reporter reads a log: the first error, the last lines, masked, whatever the file holds."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from support.downstream.reporter import GITHUB, ScriptedNetwork, reporter, run_reporter

MIB = 1024 * 1024


def send(log: Path, *argv: str, conclusion: str = "failure", **env: str) -> dict[str, Any]:
    """The workflow part of the report that goes out."""
    network = ScriptedNetwork()
    flags = ("--strict", "--status", "completed", "--conclusion", conclusion, "--log", str(log), *argv)
    code, said = run_reporter(*flags, env={**GITHUB, **env}, network=network)
    assert code == 0, said
    [body] = network.bodies
    workflow: dict[str, Any] = body["workflow"]
    return workflow


def excerpt(tmp_path: Path, data: bytes, **env: str) -> dict[str, str]:
    (tmp_path / "log.txt").write_bytes(data)
    sent: dict[str, str] = send(tmp_path / "log.txt", **env).get("log_excerpt", {})
    return sent


FIRST_ERRORS = [
    (b"cc -Werror a.c\na.c:3:5: error: no x\nmake: *** [a] Error 1\n", "a.c:3:5: error: no x"),
    (b"Traceback (most recent call last):\n  File x\nRuntimeError: boom\n", "RuntimeError: boom"),
    (b"0 errors so far\n+ echo error: x\nE   assert 1 == 2\n", "E   assert 1 == 2"),
    (b"2026-01-01T00:00:00.1234567Z ##[error]disk full\n", "disk full"),
    (b"::error file=a.py,line=3::bad thing\n", "bad thing"),
    (
        b"Error: Process completed with exit code 1.\nld: undefined reference to `f'\n",
        "ld: undefined reference to `f'",
    ),
    (b"step failed\nall done\n", "step failed"),
    (b"##[error]Process completed with exit code 1.\n", "Process completed with exit code 1."),
    (b"\x1b[1;31merror[E0308]\x1b[0m: mismatched\n", "error[E0308]: mismatched"),
    (b"fine\nstill fine\n", None),
]


@pytest.mark.parametrize(("log", "first"), FIRST_ERRORS)
def test_the_first_line_that_names_an_error_is_found(tmp_path: Path, log: bytes, first: str | None) -> None:
    assert excerpt(tmp_path, log).get("first_error") == first


def test_every_line_that_can_be_an_error_has_a_hint() -> None:
    for log, first in FIRST_ERRORS:
        assert first is None or any(hint in log.lower() for hint in reporter.ERROR_HINTS)


def test_the_last_lines_are_as_a_terminal_shows_them(tmp_path: Path) -> None:
    log = b" 1%\r50%\r100%\r\n\x1b[32mok\x1b[0m\n\n\xff\xfe bytes\r\n  indented\tx\nlast without an end"
    assert (
        excerpt(tmp_path, log)["tail"] == "100%\nok\n\ufffd\ufffd bytes\n  indented    x\nlast without an end"
    )


def test_values_of_secret_variables_and_of_add_mask_are_masked_before_and_after_their_line(
    tmp_path: Path,
) -> None:
    log = b"error: my-early-value\n::add-mask::my-early-value\n##[add-mask]a%20bc\nthe a bc and S3:cr+et and S3%3Acr%2Bet\n"
    found = excerpt(tmp_path, log, DEPLOY_PASSWORD="S3:cr+et", PWD="error")
    assert found == {"first_error": "error: ***", "tail": "error: ***\nthe *** and *** and ***"}


@pytest.mark.parametrize("conclusion", ["success", "skipped", "neutral"])
def test_the_log_of_a_job_that_passed_is_not_read(tmp_path: Path, conclusion: str) -> None:
    (tmp_path / "log.txt").write_text("error: x")
    assert "log_excerpt" not in send(tmp_path / "log.txt", conclusion=conclusion)


@pytest.mark.parametrize("kind", ["missing", "link", "folder", "pipe", "empty"])
def test_a_log_that_cannot_be_read_costs_the_report_nothing(tmp_path: Path, kind: str) -> None:
    path, other = tmp_path / "log.txt", tmp_path / "other"
    other.write_text("error: elsewhere")
    make: dict[str, Callable[[], object]] = {
        "missing": lambda: None,
        "link": lambda: path.symlink_to(other),
        "folder": path.mkdir,
        "pipe": lambda: os.mkfifo(path),
        "empty": path.touch,
    }
    make[kind]()
    sent = send(path)
    assert (sent["conclusion"], "log_excerpt" in sent) == ("failure", False)


SECRET = b"ghp_abcdefghijklmnopqrstuvwxyz0123456789"


@settings(deadline=None, max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    offset=st.integers(-60, 60),
    border=st.sampled_from([1024, 8 * 1024, 64 * 1024, 128 * 1024]),
    filler=st.sampled_from([b"x", b"word ", b"ok\n", b"1%\r", b"\xc3\xa9", b"\x1b[0m"]),
)
def test_no_border_of_a_piece_or_a_line_opens_a_mask(
    tmp_path: Path, offset: int, border: int, filler: bytes
) -> None:
    before = (filler * (border // len(filler) + 1))[: border + offset]
    for secret, env in (
        (SECRET, {}),
        (b"correct horse battery staple", {"MY_TOKEN": "correct horse battery staple"}),
    ):
        found = excerpt(tmp_path, before + b" error: " + secret + b" " + filler * 2_000, **env)
        shown = " ".join(found.values()).encode()
        assert secret[:12] not in shown
        assert secret[-12:] not in shown
        assert len(shown) <= 8 * 1024


def test_of_a_huge_log_the_beginning_and_the_end_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reporter, "MAX_LOG_BYTES", MIB)
    with (tmp_path / "log.txt").open("wb") as file:
        file.write(b"error: first\n" + b"x" * MIB)
        file.seek(3 << 30)  # a hole: it takes no room on the disk
        file.write(b"half of a line\nthe last line\n")
    found = send(tmp_path / "log.txt")["log_excerpt"]
    assert found["first_error"] == "error: first"
    assert found["tail"].splitlines()[-1] == "the last line"


def test_a_log_that_takes_too_long_is_left_for_its_end(tmp_path: Path) -> None:
    (tmp_path / "log.txt").write_bytes(b"a\n" * MIB + b"error: late\n")
    ticks = iter(range(0, 10_000, 20))
    scan = reporter.scan_log(str(tmp_path / "log.txt"), reporter.Machine(clock=lambda: float(next(ticks))))
    assert next(ticks) < 100
    assert scan.last_lines()[-1] == "error: late"
    assert scan.first_error() == "error: late"


MASKS = b"".join(b"::add-mask::%d\n" % number for number in range(10_000, 30_000))


@pytest.mark.parametrize(
    "data", [b"x" * MIB, b"a\n" * 200_000, b"1%\r" * 200_000, MASKS], ids=["x", "a", "1%", "masks"]
)
def test_memory_is_bounded_whatever_the_log_holds(data: bytes) -> None:
    scan = reporter.LogScan()
    for start in range(0, len(data), 64 * 1024):
        scan.feed(data[start : start + 64 * 1024])
    kept = len(scan._line) + sum(len(line) for line, _ in scan._last) + sum(map(len, scan.masks))
    assert kept <= 3 * 64 * 1024
    assert len(scan._last) <= 500
