"""`crcr doctor` with a served relay: for a downstream's maintainer, and for the relay's operator.

Two relays are served for the whole module: one for downstreams, of which each test has its own with its own owner, and one for
operators, whose state is restored after each test. The command runs in this process, and for each of its exit codes once as a
separate process.
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
"""Each test that sends the relay a question about a downstream has its own: it is inspected at most once a minute."""
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
    """Run a command in this process, in a thread: the simulated GitHub answers it in the event loop."""
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
        """Create a downstream of that owner, and return its name."""
        name = f"{owner}/reporter"
        builds = [Workflow(path=PATH, jobs=(JobSpec("build"),))]
        self.github.create_repository(name, workflows=builds, files={PATH: pinned(workflow, self.port)})
        return name

    async def doctor(
        self, *words: str, folder: Path | None = None, environ: Mapping[str, str] | None = None
    ) -> DoctorResult:
        return await run_command("doctor", *words, folder=folder or self.folder, environ=environ)

    async def check_downstream(self, repository: str, *words: str, **more: Any) -> DoctorResult:
        return await self.doctor("--relay", self.url, "--repo", repository, *words, **more)

    async def check_relay(self, *words: str, **more: str) -> DoctorResult:
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
    """A served relay. The downstreams of these owners exist before it starts."""
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
async def downstream_setup(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[DoctorSetup]:
    """The relay that downstreams query."""
    listed = "".join(f"  - {owner}/reporter\n" for owner in OWNERS)
    async with run_doctor_setup(tmp_path_factory.mktemp("relay"), f"L2:\n{listed}{HIDDEN}") as relay:
        yield relay


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def operator_setup(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[DoctorSetup]:
    """The relay of an operator, with one public downstream and one that is hidden."""
    async with run_doctor_setup(tmp_path_factory.mktemp("operated"), OPERATED, "org") as relay:
        yield relay


@pytest_asyncio.fixture(loop_scope="module")
async def restored_setup(operator_setup: DoctorSetup) -> AsyncIterator[DoctorSetup]:
    """The operator's relay; its changes are undone after the test."""
    github, folder = operator_setup.github, operator_setup.folder
    hook, granted = github.webhook_url, dict(github.installation(REPO).permissions)
    yield operator_setup
    (folder / "allowlist.yml").write_text(OPERATED)
    github.webhook_url, github.webhooks.content_type = hook, "json"
    github.installation(REPO).permissions.update(granted)
    await github.install(SECRET)


async def test_a_valid_set_up_exits_with_zero_and_one_line_per_check(downstream_setup: DoctorSetup) -> None:
    words = ("doctor", "--relay", downstream_setup.url, "--repo", downstream_setup.repository("good"))
    result = await run_process(*words, folder=downstream_setup.folder)
    assert (result.code, "Traceback" in result.errors) == (0, False), result.out
    for finding in (
        "✓ reachable",
        "✓ clock",
        "✓ allowlist",
        "✓ app",
        "✓ workflow",
        "✓ id token",
        "? dispatch",
    ):
        assert finding in result.out
    assert "checks passed" in result.out.splitlines()[-1]


async def test_an_allowlist_file_is_checked_against_the_apps_permissions_known_to_the_relay(
    downstream_setup: DoctorSetup, tmp_path: Path
) -> None:
    repository = downstream_setup.repository("permissions")
    new = tmp_path / "new.yml"
    new.write_text(f"L4:\n  - {repository}: {{oncalls: [ada], jobs: ['test*']}}\n")

    async def checked(url: str) -> DoctorResult:
        return await run_command("allowlist", "check", str(new), "--relay", url, folder=tmp_path)

    await downstream_setup.github.change_permissions(repository, actions=None)
    assert "is not known to the relay" in (await checked(downstream_setup.url)).out
    await downstream_setup.check_downstream(repository)  # has the relay look at the installation
    result = await checked(downstream_setup.url)
    assert (result.code, "the App cannot read its Actions" in result.out) == (0, True), result.out
    assert "name its `jobs` literally, or grant Actions: read" in result.out
    away = await checked(f"http://127.0.0.1:{free_port()}")
    assert (away.code, "does not answer" in away.errors) == (2, True), away


