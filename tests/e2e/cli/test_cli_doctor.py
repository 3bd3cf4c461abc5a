"""`crcr doctor` as a real process: a downstream asks a served relay, and an operator looks at the own one."""

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

from crcr.join.shipped.texts import reporter_text
from github_sim.github import GitHub, JobSpec, Workflow
from github_sim.rest.server import serve
from support.data.operator_database import relay_environment
from support.downstream.setup import GOOD, NO_TOKEN, PATH, PINNED, UNPINNED
from support.process import crcr, free_port
from support.running_relay import AUDIENCE, RELAY_URL, UPSTREAM

pytestmark = pytest.mark.slow

REPO = "org/reporter"
ADMIN = "admin-" + "d" * 40
ALLOWLIST = f"L2:\n  - {REPO}\n  - org/secret: {{visibility: hidden}}\n"


@dataclass(frozen=True)
class CommandResult:
    code: int
    out: str
    errors: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)

    def state(self, name: str) -> str:
        return next((each["state"] for each in self.json["findings"] if each["name"] == name), "absent")

    def words(self, name: str) -> str:
        return next(
            f"{each['text']} {each['hint']}" for each in self.json["findings"] if each["name"] == name
        )


@dataclass(frozen=True)
class DoctorSetup:
    folder: Path
    github: GitHub
    url: str
    environ: dict[str, str]

    async def doctor(
        self, *words: str, folder: Path | None = None, environ: Mapping[str, str] | None = None
    ) -> CommandResult:
        async with crcr("doctor", *words, folder=folder or self.folder, environ=environ or {}) as process:
            async with asyncio.timeout(60):
                out, errors = await process.process.communicate()
            return CommandResult(process.process.returncode or 0, out.decode(), errors.decode())

    async def asked(self, *words: str, **more: Any) -> CommandResult:
        return await self.doctor("--relay", self.url, "--repo", REPO, *words, **more)

    async def of_operator(self, *words: str, **more: str) -> CommandResult:
        return await self.doctor(*words, environ={**self.environ, **more})


def settings(folder: Path, github: GitHub, port: int) -> dict[str, str]:
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
    (folder / "allowlist.yml").write_text(ALLOWLIST)
    return environ


def pinned(workflow: str, port: int | str) -> str:
    """The workflow with the pin of the relay at that port."""
    own = f"http://127.0.0.1:{port}/github/callback {relay_environment(Path())['CRCR_OIDC_AUDIENCE']}"
    return workflow.replace(f"{RELAY_URL}/github/callback {AUDIENCE}", own)


@asynccontextmanager
async def run_doctor_setup(folder: Path, workflow: str = GOOD) -> AsyncIterator[DoctorSetup]:
    port = free_port()
    async with GitHub(seed=7) as github, serve(github):
        github.create_repository(UPSTREAM)
        builds = [Workflow(path=PATH, jobs=(JobSpec("build"),))]
        github.create_repository(REPO, workflows=builds, files={PATH: pinned(workflow, port)})
        github.create_repository("org/secret")
        environ = settings(folder, github, port)
        async with crcr("serve", folder=folder, environ=environ) as relay:
            await relay.wait_for_line("crcr is listening on")
            yield DoctorSetup(folder, github, f"http://127.0.0.1:{port}", environ)
            assert await relay.stop() == 0
        github.finish()


async def test_a_good_set_up_ends_with_zero_and_is_told_line_by_line(tmp_path: Path) -> None:
    async with run_doctor_setup(tmp_path) as world:
        told = await world.asked()
        assert (told.code, "Traceback" in told.errors) == (0, False), told.out
        for words in (
            "✓ reachable",
            "✓ clock",
            "✓ allowlist",
            "✓ app",
            "✓ workflow",
            "✓ id token",
            "? dispatch",
        ):
            assert words in told.out
        assert "checks passed" in told.out.splitlines()[-1]


