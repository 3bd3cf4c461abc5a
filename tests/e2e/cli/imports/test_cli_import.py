"""`crcr import` on the command line: dry run, report of rejected lines, exit codes."""

import json
from datetime import UTC, datetime
from pathlib import Path

import pytest

from crcr.record.migrations.run import migrate
from support.aws.history_items import make_history, write_lines
from support.data.operator_database import OperatorShell, relay_environment
from support.running_relay import UPSTREAM


@pytest.fixture
def shell(tmp_path: Path) -> OperatorShell:
    migrate(tmp_path / "crcr.db")
    return OperatorShell(tmp_path, relay_environment(tmp_path))


def test_files_are_imported_with_a_report_of_the_rejected_lines(shell: OperatorShell) -> None:
    history = make_history(120, UPSTREAM, datetime.now(UTC))
    file, rejected = shell.folder / "history.jsonl", shell.folder / "rejected.jsonl"
    file.write_text(write_lines(history.items, "export"))
    would = shell.json("import", "files", str(file), "--dry-run")
    assert (would["read"], would["dry_run"]) == (120, True)
    assert shell.rows("SELECT 1 FROM jobs") == []
    done = shell.json("import", "files", str(file), "--rejected", str(rejected))
    assert done == {**would, "dry_run": False}
    assert done["taken"] == len(shell.rows("SELECT 1 FROM jobs")) == 120 - history.not_taken.total()
    lines = [json.loads(line) for line in rejected.read_text().splitlines()]
    assert len(lines) == history.not_taken.total() == sum(done["not_taken"].values())
    assert any(line["reason"].startswith("it is not a result that can be read: ") for line in lines)
    shell.json("import", "files", str(file), "--rejected", str(rejected))  # a new report, not a longer one
    assert len(rejected.read_text().splitlines()) == len(lines)
    text = shell.ok("import", "files", str(file))
    assert "120 results read: 0 taken, 0 corrected," in text
    assert "not taken because" in text
    [act] = shell.rows("SELECT act, detail FROM audit WHERE act = 'import'")
    assert json.loads(act["detail"])["taken"] == done["taken"]


WRONG = [
    (("files", "/no/such/file"), 1, "is no file and no folder"),
    (("clickhouse",), 1, "no ClickHouse is named"),
    (
        ("clickhouse", "--url", "https://user:secret-word@host"),
        2,
        "--url must be an address such as clickhouse://",
    ),
    (("dynamodb", "--segments", "0"), 2, "segments"),
]


@pytest.mark.parametrize(("words", "code", "expected"), WRONG)
def test_invalid_arguments_are_reported(
    shell: OperatorShell, words: tuple[str, ...], code: int, expected: str
) -> None:
    result = shell.crcr("import", *words)
    assert result.exit_code == code
    assert expected in result.stderr
    assert "secret-word" not in result.output
