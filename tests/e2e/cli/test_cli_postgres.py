"""The operator's commands on PostgreSQL, each a real process: the move itself, and all that worked on the file."""

import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

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

    def run(self, *words: str, **more: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "crcr", *words],
            cwd=self.folder,
            env=environment({**self.environ, **more}),
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )

    def ok(self, *words: str, **more: str) -> str:
        done = self.run(*words, **more)
        assert (done.returncode, "Traceback" in done.stderr) == (0, False), done.stderr
        return done.stdout

    def json(self, *words: str, **more: str) -> Any:
        return json.loads(self.ok(*words, "--json", **more))


def command_runner(folder: Path, url: str) -> CommandRunner:
    return CommandRunner(folder, relay_environment(folder, CRCR_DATABASE_URL=url))


@pytest.fixture(scope="module")
def runners(tmp_path_factory: pytest.TempPathFactory) -> tuple[CommandRunner, CommandRunner]:
    """A relay's file and the database that it was moved to."""
    folder = tmp_path_factory.mktemp("desk")
    world = database_with_history(folder)
    url = new_database(empty=True)
    (folder / "url").write_text(f"{url}\n")
    before, after = CommandRunner(folder, world.environ), command_runner(folder, url)
    named = {name: value for name, value in after.environ.items() if name != "CRCR_DATABASE_URL"}
    out = CommandRunner(folder, {**named, "CRCR_DATABASE_URL_FILE": "url"}).ok(
        "migrate", "--from", "sqlite:///crcr.db"
    )
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
def test_a_look_shows_the_same_before_and_after_the_move(
    runners: tuple[CommandRunner, CommandRunner], words: tuple[str, ...]
) -> None:
    before, after = runners
    assert after.json(*words) == before.json(*words)


def test_one_delivery_shows_the_same_with_its_body(runners: tuple[CommandRunner, CommandRunner]) -> None:
    before, after = runners
    [line] = before.json("deliveries", "list")
    words = ("deliveries", "show", line["guid"], "--body")
    assert after.json(*words) == before.json(*words)


def test_acts_by_hand_take_effect_and_are_audited(runners: tuple[CommandRunner, CommandRunner]) -> None:
    _, after = runners
    [line] = after.json("deliveries", "list")
    assert "2 retried" in after.ok("effects", "retry", "--all")
    assert "sent again to 2" in after.ok(
        "deliveries", "replay", line["guid"], "--everyone"
    )  # one waits already
    after.ok("suspend", "org/secret", "--reason", "a test")
    after.ok("pause")
    after.ok("pause", "--lift")
    after.ok("allowlist", "refresh")
    acts = [each["act"] for each in after.json("audit", "list")]
    assert {"replay", "suspend", "pause"} <= set(acts)


def test_the_doctor_looks_at_the_server_and_prints_no_secret(
    runners: tuple[CommandRunner, CommandRunner],
) -> None:
    _, after = runners
    done = after.run("doctor", "--json")
    found = {each["name"]: each for each in json.loads(done.stdout)["findings"]}
    states = {name: found[name]["state"] for name in ("store", "writing", "connections", "size", "outbox")}
    assert set(states.values()) == {"ok"}, found
    assert "PostgreSQL" in found["store"]["text"]
    assert found["durability"]["state"] == "warning"  # the tests' server forgets
    tried = "SELECT 1 FROM watermarks WHERE name = 'crcr doctor'"
    assert run_on(after.environ["CRCR_DATABASE_URL"], tried) == []


def test_the_doctor_tells_a_database_without_tables_or_of_a_newer_release_and_a_server_that_is_away(
    tmp_path: Path,
) -> None:
    def told(url: str) -> tuple[str, str]:
        done = command_runner(tmp_path, url).run("doctor", "--json")
        assert (done.returncode, PASSWORD in done.stdout + done.stderr) == (1, False)
        [store] = [each for each in json.loads(done.stdout)["findings"] if each["name"] == "store"]
        return store["state"], store["text"]

    state, text = told(new_database(empty=True))
    assert (state, "There is no crcr database" in text) == ("problem", True)
    newer = new_database()
    run_on(newer, "UPDATE alembic_version SET version_num = '9999'")
    state, text = told(newer)
    assert (state, "a newer release upgraded it" in text) == ("problem", True)
    state, text = told(f"postgresql://crcr:{PASSWORD}@127.0.0.1:9/crcr")
    assert (state, "cannot be used" in text) == ("problem", True)