async def test_an_allowlist_file_is_checked_with_what_the_relay_knows_of_the_apps_rights(
    tmp_path: Path,
) -> None:
    new = tmp_path / "new.yml"
    new.write_text(f"L4:\n  - {REPO}: {{oncalls: [ada], jobs: ['test*']}}\n")

    async def checked(url: str) -> CommandResult:
        words = ("allowlist", "check", str(new), "--relay", url)
        async with crcr(*words, folder=tmp_path, environ={}) as process:
            async with asyncio.timeout(60):
                out, errors = await process.process.communicate()
            return CommandResult(process.process.returncode or 0, out.decode(), errors.decode())

    async with run_doctor_setup(tmp_path) as world:
        await world.github.change_permissions(REPO, actions=None)
        assert "is not known to the relay" in (await checked(world.url)).out
        await world.asked()  # has the relay look at the installation
        told = await checked(world.url)
        assert (told.code, "the App cannot read its Actions" in told.out) == (0, True), told.out
        assert "name its `jobs` literally, or grant Actions: read" in told.out
    away = await checked(f"http://127.0.0.1:{free_port()}")
    assert (away.code, "does not answer" in away.errors) == (2, True), away


async def test_what_is_wrong_is_told_and_doing_what_it_says_mends_it(tmp_path: Path) -> None:
    async with run_doctor_setup(tmp_path, NO_TOKEN) as world:
        told = await world.asked("--json")
        assert (told.code, told.state("id_token"), told.json["ok"]) == (1, "problem", False)
        assert "id-token: write" in told.words("id_token")
        world.github.write_file(REPO, PATH, pinned(GOOD, world.url.rpartition(":")[2]))
        world.github.repository(REPO).disabled_workflows.add(PATH)
        await _a_minute_later(world)
        told = await world.asked("--json")
        assert (told.code, told.state("id_token"), told.state("workflow")) == (1, "ok", "problem")
        world.github.repository(REPO).disabled_workflows.clear()
        await _a_minute_later(world)
        assert (await world.asked("--json")).code == 0


async def test_an_answer_that_is_not_new_says_how_old_it_is(tmp_path: Path) -> None:
    async with run_doctor_setup(tmp_path) as world:
        first = await world.asked("--json")
        world.github.write_file(REPO, PATH, pinned(NO_TOKEN, world.url.rpartition(":")[2]))
        again = await world.asked("--json")
        assert (again.state("id_token"), again.json["inspected_at"]) == ("ok", first.json["inspected_at"])
        assert datetime.fromisoformat(again.json["inspected_at"]) <= datetime.now(UTC)
        people = await world.asked()
        assert "GitHub's state" in people.out
        assert "s ago; it is asked at most once a minute" in people.out


async def _a_minute_later(world: DoctorSetup) -> None:
    """The store's clock is real here, so the last question is made older instead."""
    with sqlite3.connect(world.folder / "crcr.db", timeout=10) as connection:
        connection.execute(
            "UPDATE inspections SET asked_at = asked_at - 61000000, inspected_at = inspected_at - 61000000"
        )
    connection.close()


async def test_the_unlisted_and_the_hidden_are_told_alike(tmp_path: Path) -> None:
    async with run_doctor_setup(tmp_path) as world:
        for name in ("no/body", "org/secret"):
            told = await world.doctor("--relay", world.url, "--repo", name, "--json")
            assert (told.code, told.state("allowlist"), told.state("app")) == (1, "problem", "unknown")
            assert f"{world.url}/crcr/onboarding?repository={name}" in told.words("allowlist")
            assert f"{name} is not on the allowlist" in told.words("allowlist")
        admin = await world.doctor(
            "--relay", world.url, "--repo", "org/secret", "--json", environ={"CRCR_TOKEN": ADMIN}
        )
        assert (admin.state("allowlist"), admin.state("app")) == ("ok", "ok")
        assert ADMIN not in admin.out + admin.errors


async def test_a_test_is_followed_until_its_result_is_here(tmp_path: Path) -> None:
    async with run_doctor_setup(tmp_path) as world:
        task = asyncio.create_task(world.asked("--test", environ={"CRCR_TOKEN": ADMIN}))
        run = await _run(world)
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


async def _run(world: DoctorSetup) -> Any:
    async with asyncio.timeout(30):
        while not world.github.runs(REPO):
            await asyncio.sleep(0.05)
    return world.github.runs(REPO)[0]