async def test_a_problem_is_reported_and_following_its_hint_fixes_it(downstream_setup: DoctorSetup) -> None:
    repository = downstream_setup.repository("mended", NO_TOKEN)
    words = ("doctor", "--relay", downstream_setup.url, "--repo", repository, "--json")
    result = await run_process(*words, folder=downstream_setup.folder)
    assert (result.code, result.state("id_token"), result.json["ok"]) == (1, "problem", False)
    assert "id-token: write" in result.words("id_token")
    downstream_setup.github.write_file(repository, PATH, pinned(GOOD, downstream_setup.port))
    downstream_setup.github.repository(repository).disabled_workflows.add(PATH)
    await _a_minute_later(downstream_setup, repository)
    result = await downstream_setup.check_downstream(repository, "--json")
    assert (result.code, result.state("id_token"), result.state("workflow")) == (1, "ok", "problem")
    downstream_setup.github.repository(repository).disabled_workflows.clear()
    await _a_minute_later(downstream_setup, repository)
    assert (await downstream_setup.check_downstream(repository, "--json")).code == 0


async def test_a_cached_result_shows_its_age(downstream_setup: DoctorSetup) -> None:
    repository = downstream_setup.repository("cached")
    first = await downstream_setup.check_downstream(repository, "--json")
    downstream_setup.github.write_file(repository, PATH, pinned(NO_TOKEN, downstream_setup.port))
    again = await downstream_setup.check_downstream(repository, "--json")
    assert (again.state("id_token"), again.json["inspected_at"]) == ("ok", first.json["inspected_at"])
    assert datetime.fromisoformat(again.json["inspected_at"]) <= datetime.now(UTC)
    people = await downstream_setup.check_downstream(repository)
    assert "GitHub's state" in people.out
    assert "s ago; it is asked at most once a minute" in people.out


async def _a_minute_later(downstream_setup: DoctorSetup, repository: str) -> None:
    """The store's clock is real here, so the last inspection is made older instead."""
    with sqlite3.connect(downstream_setup.folder / "crcr.db", timeout=10) as connection:
        moved = connection.execute(
            "UPDATE inspections SET asked_at = asked_at - 61000000, inspected_at = inspected_at - 61000000"
            " WHERE downstream = ?",
            (repository,),
        )
    connection.close()
    assert moved.rowcount == 1


async def test_hidden_and_unlisted_backends_get_the_same_findings(downstream_setup: DoctorSetup) -> None:
    for name in ("no/body", SECRET):
        result = await downstream_setup.check_downstream(name, "--json")
        assert (result.code, result.state("allowlist"), result.state("app")) == (1, "problem", "unknown")
        assert f"{downstream_setup.url}/crcr/onboarding?repository={name}" in result.words("allowlist")
        assert f"{name} is not on the allowlist" in result.words("allowlist")
    admin = await downstream_setup.check_downstream(SECRET, "--json", environ={"CRCR_TOKEN": ADMIN})
    assert (admin.state("allowlist"), admin.state("app")) == ("ok", "ok")
    assert ADMIN not in admin.out + admin.errors


async def test_a_test_dispatch_is_followed_until_its_result(downstream_setup: DoctorSetup) -> None:
    repository = downstream_setup.repository("followed")
    task = asyncio.create_task(
        downstream_setup.check_downstream(repository, "--test", environ={"CRCR_TOKEN": ADMIN})
    )
    run = await _run(downstream_setup, repository)
    await downstream_setup.github.start_job(run, "build")
    await downstream_setup.github.complete_job(run, "build", "success")
    result = await task
    assert result.code == 0, result.out
    for words in (
        "- sent after",
        "- build in progress after",
        "- build success after",
        "The round trip works",
    ):
        assert words in result.out + result.errors


async def _run(downstream_setup: DoctorSetup, repository: str) -> Any:
    async with asyncio.timeout(30):
        while not downstream_setup.github.runs(repository):
            await asyncio.sleep(0.05)
    return downstream_setup.github.runs(repository)[0]