def test_migrating_settings_and_backup_speak_of_the_server_without_its_password(tmp_path: Path) -> None:
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
        assert PASSWORD not in done.stdout + done.stderr, words
        assert "Traceback" not in done.stderr, words
    assert "the data is in PostgreSQL" in shell.run("backup", "copy.db").stderr


def test_commands_before_any_relay_make_no_tables(tmp_path: Path) -> None:
    url = new_database(empty=True)
    done = command_runner(tmp_path, url).run("effects", "list")
    assert (done.returncode, "there is no database" in done.stderr) == (1, True)
    assert run_on(url, "SELECT 1 FROM pg_tables WHERE schemaname = 'public'") == []


def test_a_move_tells_what_it_did_and_what_is_remarkable(tmp_path: Path) -> None:
    path, url = filled_database(tmp_path / "crcr.db"), new_database()
    execute_sql(path, "UPDATE pulls SET title = ? WHERE number = 1", "a\0b")
    execute_sql(path, "UPDATE effects SET state = 'claimed' WHERE effect_id < 3")
    execute_sql(path, "CREATE TABLE notes (a)")
    done = CommandRunner(tmp_path, {}).run("migrate", "--from", "sqlite:///crcr.db", "--to", url)
    assert done.returncode == 0, done.stderr
    assert "pulls: moved and compared 7 of 7 rows" in done.stderr
    for words in (
        "replaced by U+FFFD in: pulls 1",
        "2 effects were running",
        "not the relay's: notes",
    ):
        assert words in done.stderr
    assert f"{7 * (len(row_counts(url)))} rows" in done.stdout


def test_a_move_for_scripts_is_json_alone(tmp_path: Path) -> None:
    filled_database(tmp_path / "crcr.db")
    done = CommandRunner(tmp_path, {}).run(
        "migrate", "--from", "sqlite:///crcr.db", "--to", new_database(), "--json"
    )
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert (done.stderr, told["replaced"], told["left_tables"]) == ("", 0, [])
    assert told["rows"] == sum(each["rows"] for each in told["tables"]) > 0
    assert {len(each["checksum"]) for each in told["tables"]} == {32}


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--to", "postgresql://a@b/c"), "--to needs --from"),
        (("--from", "sqlite:///crcr.db"), "CRCR_DATABASE_URL"),
        (("--from", "sqlite:///crcr.db", "--to", "sqlite:///other.db"), "--to must be postgresql://"),
        (("--from", "postgresql://a@b/c", "--to", "postgresql://a@b/d"), "--from must be sqlite:///"),
        (("--from", "crcr.db", "--to", "postgresql://a@b/c"), "--from must be sqlite:///path"),
        (
            ("--from", "mysql://b/c", "--to", "postgresql://a@b/c"),
            "--from must be sqlite:///path (four slashes for a path from the root).",
        ),
        (
            ("--from", "sqlite:///crcr.db", "--to", "mysql://b/c"),
            "--to must be postgresql://user@host/name;",
        ),
        (
            ("--from", "sqlite:///crcr.db", "--to", f"postgresql://a:{PASSWORD}@b/c?x=y"),
            "--to may have the options",
        ),
    ],
)
def test_wrong_words_are_told_before_anything_is_touched(
    tmp_path: Path, words: tuple[str, ...], said: str
) -> None:
    done = command_runner(tmp_path, f"sqlite:///{tmp_path / 'crcr.db'}").run("migrate", *words)
    told = " ".join(done.stderr.replace("│", " ").split())
    assert (done.returncode, said in told, PASSWORD in told) == (2, True, False), told
    assert not (tmp_path / "crcr.db").exists()


def test_a_password_may_come_from_the_environment(tmp_path: Path) -> None:
    made = cluster()
    run_on(made.admin_url, f"CREATE ROLE mover LOGIN PASSWORD '{PASSWORD}'")
    run_on(made.admin_url, "CREATE DATABASE of_mover OWNER mover ENCODING 'UTF8' TEMPLATE template0")
    filled_database(tmp_path / "crcr.db", rows=1)
    url = made.url("of_mover").replace("crcr@", "mover@")
    done = CommandRunner(tmp_path, {"PGPASSWORD": PASSWORD}).run(
        "migrate", "--from", "sqlite:///crcr.db", "--to", url
    )
    assert (done.returncode, PASSWORD in done.stdout + done.stderr) == (0, False), done.stderr