async def test_a_test_that_nobody_answers_tells_where_it_stopped(tmp_path: Path) -> None:
    async with run_doctor_setup(tmp_path) as world:
        told = await world.asked("--test", "--timeout", "2s", "--json", "--token", ADMIN)
        assert (told.code, told.state("test")) == (1, "problem")
        assert "nothing was reported within 2 s" in told.words("test")
        run = await _run(world)
        task = asyncio.create_task(world.asked("--test", "--timeout", "3s", "--json", "--token", ADMIN))
        await world.github.start_job(run, "build")
        assert "nothing was reported" in (await task).words("test")


async def test_a_test_without_a_token_says_who_can_ask(tmp_path: Path) -> None:
    async with run_doctor_setup(tmp_path) as world:
        told = await world.asked("--test", "--json")
        assert (told.code, told.state("test")) == (1, "problem")
        assert f"crcr dispatch --test {REPO} --wait" in told.words("test")
        wrong = await world.asked("--test", "--json", "--token", "guess")
        assert (wrong.code, wrong.state("test")) == (1, "problem")


async def test_what_cannot_be_reached_or_is_no_relay_is_told(tmp_path: Path) -> None:
    async with run_doctor_setup(tmp_path) as world:
        nobody = await world.doctor("--relay", f"http://127.0.0.1:{free_port()}", "--repo", REPO, "--json")
        assert (nobody.code, nobody.state("reachable")) == (1, "problem")
        other = await world.doctor("--relay", world.github.base_url, "--repo", REPO, "--json")
        assert "not a relay" in other.words("reachable")
        world.github.unexpected.clear()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--relay", "ftp://x", "--repo", REPO), "not an address"),
        (("--relay", "http://127.0.0.1:9"), "--repo"),
        (("--relay", "http://127.0.0.1:9", "--repo", "nonsense"), "owner/repo"),
        (("--test",), "--relay"),
        (("--repo", REPO), "--relay"),
    ],
)
async def test_wrong_words_end_with_two(tmp_path: Path, words: tuple[str, ...], said: str) -> None:
    async with crcr("doctor", *words, folder=tmp_path, environ={}) as process:
        errors = await process.errors()
        assert (await process.wait(), said in " ".join(errors.split())) == (2, True), errors


def git(folder: Path, *words: str) -> None:
    names = ("-c", "user.name=a", "-c", "user.email=a@example.org")
    subprocess.run(("git", *names, *words), cwd=folder, check=True, capture_output=True)


def checkout(folder: Path) -> Path:
    """A clone of the downstream whose default branch has no workflow yet."""
    home, clone = folder / "home" / f"{REPO}.git", folder / "clone"
    home.mkdir(parents=True)
    git(home, "init", "--bare", "--initial-branch", "main", ".")
    git(folder, "clone", str(home), str(clone))
    git(clone, "checkout", "-B", "main")
    git(clone, "commit", "--allow-empty", "-m", "first")
    git(clone, "push", "origin", "main")
    git(clone, "remote", "set-head", "origin", "main")
    return clone


async def test_in_a_checkout_the_files_are_held_against_the_default_branch(tmp_path: Path) -> None:
    (tmp_path / "relay").mkdir()
    clone = checkout(tmp_path)
    (clone / PATH).parent.mkdir(parents=True)
    (clone / ".crcr").mkdir()
    (clone / ".crcr/report.py").write_text("print('old')\n")
    async with run_doctor_setup(tmp_path / "relay") as world:
        (clone / PATH).write_text(pinned(GOOD, world.url.rpartition(":")[2]))
        told = await world.doctor("--relay", world.url, "--json", folder=clone)
        assert (told.code, told.state("files"), told.state("reporter")) == (0, "warning", "warning")
        assert "not on origin/main" in told.words("files")
        (clone / ".crcr/report.py").write_text(reporter_text())
        git(clone, "add", ".")
        git(clone, "commit", "-m", "Join")
        git(clone, "push", "origin", "main")
        told = await world.doctor("--relay", world.url, "--json", folder=clone)
        assert (told.state("files"), told.state("reporter"), told.state("file_pins")) == ("ok", "ok", "ok")
        other = await world.doctor("--relay", world.url, "--repo", "no/body", "--json", folder=clone)
        assert other.state("files") == "absent"