async def test_a_test_dispatch_without_a_result_reports_where_it_stopped(
    downstream_setup: DoctorSetup,
) -> None:
    repository = downstream_setup.repository("silent")
    result = await downstream_setup.check_downstream(
        repository, "--test", "--timeout", "2s", "--json", "--token", ADMIN
    )
    assert (result.code, result.state("test")) == (1, "problem")
    assert "nothing was reported within 2 s" in result.words("test")
    run = await _run(downstream_setup, repository)
    again = downstream_setup.check_downstream(
        repository, "--test", "--timeout", "3s", "--json", "--token", ADMIN
    )
    task = asyncio.create_task(again)
    await downstream_setup.github.start_job(run, "build")
    assert "nothing was reported" in (await task).words("test")


async def test_a_test_dispatch_without_a_token_prints_the_operators_command(
    downstream_setup: DoctorSetup,
) -> None:
    repository = downstream_setup.repository("tokenless")
    result = await downstream_setup.check_downstream(repository, "--test", "--json")
    assert (result.code, result.state("test")) == (1, "problem")
    assert f"crcr dispatch --test {repository} --wait" in result.words("test")
    wrong = await downstream_setup.check_downstream(repository, "--test", "--json", "--token", "guess")
    assert (wrong.code, wrong.state("test")) == (1, "problem")


async def test_an_unreachable_server_and_a_server_that_is_not_a_relay_are_reported(
    downstream_setup: DoctorSetup,
) -> None:
    repository = downstream_setup.repository("unreachable")
    words = ("--repo", repository, "--json")
    nobody = await downstream_setup.doctor("--relay", f"http://127.0.0.1:{free_port()}", *words)
    assert (nobody.code, nobody.state("reachable")) == (1, "problem")
    async with GitHub(seed=8) as no_relay, serve(no_relay):
        other = await downstream_setup.doctor("--relay", no_relay.base_url, *words)
    assert "not a relay" in other.words("reachable")


async def test_invalid_arguments_exit_with_two(tmp_path: Path) -> None:
    for run, words, expected in (
        (run_process, ("--relay", "ftp://x", "--repo", REPO), "not an address"),
        (run_command, ("--relay", "http://127.0.0.1:9"), "--repo"),
        (run_command, ("--relay", "http://127.0.0.1:9", "--repo", "nonsense"), "owner/repo"),
        (run_command, ("--test",), "--relay"),
        (run_command, ("--repo", REPO), "--relay"),
    ):
        result = await run("doctor", *words, folder=tmp_path)
        assert (result.code, expected in " ".join(result.errors.split())) == (2, True), (words, result)


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


async def test_in_a_checkout_the_files_are_compared_with_the_default_branch(
    downstream_setup: DoctorSetup, tmp_path: Path
) -> None:
    clone = checkout(tmp_path, downstream_setup.repository("checkout"))
    (clone / PATH).parent.mkdir(parents=True)
    (clone / ".crcr").mkdir()
    (clone / ".crcr/report.py").write_text("print('old')\n")
    (clone / PATH).write_text(pinned(GOOD, downstream_setup.port))
    result = await downstream_setup.doctor("--relay", downstream_setup.url, "--json", folder=clone)
    assert (result.code, result.state("files"), result.state("reporter")) == (0, "warning", "warning")
    assert "not on origin/main" in result.words("files")
    (clone / ".crcr/report.py").write_text(reporter_text())
    git(clone, "add", ".")
    git(clone, "commit", "-m", "Join")
    git(clone, "push", "origin", "main")
    result = await downstream_setup.doctor("--relay", downstream_setup.url, "--json", folder=clone)
    assert (result.state("files"), result.state("reporter"), result.state("file_pins")) == ("ok", "ok", "ok")
    other = await downstream_setup.check_downstream("no/body", "--json", folder=clone)
    assert other.state("files") == "absent"


