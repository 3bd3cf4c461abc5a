"""The operator's commands on PostgreSQL: the move itself, and all that worked on SQLite.

The commands run in this process, and for each kind (a move, a query, an action, the doctor, invalid arguments) once as a separate
process.
"""

import json
import subprocess
import sys
from dataclasses import dataclass
from itertools import chain, repeat
from pathlib import Path
from typing import Any

import pytest

from support.cli_command import CommandResult, run_in_process
from support.data.every_table import execute_sql, filled_database, row_counts
from support.data.operator_database import database_with_history, relay_environment
from support.process import environment
from support.services.postgres import cluster, new_database, run_on

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

PASSWORD = "hush-hush-123"


@dataclass(frozen=True)
class CommandRunner:
    folder: Path
    environ: dict[str, str]

    def run(self, *words: str, **more: str) -> CommandResult:
        return run_in_process(*words, folder=self.folder, environ={**self.environ, **more})

    def start(self, *words: str, **more: str) -> CommandResult:
        """Run the command as a process."""
        done = subprocess.run(
            [sys.executable, "-m", "crcr", *words],
            cwd=self.folder,
            env=environment({**self.environ, **more}),
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        return CommandResult(done.returncode, done.stdout, done.stderr)

    def ok(self, *words: str, **more: str) -> str:
        return went_well(self.run(*words, **more))

    def json(self, *words: str, **more: str) -> Any:
        return json.loads(self.ok(*words, "--json", **more))


def went_well(done: CommandResult) -> str:
    assert (done.code, "Traceback" in done.errors) == (0, False), done.errors
    return done.out


def command_runner(folder: Path, url: str) -> CommandRunner:
    return CommandRunner(folder, relay_environment(folder, CRCR_DATABASE_URL=url))


@pytest.fixture(scope="module")
def runners(tmp_path_factory: pytest.TempPathFactory) -> tuple[CommandRunner, CommandRunner]:
    """A relay's file and the database that it was moved to."""
    folder = tmp_path_factory.mktemp("desk")
    history_shell = database_with_history(folder)
    url = new_database(empty=True)
    (folder / "url").write_text(f"{url}\n")
    before, after = CommandRunner(folder, history_shell.environ), command_runner(folder, url)
    named = {name: value for name, value in after.environ.items() if name != "CRCR_DATABASE_URL"}
    mover = CommandRunner(folder, {**named, "CRCR_DATABASE_URL_FILE": "url"})
    out = went_well(mover.start("migrate", "--from", "sqlite:///crcr.db"))
    assert "counts and checksums agree" in out
    assert "next: set CRCR_DATABASE_URL" in out
    return before, after


@pytest.mark.parametrize(
    "words",
    [
        ("deliveries", "list"),
        ("effects", "list"),
        ("effects", "list", "--parked"),
        ("repos", "list"),
        ("audit", "list"),
        ("allowlist", "show"),
    ],
    ids=" ".join,
)
def test_queries_print_the_same_before_and_after_the_move(
    runners: tuple[CommandRunner, CommandRunner], words: tuple[str, ...]
) -> None:
    before, after = runners
    assert after.json(*words) == before.json(*words)


def test_one_delivery_shows_the_same_with_its_body(runners: tuple[CommandRunner, CommandRunner]) -> None:
    before, after = runners
    [line] = before.json("deliveries", "list")
    words = ("deliveries", "show", line["guid"], "--body")
    assert json.loads(went_well(after.start(*words, "--json"))) == before.json(*words)


def test_operator_actions_take_effect_and_are_audited(runners: tuple[CommandRunner, CommandRunner]) -> None:
    _, after = runners
    [line] = after.json("deliveries", "list")
    assert "2 retried" in after.ok("effects", "retry", "--all")
    assert "sent again to 2" in after.ok(
        "deliveries", "replay", line["guid"], "--everyone"
    )  # one is waiting already
    went_well(after.start("suspend", "org/secret", "--reason", "a test"))
    after.ok("pause")
    after.ok("pause", "--lift")
    after.ok("allowlist", "refresh")
    acts = [each["act"] for each in after.json("audit", "list")]
    assert {"replay", "suspend", "pause"} <= set(acts)


def test_the_doctor_checks_the_server_and_prints_no_secret(
    runners: tuple[CommandRunner, CommandRunner],
) -> None:
    _, after = runners
    done = after.start("doctor", "--json")
    findings = {each["name"]: each for each in json.loads(done.out)["findings"]}
    states = {name: findings[name]["state"] for name in ("store", "writing", "connections", "size", "outbox")}
    assert set(states.values()) == {"ok"}, findings
    assert "PostgreSQL" in findings["store"]["text"]
    assert findings["durability"]["state"] == "warning"  # the tests' server runs without fsync
    query = "SELECT 1 FROM watermarks WHERE name = 'crcr doctor'"
    assert run_on(after.environ["CRCR_DATABASE_URL"], query) == []


def test_the_doctor_reports_missing_tables_a_newer_schema_and_an_unreachable_server(
    tmp_path: Path,
) -> None:
    def store_finding(url: str) -> tuple[str, str]:
        done = command_runner(tmp_path, url).run("doctor", "--json")
        assert (done.code, PASSWORD in done.out + done.errors) == (1, False)
        [store] = [each for each in json.loads(done.out)["findings"] if each["name"] == "store"]
        return store["state"], store["text"]

    state, text = store_finding(new_database(empty=True))
    assert (state, "There is no crcr database" in text) == ("problem", True)
    newer = new_database()
    run_on(newer, "UPDATE alembic_version SET version_num = '9999'")
    state, text = store_finding(newer)
    assert (state, "a newer release upgraded it" in text) == ("problem", True)
    state, text = store_finding(f"postgresql://crcr:{PASSWORD}@127.0.0.1:9/crcr")
    assert (state, "cannot be used" in text) == ("problem", True)


def test_migrate_check_config_and_backup_never_print_the_password(tmp_path: Path) -> None:
    url = new_database(empty=True).replace("crcr@", f"crcr:{PASSWORD}@")
    shell = command_runner(tmp_path, url)
    assert shell.json("migrate")["before"] is None
    assert "already at revision" in shell.ok("migrate")
    for words in (
        ("migrate",),
        ("check-config",),
        ("backup", "copy.db"),
        ("effects", "list"),
        ("reconcile",),
    ):
        done = shell.run(*words)
        assert PASSWORD not in done.out + done.errors, words
        assert "Traceback" not in done.errors, words
    assert "the data is in PostgreSQL" in shell.run("backup", "copy.db").errors


def test_commands_before_the_first_migration_create_no_tables(tmp_path: Path) -> None:
    url = new_database(empty=True)
    done = command_runner(tmp_path, url).run("effects", "list")
    assert (done.code, "there is no database" in done.errors) == (1, True)
    assert run_on(url, "SELECT 1 FROM pg_tables WHERE schemaname = 'public'") == []


def test_a_move_reports_its_rows_and_its_remarks(tmp_path: Path) -> None:
    path, url = filled_database(tmp_path / "crcr.db"), new_database()
    execute_sql(path, "UPDATE pulls SET title = ? WHERE number = 1", "a\0b")
    execute_sql(path, "UPDATE effects SET state = 'claimed' WHERE effect_id < 3")
    execute_sql(path, "CREATE TABLE notes (a)")
    done = CommandRunner(tmp_path, {}).run("migrate", "--from", "sqlite:///crcr.db", "--to", url)
    assert done.code == 0, done.errors
    assert "pulls: moved and compared 7 of 7 rows" in done.errors
    for words in (
        "replaced by U+FFFD in: pulls 1",
        "2 effects were running",
        "not the relay's: notes",
    ):
        assert words in done.errors
    assert f"{7 * (len(row_counts(url)))} rows" in done.out


def test_a_move_with_json_prints_only_json(tmp_path: Path) -> None:
    filled_database(tmp_path / "crcr.db")
    done = CommandRunner(tmp_path, {}).run(
        "migrate", "--from", "sqlite:///crcr.db", "--to", new_database(), "--json"
    )
    assert done.code == 0, done.errors
    result = json.loads(done.out)
    assert (done.errors, result["replaced"], result["left_tables"]) == ("", 0, [])
    assert result["rows"] == sum(each["rows"] for each in result["tables"]) > 0
    assert {len(each["checksum"]) for each in result["tables"]} == {32}


WRONG_WORDS = (
    (("--to", "postgresql://a@b/c"), "--to needs --from"),
    (("--from", "sqlite:///crcr.db"), "CRCR_DATABASE_URL"),
    (("--from", "sqlite:///crcr.db", "--to", "sqlite:///other.db"), "--to must be postgresql://"),
    (("--from", "postgresql://a@b/c", "--to", "postgresql://a@b/d"), "--from must be sqlite:///"),
    (("--from", "crcr.db", "--to", "postgresql://a@b/c"), "--from must be sqlite:///path"),
    (
        ("--from", "mysql://b/c", "--to", "postgresql://a@b/c"),
        "--from must be sqlite:///path (four slashes for a path from the root)",
    ),
    (
        ("--from", "sqlite:///crcr.db", "--to", "mysql://b/c"),
        "--to must be postgresql://user@host/name;",
    ),
    (
        ("--from", "sqlite:///crcr.db", "--to", f"postgresql://a:{PASSWORD}@b/c?x=y"),
        "--to may have the options",
    ),
)


def test_invalid_arguments_are_reported_before_anything_is_changed(tmp_path: Path) -> None:
    shell = command_runner(tmp_path, f"sqlite:///{tmp_path / 'crcr.db'}")
    for run, (words, expected) in zip(chain([shell.start], repeat(shell.run)), WRONG_WORDS, strict=False):
        done = run("migrate", *words)
        text = " ".join(done.errors.replace("│", " ").split())
        assert (done.code, expected in text, PASSWORD in text) == (2, True, False), (words, text)
        assert not (tmp_path / "crcr.db").exists()


def test_a_password_may_come_from_the_environment(tmp_path: Path) -> None:
    made = cluster()
    run_on(made.admin_url, f"CREATE ROLE mover LOGIN PASSWORD '{PASSWORD}'")
    run_on(made.admin_url, "CREATE DATABASE of_mover OWNER mover ENCODING 'UTF8' TEMPLATE template0")
    filled_database(tmp_path / "crcr.db", rows=1)
    url = made.url("of_mover").replace("crcr@", "mover@")
    mover = CommandRunner(tmp_path, {"PGPASSWORD": PASSWORD})
    done = mover.start("migrate", "--from", "sqlite:///crcr.db", "--to", url)
    assert (done.code, PASSWORD in done.out + done.errors) == (0, False), done.errors