async def test_files_in_a_checkout_that_do_not_pin_the_relay_are_found_for_every_ci(tmp_path: Path) -> None:
    (tmp_path / "relay").mkdir()
    clone = checkout(tmp_path)
    async with run_doctor_setup(tmp_path / "relay") as world:
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
        pin = pinned(PINNED, world.url.rpartition(":")[2]).partition('"')[2].partition('"')[0]
        assert all(f'"{pin}"' in each["hint"] for each in found)
        assert "pins other relays and not this one" in found[2]["text"]


async def test_a_healthy_relay_is_told_so_to_its_operator(tmp_path: Path) -> None:
    async with run_doctor_setup(tmp_path) as world:
        await world.github.ping()
        told = await world.of_operator("--json")
        assert told.code == 0, told.out
        states = {each["name"]: each["state"] for each in told.json["findings"]}
        assert set(states.values()) == {"ok"}, told.out
        assert set(states) == {
            *(
                "settings",
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
        people = await world.of_operator()
        for secret in (ADMIN, world.github.webhook_secret, "PRIVATE KEY"):
            assert secret not in people.out + people.errors + told.out
        assert "No problems" in people.out


async def test_what_is_wrong_with_a_relay_is_told_together(tmp_path: Path) -> None:
    async with run_doctor_setup(tmp_path) as world:
        github = world.github
        await github.uninstall("org/secret")
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
        told = await world.of_operator("--json", CRCR_OIDC_REGISTRATIONS=json.dumps(registered))
        assert told.code == 1
        assert "elsewhere" in told.words("webhook")
        bad = [each["text"] for each in told.json["findings"] if each["name"] == "installation"]
        assert sorted(bad) == [
            f"{REPO} (downstream, L2): lacks contents: write.",
            "org/secret (downstream, L2): the App is not installed.",
        ]
        assert told.state("installations") == "warning"
        assert (
            f"1 of 3 repositories have the App with the permissions it needs; not: {REPO} and org/secret."
            in (told.words("installations"))
        )
        assert told.state("registration") == "warning"
        assert any(
            "ci.example.org" in each["text"] and each["state"] == "problem" for each in told.json["findings"]
        )


async def test_form_encoded_webhooks_and_text_that_is_not_utf_8_are_told_with_what_to_do(
    tmp_path: Path,
) -> None:
    async with run_doctor_setup(tmp_path) as world:
        world.github.webhooks.content_type = "form"
        (tmp_path / "allowlist.yml").write_bytes(b"L2:\n  - caf\xe9/x\n")
        told = await world.of_operator("--json")
        assert (told.state("webhook"), told.state("allowlist")) == ("problem", "problem")
        assert "wrong_content_type" in told.words("webhook")
        assert "line 2: not UTF-8 text: byte 0xe9 at column 8" in told.words("allowlist")


async def test_with_a_broken_list_those_on_the_list_in_force_are_looked_at(tmp_path: Path) -> None:
    async with run_doctor_setup(tmp_path) as world:
        await world.github.uninstall("org/secret")
        (tmp_path / "allowlist.yml").write_text("L2: [\n")
        told = await world.of_operator("--json")
        assert (told.code, told.state("allowlist")) == (1, "problem")
        bad = [each["text"] for each in told.json["findings"] if each["name"] == "installation"]
        assert bad == ["org/secret (downstream, L2): the App is not installed."]
        assert "2 of 3 repositories" in told.words("installations")


async def test_a_relay_with_wrong_settings_or_without_a_store_is_told(tmp_path: Path) -> None:
    async with crcr("doctor", "--json", folder=tmp_path, environ={"CRCR_TOKEN": "not a setting"}) as process:
        out, _ = await process.process.communicate()
        told = CommandResult(process.process.returncode or 0, out.decode(), "")
        assert (told.code, told.state("settings"), "CRCR_TOKEN" in told.out) == (1, "problem", False)
    async with crcr("doctor", "--json", folder=tmp_path, environ=relay_environment(tmp_path)) as process:
        out, _ = await process.process.communicate()
        told = CommandResult(process.process.returncode or 0, out.decode(), "")
        assert (told.state("store"), told.state("app_key"), told.state("allowlist")) == (
            "problem",
            "problem",
            "ok",
        )
    assert not (tmp_path / "crcr.db").exists()
