"""`crcr doctor` with a served relay: for a downstream's maintainer, and for the relay's operator.

Two relays are served for the whole module: one for downstreams, of which each test has its own with an owner of its
own, and one for operators, which is put in order again after each test. The command runs in this process, and for
each of its exit codes once as a process.
"""

import asyncio
import json
import sqlite3
import subprocess
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from crcr.join.shipped.texts import reporter_text
from github_sim.github import GitHub, JobSpec, Workflow
from github_sim.rest.server import serve
from support.cli_command import CommandResult, run_in_process
from support.data.operator_database import relay_environment
from support.downstream.setup import GOOD, NO_TOKEN, PATH, PINNED, UNPINNED
from support.process import crcr, free_port
from support.running_relay import AUDIENCE, RELAY_URL, UPSTREAM

pytestmark = [pytest.mark.slow, pytest.mark.asyncio(loop_scope="module")]

REPO = "org/reporter"
SECRET = "org/secret"
OWNERS = (
    *("good", "permissions", "mended", "cached", "listed", "followed", "silent", "tokenless"),
    *("unreachable", "checkout", "unpinned"),
)
"""Each test that asks the relay about a downstream has one of its own: it is examined at most once a minute."""
ADMIN = "admin-" + "d" * 40
HIDDEN = f"  - {SECRET}: {{visibility: hidden}}\n"
OPERATED = f"L2:\n  - {REPO}\n{HIDDEN}"


@dataclass(frozen=True)
class DoctorResult(CommandResult):
    @property
    def json(self) -> Any:
        return json.loads(self.out)

    def state(self, name: str) -> str:
        return next((each["state"] for each in self.json["findings"] if each["name"] == name), "absent")

    def words(self, name: str) -> str:
        return next(
            f"{each['text']} {each['hint']}" for each in self.json["findings"] if each["name"] == name
        )


async def run_process(*words: str, folder: Path, environ: Mapping[str, str] | None = None) -> DoctorResult:
    async with crcr(*words, folder=folder, environ=environ or {}) as process:
        async with asyncio.timeout(60):
            return DoctorResult(*await process.finish())


async def run_command(*words: str, folder: Path, environ: Mapping[str, str] | None = None) -> DoctorResult:
    """Run a command in this process, in a thread: the simulated GitHub answers it meanwhile."""
    async with asyncio.timeout(60):
        done = await asyncio.to_thread(run_in_process, *words, folder=folder, environ=environ or {})
        return DoctorResult(done.code, done.out, done.errors)


@dataclass(frozen=True)
class DoctorSetup:
    folder: Path
    github: GitHub
    url: str
    environ: dict[str, str]

    @property
    def port(self) -> str:
        return self.url.rpartition(":")[2]

    def repository(self, owner: str, workflow: str = GOOD) -> str:
        """Create a downstream of that owner's, and return its name."""
        name = f"{owner}/reporter"
        builds = [Workflow(path=PATH, jobs=(JobSpec("build"),))]
        self.github.create_repository(name, workflows=builds, files={PATH: pinned(workflow, self.port)})
        return name

    async def doctor(
        self, *words: str, folder: Path | None = None, environ: Mapping[str, str] | None = None
    ) -> DoctorResult:
        return await run_command("doctor", *words, folder=folder or self.folder, environ=environ)

    async def asked(self, repository: str, *words: str, **more: Any) -> DoctorResult:
        return await self.doctor("--relay", self.url, "--repo", repository, *words, **more)

    async def of_operator(self, *words: str, **more: str) -> DoctorResult:
        return await self.doctor(*words, environ={**self.environ, **more})


def settings(folder: Path, github: GitHub, port: int, allowlist: str) -> dict[str, str]:
    github.webhook_url = f"http://127.0.0.1:{port}/github/webhook"
    issuer = [{"issuer": github.issuer_url, "kind": "github", "jwks_url": github.jwks_url}]
    environ = relay_environment(
        folder,
        CRCR_GITHUB_APP_ID=str(github.app_id),
        CRCR_GITHUB_APP_PRIVATE_KEY=github.private_key_pem,
        CRCR_GITHUB_WEBHOOK_SECRET=github.webhook_secret,
        CRCR_GITHUB_API_URL=github.base_url,
        CRCR_PUBLIC_URL=f"http://127.0.0.1:{port}",
        CRCR_OIDC_ISSUERS=json.dumps(issuer),
        CRCR_ADMIN_TOKENS=f"root=sha256:{sha256(ADMIN.encode()).hexdigest()}",
        CRCR_PORT=str(port),
    )
    (folder / "allowlist.yml").write_text(allowlist)
    return environ