async def test_files_in_a_checkout_that_do_not_pin_the_relay_are_found_for_every_ci(
    downstream_setup: DoctorSetup, tmp_path: Path
) -> None:
    clone = checkout(tmp_path, downstream_setup.repository("unpinned"))
    texts = {
        PATH: UNPINNED,
        ".buildkite/crcr.yml": "steps: [{command: python3 .crcr/report.py}]",
        ".gitlab/crcr.yml": "a: {script: ['python3 .crcr/report.py --relays \"https://other.test crcr\"']}",
    }
    for name, text in texts.items():
        (clone / name).parent.mkdir(parents=True, exist_ok=True)
        (clone / name).write_text(text)
    result = await downstream_setup.doctor("--relay", downstream_setup.url, "--json", folder=clone)
    findings = [each for each in result.json["findings"] if each["name"] == "file_pins"]
    assert [each["text"].partition(" here ")[0] for each in findings] == list(texts)
    assert {each["state"] for each in findings} == {"problem"}
    pin = pinned(PINNED, downstream_setup.port).partition('"')[2].partition('"')[0]
    assert all(f'"{pin}"' in each["hint"] for each in findings)
    assert "pins other relays and not this one" in findings[2]["text"]


async def test_a_healthy_relay_has_only_ok_findings_for_its_operator(tmp_path: Path) -> None:
    """With a separate relay: the changes of other tests leave undelivered effects behind."""
    async with run_doctor_setup(tmp_path, OPERATED, "org") as own:
        await own.github.ping()
        result = await own.check_relay("--json")
        assert result.code == 0, result.out
        states = {each["name"]: each["state"] for each in result.json["findings"]}
        assert set(states.values()) == {"ok"}, result.out
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
            assert secret not in people.out + people.errors + result.out
        assert "No problems" in people.out


async def test_all_problems_of_a_relay_are_reported_together(restored_setup: DoctorSetup) -> None:
    github = restored_setup.github
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
    result = await restored_setup.check_relay("--json", CRCR_OIDC_REGISTRATIONS=json.dumps(registered))
    assert result.code == 1
    assert "elsewhere" in result.words("webhook")
    bad = [each["text"] for each in result.json["findings"] if each["name"] == "installation"]
    assert sorted(bad) == [
        f"{REPO} (downstream, L2): lacks contents: write.",
        f"{SECRET} (downstream, L2): the App is not installed.",
    ]
    assert result.state("installations") == "warning"
    assert f"1 of 3 repositories have the App with the permissions it needs; not: {REPO} and {SECRET}." in (
        result.words("installations")
    )
    assert result.state("registration") == "warning"
    assert any(
        "ci.example.org" in each["text"] and each["state"] == "problem" for each in result.json["findings"]
    )


async def test_form_encoded_webhooks_and_text_that_is_not_utf_8_are_reported_with_a_hint(
    restored_setup: DoctorSetup,
) -> None:
    restored_setup.github.webhooks.content_type = "form"
    (restored_setup.folder / "allowlist.yml").write_bytes(b"L2:\n  - caf\xe9/x\n")
    result = await restored_setup.check_relay("--json")
    assert (result.state("webhook"), result.state("allowlist")) == ("problem", "problem")
    assert "wrong_content_type" in result.words("webhook")
    assert "line 2: not UTF-8 text: byte 0xe9 at column 8" in result.words("allowlist")


async def test_with_an_invalid_allowlist_the_backends_in_force_are_checked(
    restored_setup: DoctorSetup,
) -> None:
    await restored_setup.github.uninstall(SECRET)
    (restored_setup.folder / "allowlist.yml").write_text("L2: [\n")
    result = await restored_setup.check_relay("--json")
    assert (result.code, result.state("allowlist")) == (1, "problem")
    bad = [each["text"] for each in result.json["findings"] if each["name"] == "installation"]
    assert bad == [f"{SECRET} (downstream, L2): the App is not installed."]
    assert "2 of 3 repositories" in result.words("installations")


async def test_invalid_settings_and_a_missing_store_are_reported(tmp_path: Path) -> None:
    token = {"CRCR_TOKEN": "not a setting"}
    result = await run_command("doctor", "--json", folder=tmp_path, environ=token)
    assert (result.code, result.state("settings"), "CRCR_TOKEN" in result.out) == (1, "problem", False)
    environ = relay_environment(tmp_path)
    result = await run_command("doctor", "--json", folder=tmp_path, environ=environ)
    assert (result.state("store"), result.state("app_key"), result.state("allowlist")) == (
        "problem",
        "problem",
        "ok",
    )
    assert not (tmp_path / "crcr.db").exists()
