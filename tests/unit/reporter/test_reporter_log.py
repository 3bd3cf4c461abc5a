"""How the reporter reads a log: the first error, the last lines, masks, and hostile content."""

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
    """Return the workflow part of the report that is sent."""
    network = ScriptedNetwork()
    flags = ("--strict", "--status", "completed", "--conclusion", conclusion, "--log", str(log), *argv)
    code, output = run_reporter(*flags, env={**GITHUB, **env}, network=network)
    assert code == 0, output
    [body] = network.bodies
    workflow: dict[str, Any] = body["workflow"]
    return workflow


def send_excerpt(tmp_path: Path, data: bytes, **env: str) -> dict[str, str]:
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
    assert send_excerpt(tmp_path, log).get("first_error") == first


def test_every_kind_of_error_line_contains_an_error_hint() -> None:
    for log, first in FIRST_ERRORS:
        assert first is None or any(hint in log.lower() for hint in reporter.ERROR_HINTS)


def test_the_last_lines_are_rendered_as_in_a_terminal(tmp_path: Path) -> None:
    log = b" 1%\r50%\r100%\r\n\x1b[32mok\x1b[0m\n\n\xff\xfe bytes\r\n  indented\tx\nlast without an end"
    assert (
        send_excerpt(tmp_path, log)["tail"]
        == "100%\nok\n\ufffd\ufffd bytes\n  indented    x\nlast without an end"
    )


def test_values_of_secret_variables_and_of_add_mask_are_masked_before_and_after_their_line(
    tmp_path: Path,
) -> None:
    log = b"error: my-early-value\n::add-mask::my-early-value\n##[add-mask]a%20bc\nthe a bc and S3:cr+et and S3%3Acr%2Bet\n"
    log_excerpt = send_excerpt(tmp_path, log, DEPLOY_PASSWORD="S3:cr+et", PWD="error")
    assert log_excerpt == {"first_error": "error: ***", "tail": "error: ***\nthe *** and *** and ***"}


@pytest.mark.parametrize("conclusion", ["success", "skipped", "neutral"])
def test_the_log_of_a_job_that_did_not_fail_is_not_read(tmp_path: Path, conclusion: str) -> None:
    (tmp_path / "log.txt").write_text("error: x")
    assert "log_excerpt" not in send(tmp_path / "log.txt", conclusion=conclusion)


@pytest.mark.parametrize("kind", ["missing", "link", "folder", "pipe", "empty"])
def test_the_report_is_sent_without_an_unreadable_log(tmp_path: Path, kind: str) -> None:
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
    boundary=st.sampled_from([1024, 8 * 1024, 64 * 1024, 128 * 1024]),
    filler=st.sampled_from([b"x", b"word ", b"ok\n", b"1%\r", b"\xc3\xa9", b"\x1b[0m"]),
)
def test_secrets_across_chunk_and_line_boundaries_are_masked(
    tmp_path: Path, offset: int, boundary: int, filler: bytes
) -> None:
    before = (filler * (boundary // len(filler) + 1))[: boundary + offset]
    for secret, env in (
        (SECRET, {}),
        (b"correct horse battery staple", {"MY_TOKEN": "correct horse battery staple"}),
    ):
        log_excerpt = send_excerpt(tmp_path, before + b" error: " + secret + b" " + filler * 2_000, **env)
        shown = " ".join(log_excerpt.values()).encode()
        assert secret[:12] not in shown
        assert secret[-12:] not in shown
        assert len(shown) <= 8 * 1024


def test_only_the_beginning_and_the_end_of_a_huge_log_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reporter, "MAX_LOG_BYTES", MIB)
    with (tmp_path / "log.txt").open("wb") as file:
        file.write(b"error: first\n" + b"x" * MIB)
        file.seek(3 << 30)  # a hole: it takes no room on the disk
        file.write(b"half of a line\nthe last line\n")
    log_excerpt = send(tmp_path / "log.txt")["log_excerpt"]
    assert log_excerpt["first_error"] == "error: first"
    assert log_excerpt["tail"].splitlines()[-1] == "the last line"


def test_a_slow_scan_skips_to_the_end_of_the_log(tmp_path: Path) -> None:
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
def test_memory_is_bounded_for_any_log(data: bytes) -> None:
    scan = reporter.LogScan()
    for start in range(0, len(data), 64 * 1024):
        scan.feed(data[start : start + 64 * 1024])
    kept = len(scan._line) + sum(len(line) for line, _ in scan._last) + sum(map(len, scan.masks))
    assert kept <= 3 * 64 * 1024
    assert len(scan._last) <= 500