def pinned(workflow: str, port: int | str) -> str:
    """The workflow with the pin of the relay at that port."""
    own = f"http://127.0.0.1:{port}/github/callback {AUDIENCE}"
    return workflow.replace(f"{RELAY_URL}/github/callback {AUDIENCE}", own)


@asynccontextmanager
async def run_doctor_setup(folder: Path, allowlist: str, *owners: str) -> AsyncIterator[DoctorSetup]:
    """A served relay; these owners have their downstreams before it starts, so that it finds all that it looks for."""
    port = free_port()
    async with GitHub(seed=7) as github, serve(github):
        github.create_repository(UPSTREAM)
        github.create_repository(SECRET)
        environ = settings(folder, github, port, allowlist)
        setup = DoctorSetup(folder, github, f"http://127.0.0.1:{port}", environ)
        for owner in owners:
            setup.repository(owner)
        async with crcr("serve", folder=folder, environ=environ) as relay:
            await relay.wait_for_line("crcr is listening on")
            yield setup
            assert await relay.stop() == 0
        github.finish()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def world(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[DoctorSetup]:
    """The relay that downstreams ask."""
    listed = "".join(f"  - {owner}/reporter\n" for owner in OWNERS)
    async with run_doctor_setup(tmp_path_factory.mktemp("relay"), f"L2:\n{listed}{HIDDEN}") as relay:
        yield relay


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def operated(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[DoctorSetup]:
    """The relay that an operator looks at, with one downstream for everybody and one that is hidden."""
    async with run_doctor_setup(tmp_path_factory.mktemp("operated"), OPERATED, "org") as relay:
        yield relay


@pytest_asyncio.fixture(loop_scope="module")
async def own(operated: DoctorSetup) -> AsyncIterator[DoctorSetup]:
    """The same, put in order again when the test is done."""
    github, folder = operated.github, operated.folder
    hook, granted = github.webhook_url, dict(github.installation(REPO).permissions)
    yield operated
    (folder / "allowlist.yml").write_text(OPERATED)
    github.webhook_url, github.webhooks.content_type = hook, "json"
    github.installation(REPO).permissions.update(granted)
    await github.install(SECRET)


async def test_a_good_set_up_ends_with_zero_and_is_told_line_by_line(world: DoctorSetup) -> None:
    words = ("doctor", "--relay", world.url, "--repo", world.repository("good"))
    told = await run_process(*words, folder=world.folder)
    assert (told.code, "Traceback" in told.errors) == (0, False), told.out
    for finding in (
        "✓ reachable",
        "✓ clock",
        "✓ allowlist",
        "✓ app",
        "✓ workflow",
        "✓ id token",
        "? dispatch",
    ):
        assert finding in told.out
    assert "checks passed" in told.out.splitlines()[-1]


async def test_an_allowlist_file_is_checked_with_what_the_relay_knows_of_the_apps_rights(
    world: DoctorSetup, tmp_path: Path
) -> None:
    repository = world.repository("permissions")
    new = tmp_path / "new.yml"
    new.write_text(f"L4:\n  - {repository}: {{oncalls: [ada], jobs: ['test*']}}\n")

    async def checked(url: str) -> DoctorResult:
        return await run_command("allowlist", "check", str(new), "--relay", url, folder=tmp_path)

    await world.github.change_permissions(repository, actions=None)
    assert "is not known to the relay" in (await checked(world.url)).out
    await world.asked(repository)  # has the relay look at the installation
    told = await checked(world.url)
    assert (told.code, "the App cannot read its Actions" in told.out) == (0, True), told.out
    assert "name its `jobs` literally, or grant Actions: read" in told.out
    away = await checked(f"http://127.0.0.1:{free_port()}")
    assert (away.code, "does not answer" in away.errors) == (2, True), away


async def test_what_is_wrong_is_told_and_doing_what_it_says_mends_it(world: DoctorSetup) -> None:
    repository = world.repository("mended", NO_TOKEN)
    words = ("doctor", "--relay", world.url, "--repo", repository, "--json")
    told = await run_process(*words, folder=world.folder)
    assert (told.code, told.state("id_token"), told.json["ok"]) == (1, "problem", False)
    assert "id-token: write" in told.words("id_token")
    world.github.write_file(repository, PATH, pinned(GOOD, world.port))
    world.github.repository(repository).disabled_workflows.add(PATH)
    await _a_minute_later(world, repository)
    told = await world.asked(repository, "--json")
    assert (told.code, told.state("id_token"), told.state("workflow")) == (1, "ok", "problem")
    world.github.repository(repository).disabled_workflows.clear()
    await _a_minute_later(world, repository)
    assert (await world.asked(repository, "--json")).code == 0


async def test_an_answer_that_is_not_new_says_how_old_it_is(world: DoctorSetup) -> None:
    repository = world.repository("cached")
    first = await world.asked(repository, "--json")
    world.github.write_file(repository, PATH, pinned(NO_TOKEN, world.port))
    again = await world.asked(repository, "--json")
    assert (again.state("id_token"), again.json["inspected_at"]) == ("ok", first.json["inspected_at"])
    assert datetime.fromisoformat(again.json["inspected_at"]) <= datetime.now(UTC)
    people = await world.asked(repository)
    assert "GitHub's state" in people.out
    assert "s ago; it is asked at most once a minute" in people.out


async def _a_minute_later(world: DoctorSetup, repository: str) -> None:
    """The store's clock is real here, so the last question is made older instead."""
    with sqlite3.connect(world.folder / "crcr.db", timeout=10) as connection:
        moved = connection.execute(
            "UPDATE inspections SET asked_at = asked_at - 61000000, inspected_at = inspected_at - 61000000"
            " WHERE downstream = ?",
            (repository,),
        )
    connection.close()
    assert moved.rowcount == 1


async def test_the_unlisted_and_the_hidden_are_told_alike(world: DoctorSetup) -> None:
    for name in ("no/body", SECRET):
        told = await world.asked(name, "--json")
        assert (told.code, told.state("allowlist"), told.state("app")) == (1, "problem", "unknown")
        assert f"{world.url}/crcr/onboarding?repository={name}" in told.words("allowlist")
        assert f"{name} is not on the allowlist" in told.words("allowlist")
    admin = await world.asked(SECRET, "--json", environ={"CRCR_TOKEN": ADMIN})
    assert (admin.state("allowlist"), admin.state("app")) == ("ok", "ok")
    assert ADMIN not in admin.out + admin.errors


async def test_a_test_is_followed_until_its_result_is_here(world: DoctorSetup) -> None:
    repository = world.repository("followed")
    task = asyncio.create_task(world.asked(repository, "--test", environ={"CRCR_TOKEN": ADMIN}))
    run = await _run(world, repository)
    await world.github.start_job(run, "build")
    await world.github.complete_job(run, "build", "success")
    told = await task
    assert told.code == 0, told.out
    for words in (
        "- sent after",
        "- build in progress after",
        "- build success after",
        "The round trip works",
    ):
        assert words in told.out + told.errors


async def _run(world: DoctorSetup, repository: str) -> Any:
    async with asyncio.timeout(30):
        while not world.github.runs(repository):
            await asyncio.sleep(0.05)
    return world.github.runs(repository)[0]


async def test_a_test_that_nobody_answers_tells_where_it_stopped(world: DoctorSetup) -> None:
    repository = world.repository("silent")
    told = await world.asked(repository, "--test", "--timeout", "2s", "--json", "--token", ADMIN)
    assert (told.code, told.state("test")) == (1, "problem")
    assert "nothing was reported within 2 s" in told.words("test")
    run = await _run(world, repository)
    again = world.asked(repository, "--test", "--timeout", "3s", "--json", "--token", ADMIN)
    task = asyncio.create_task(again)
    await world.github.start_job(run, "build")
    assert "nothing was reported" in (await task).words("test")


async def test_a_test_without_a_token_says_who_can_ask(world: DoctorSetup) -> None:
    repository = world.repository("tokenless")
    told = await world.asked(repository, "--test", "--json")
    assert (told.code, told.state("test")) == (1, "problem")
    assert f"crcr dispatch --test {repository} --wait" in told.words("test")
    wrong = await world.asked(repository, "--test", "--json", "--token", "guess")
    assert (wrong.code, wrong.state("test")) == (1, "problem")


async def test_what_cannot_be_reached_or_is_no_relay_is_told(world: DoctorSetup) -> None:
    repository = world.repository("unreachable")
    words = ("--repo", repository, "--json")
    nobody = await world.doctor("--relay", f"http://127.0.0.1:{free_port()}", *words)
    assert (nobody.code, nobody.state("reachable")) == (1, "problem")
    async with GitHub(seed=8) as no_relay, serve(no_relay):
        other = await world.doctor("--relay", no_relay.base_url, *words)
    assert "not a relay" in other.words("reachable")


async def test_wrong_words_end_with_two(tmp_path: Path) -> None:
    for run, words, said in (
        (run_process, ("--relay", "ftp://x", "--repo", REPO), "not an address"),
        (run_command, ("--relay", "http://127.0.0.1:9"), "--repo"),
        (run_command, ("--relay", "http://127.0.0.1:9", "--repo", "nonsense"), "owner/repo"),
        (run_command, ("--test",), "--relay"),
        (run_command, ("--repo", REPO), "--relay"),
    ):
        told = await run("doctor", *words, folder=tmp_path)
        assert (told.code, said in " ".join(told.errors.split())) == (2, True), (words, told)


def git(folder: Path, *words: str) -> None:
    names = ("-c", "user.name=a", "-c", "user.email=a@example.org")
    subprocess.run(("git", *names, *words), cwd=folder, check=True, capture_output=True)


def checkout(folder: Path, repository: str) -> Path:
    """A clone of the downstream whose default branch has no workflow yet."""
    home, clone = folder / "home" / f"{repository}.git", folder / "clone"
    home.mkdir(parents=True)
    git(home, "init", "--bare", "--initial-branch", "main", ".")
    git(folder, "clone", str(home), str(clone))
    git(clone, "checkout", "-B", "main")
    git(clone, "commit", "--allow-empty", "-m", "first")
    git(clone, "push", "origin", "main")
    git(clone, "remote", "set-head", "origin", "main")
    return clone


async def test_in_a_checkout_the_files_are_held_against_the_default_branch(
    world: DoctorSetup, tmp_path: Path
) -> None:
    clone = checkout(tmp_path, world.repository("checkout"))
    (clone / PATH).parent.mkdir(parents=True)
    (clone / ".crcr").mkdir()
    (clone / ".crcr/report.py").write_text("print('old')\n")
    (clone / PATH).write_text(pinned(GOOD, world.port))
    told = await world.doctor("--relay", world.url, "--json", folder=clone)
    assert (told.code, told.state("files"), told.state("reporter")) == (0, "warning", "warning")
    assert "not on origin/main" in told.words("files")
    (clone / ".crcr/report.py").write_text(reporter_text())
    git(clone, "add", ".")
    git(clone, "commit", "-m", "Join")
    git(clone, "push", "origin", "main")
    told = await world.doctor("--relay", world.url, "--json", folder=clone)
    assert (told.state("files"), told.state("reporter"), told.state("file_pins")) == ("ok", "ok", "ok")
    other = await world.asked("no/body", "--json", folder=clone)
    assert other.state("files") == "absent"


async def test_files_in_a_checkout_that_do_not_pin_the_relay_are_found_for_every_ci(
    world: DoctorSetup, tmp_path: Path
) -> None:
    clone = checkout(tmp_path, world.repository("unpinned"))
    texts = {
        PATH: UNPINNED,
        ".buildkite/crcr.yml": "steps: [{command: python3 .crcr/report.py}]",
        ".gitlab/crcr.yml": "a: {script: ['python3 .crcr/report.py --relays \"https://other.test crcr\"']}",
    }
    for name, text in texts.items():
        (clone / name).parent.mkdir(parents=True, exist_ok=True)
        (clone / name).write_text(text)
    told = await world.doctor("--relay", world.url, "--json", folder=clone)
    found = [each for each in told.json["findings"] if each["name"] == "file_pins"]
    assert [each["text"].partition(" here ")[0] for each in found] == list(texts)
    assert {each["state"] for each in found} == {"problem"}
    pin = pinned(PINNED, world.port).partition('"')[2].partition('"')[0]
    assert all(f'"{pin}"' in each["hint"] for each in found)
    assert "pins other relays and not this one" in found[2]["text"]


async def test_a_healthy_relay_is_told_so_to_its_operator(tmp_path: Path) -> None:
    """With a relay of its own: what the other tests break leaves undelivered effects behind."""
    async with run_doctor_setup(tmp_path, OPERATED, "org") as own:
        await own.github.ping()
        told = await own.of_operator("--json")
        assert told.code == 0, told.out
        states = {each["name"]: each["state"] for each in told.json["findings"]}
        assert set(states.values()) == {"ok"}, told.out
        assert set(states) == {
            *(
                "settings",
                "role",
                "store",
                "writing",
                "disk",
                "outbox",
                "redis",
                "clickhouse",
                "app_key",
                "app_permissions",
            ),
            *("app_events", "clock", "webhook", "deliveries", "public_url", "allowlist", "in_force"),
            *("installations", "issuer"),
        }
        people = await run_process("doctor", folder=own.folder, environ=own.environ)
        for secret in (ADMIN, own.github.webhook_secret, "PRIVATE KEY"):
            assert secret not in people.out + people.errors + told.out
        assert "No problems" in people.out


async def test_what_is_wrong_with_a_relay_is_told_together(own: DoctorSetup) -> None:
    github = own.github
    await github.uninstall(SECRET)
    github.webhook_url = "http://127.0.0.1:9/elsewhere"
    github.installation(REPO).permissions["contents"] = "read"
    registered = [
        {
            "issuer": "https://ci.example.org",
            "kind": "generic",
            "repository": "no/body",
            "ids": {"project": "7"},
        }
    ]
    told = await own.of_operator("--json", CRCR_OIDC_REGISTRATIONS=json.dumps(registered))
    assert told.code == 1
    assert "elsewhere" in told.words("webhook")
    bad = [each["text"] for each in told.json["findings"] if each["name"] == "installation"]
    assert sorted(bad) == [
        f"{REPO} (downstream, L2): lacks contents: write.",
        f"{SECRET} (downstream, L2): the App is not installed.",
    ]
    assert told.state("installations") == "warning"
    assert f"1 of 3 repositories have the App with the permissions it needs; not: {REPO} and {SECRET}." in (
        told.words("installations")
    )
    assert told.state("registration") == "warning"
    assert any(
        "ci.example.org" in each["text"] and each["state"] == "problem" for each in told.json["findings"]
    )


async def test_form_encoded_webhooks_and_text_that_is_not_utf_8_are_told_with_what_to_do(
    own: DoctorSetup,
) -> None:
    own.github.webhooks.content_type = "form"
    (own.folder / "allowlist.yml").write_bytes(b"L2:\n  - caf\xe9/x\n")
    told = await own.of_operator("--json")
    assert (told.state("webhook"), told.state("allowlist")) == ("problem", "problem")
    assert "wrong_content_type" in told.words("webhook")
    assert "line 2: not UTF-8 text: byte 0xe9 at column 8" in told.words("allowlist")


async def test_with_a_broken_list_those_on_the_list_in_force_are_looked_at(own: DoctorSetup) -> None:
    await own.github.uninstall(SECRET)
    (own.folder / "allowlist.yml").write_text("L2: [\n")
    told = await own.of_operator("--json")
    assert (told.code, told.state("allowlist")) == (1, "problem")
    bad = [each["text"] for each in told.json["findings"] if each["name"] == "installation"]
    assert bad == [f"{SECRET} (downstream, L2): the App is not installed."]
    assert "2 of 3 repositories" in told.words("installations")


async def test_a_relay_with_wrong_settings_or_without_a_store_is_told(tmp_path: Path) -> None:
    token = {"CRCR_TOKEN": "not a setting"}
    told = await run_command("doctor", "--json", folder=tmp_path, environ=token)
    assert (told.code, told.state("settings"), "CRCR_TOKEN" in told.out) == (1, "problem", False)
    environ = relay_environment(tmp_path)
    told = await run_command("doctor", "--json", folder=tmp_path, environ=environ)
    assert (told.state("store"), told.state("app_key"), told.state("allowlist")) == (
        "problem",
        "problem",
        "ok",
    )
    assert not (tmp_path / "crcr.db").exists()
