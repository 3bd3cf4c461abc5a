"""`crcr setup` against the simulated GitHub: one command and one click, repeated, interrupted, and attacked.

The browser is an HTTP client with cookies: it opens the page, and its click posts the page's form.
"""

import asyncio
import json
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from html.parser import HTMLParser
from pathlib import Path

import httpx
import pytest

from crcr.cli.setup.new_app import GitHubAddresses, convert_code
from crcr.errors import NotPossible
from github_sim.github import GitHub, Match
from github_sim.rest.server import serve
from support.cli_command import run_in_process
from support.process import CrcrProcess, crcr, free_port
from support.running_relay import UPSTREAM

pytestmark = pytest.mark.slow


class Form(HTMLParser):
    """The only form of a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.action = ""
        self.fields: dict[str, str] = {}
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = {name: value or "" for name, value in attrs}
        if tag == "form":
            self.action = values["action"]
        elif tag == "input":
            self.fields[values["name"]] = values["value"]


def browser() -> httpx.AsyncClient:
    headers = {"Accept": "text/html"}
    return httpx.AsyncClient(
        transport=httpx.AsyncHTTPTransport(), headers=headers, follow_redirects=True, timeout=60
    )


async def click(client: httpx.AsyncClient, address: str) -> httpx.Response:
    form = Form((await client.get(address)).text)
    return await client.post(form.action, data=form.fields)


@dataclass(frozen=True)
class SetupFolder:
    """An empty folder, and a GitHub where the App does not exist yet."""

    folder: Path
    github: GitHub
    port: int

    @property
    def words(self) -> tuple[str, ...]:
        address = f"http://127.0.0.1:{self.port}"
        known = ("--upstream", UPSTREAM, "--public-url", address, "--port", str(self.port))
        return ("setup", *known, "--github-url", self.github.base_url, "--no-browser", "--timeout", "30s")

    @asynccontextmanager
    async def setup(self, *more: str) -> AsyncIterator[CrcrProcess]:
        async with crcr(*self.words, *more, folder=self.folder, environ={}) as process:
            yield process

    def mode(self, name: str) -> int:
        return (self.folder / name).stat().st_mode & 0o777


@pytest.fixture
async def setup_folder(tmp_path: Path) -> AsyncIterator[SetupFolder]:
    async with GitHub(seed=7) as github, serve(github):
        github.create_repository(UPSTREAM, installed=False)
        yield SetupFolder(tmp_path, github, free_port())
        github.finish()


async def page_address(process: CrcrProcess) -> str:
    return (await process.wait_for_line("http://127.0.0.1:")).strip()


async def test_one_command_and_one_click_end_with_all_doctor_checks_green(setup_folder: SetupFolder) -> None:
    """Includes attacks before the click, and the same command again while the relay runs, which --serve makes possible."""
    async with setup_folder.setup("--serve") as process, browser() as client, browser() as attacker:
        address = await page_address(process)
        form = Form((await client.get(address)).text)
        forged = f"{address.rpartition('/')[0]}/created?code=stolen-code-0123456789&state="
        assert (await client.get(f"{forged}guessed")).status_code == 403
        assert (await attacker.get(address)).status_code == 403
        installed = await client.post(form.action, data=form.fields)
        assert "is installed on" in installed.text
        summary = await process.wait_for_line("checks passed")
        assert re.fullmatch(r"No problems: (\d+) of \1 checks passed\n", summary), process.lines
        await process.wait_for_line("crcr is listening on")
        again = await asyncio.to_thread(
            run_in_process, *setup_folder.words, "--json", folder=setup_folder.folder, environ={}
        )
        assert await process.stop() == 0
    _assert_private(setup_folder, "".join(process.lines) + await process.errors() + again.out + again.errors)
    report = json.loads(again.out)
    assert (again.code, report["ok"], {each["state"] for each in report["findings"]}) == (0, True, {"ok"})
    steps = {each["name"]: each["text"] for each in report["findings"] if each["section"] == "Set-up"}
    assert steps["app"].startswith("Already done")
    assert steps["installation"].startswith("Already done")
    assert "already running" in steps["relay"]
    assert report["webhook_url"] == f"http://127.0.0.1:{setup_folder.port}/github/webhook"
    assert len(setup_folder.github.calls_to("POST", "/app-manifests/*")) == 1
    words = ("setup", "--upstream", "other/one")
    other = await asyncio.to_thread(run_in_process, *words, folder=setup_folder.folder, environ={})
    assert (other.code, f"the settings are for {UPSTREAM}, not for other/one" in other.errors) == (1, True)


def _assert_private(setup_folder: SetupFolder, printed: str) -> None:
    """Only the owner can read the secrets, and none was printed."""
    modes = {name: setup_folder.mode(name) for name in ("crcr.toml", "secrets/app.pem", "secrets/webhook")}
    assert (set(modes.values()), setup_folder.mode("secrets")) == ({0o600}, 0o700)
    assert sorted(path.name for path in (setup_folder.folder / "secrets").iterdir()) == ["app.pem", "webhook"]
    config = (setup_folder.folder / "crcr.toml").read_text()
    [conversion] = setup_folder.github.calls_to("POST", "/app-manifests/*")
    for secret in (setup_folder.github.webhook_secret, "PRIVATE KEY", conversion.path.split("/")[2]):
        assert secret not in printed + config
    assert "warning: the set-up page refused" in printed


async def test_an_interrupted_set_up_resumes_with_the_same_code(setup_folder: SetupFolder) -> None:
    setup_folder.github.faults.lose_request(on=Match(method="POST", path="/app-manifests/*"), times=1)
    async with setup_folder.setup() as process, browser() as client:
        failed = await click(client, await page_address(process))
        code, _, errors = await process.finish()
    assert (code, failed.status_code) == (1, 500)
    assert "hint: run `crcr setup` again within an hour" in errors
    assert setup_folder.mode("secrets/new-app.json") == 0o600
    assert not (setup_folder.folder / "crcr.toml").exists()
    async with setup_folder.setup("--json") as process, browser() as client:
        line = await process.next_error_line()
        while "/installations/new" not in line:
            line = await process.next_error_line()
        await client.get(line.strip())
        code, out, errors = await process.finish()
    assert (code, json.loads(out)["ok"]) == (0, True), out + errors


@pytest.mark.parametrize(
    ("more", "environ", "code", "expected"),
    [
        (("--timeout", "0.1s"), {}, 1, "nobody created the App in time; nothing was changed"),
        (
            ("--public-url", "http://127.0.0.1:1", "--github-url", "https://github.com"),
            {},
            1,
            "GitHub cannot reach",
        ),
        (("--name", "x" * 35), {}, 2, "--name: a name has 1 to 34 characters"),
        (("--public-url", "nowhere"), {}, 2, "--public-url: 'nowhere' is not an address"),
        (("--app-id", "7"), {}, 2, "belong together"),
    ],
)
async def test_an_error_is_reported_and_leaves_no_files(
    setup_folder: SetupFolder, more: tuple[str, ...], environ: dict[str, str], code: int, expected: str
) -> None:
    words = (*setup_folder.words, *more)
    done = await asyncio.to_thread(run_in_process, *words, folder=setup_folder.folder, environ=environ)
    assert (done.code, expected in done.errors) == (code, True), done.errors
    assert done.errors.startswith("error: ")
    assert [path for path in setup_folder.folder.rglob("*") if path.is_file()] == []


async def test_missing_options_and_existing_secrets_stop_it_before_anything_is_created(
    setup_folder: SetupFolder,
) -> None:
    done = await asyncio.to_thread(run_in_process, "setup", folder=setup_folder.folder, environ={})
    assert (done.code, "error: --upstream is missing" in done.errors) == (2, True)
    (setup_folder.folder / "secrets").mkdir()
    (setup_folder.folder / "secrets/app.pem").write_text("mine")
    done = await asyncio.to_thread(
        run_in_process, *setup_folder.words, folder=setup_folder.folder, environ={}
    )
    assert (done.code, "--replace" in done.errors) == (1, True)
    assert (setup_folder.folder / "secrets/app.pem").read_text() == "mine"


@pytest.mark.parametrize(
    ("status", "expected"),
    [
        (404, "it was used already, or is older than an hour"),
        (422, "GitHub refuses the App (422"),
        (403, "GitHub refuses the App (403"),
    ],
)
async def test_a_conversion_that_github_refuses_is_reported_without_the_code(
    setup_folder: SetupFolder, status: int, expected: str
) -> None:
    setup_folder.github.faults.answer(status, on=Match(method="POST", path="/app-manifests/*"))
    addresses = GitHubAddresses.from_web_url(setup_folder.github.base_url)
    with pytest.raises(NotPossible) as refusal:
        await asyncio.to_thread(convert_code, "code-0123456789", addresses, "org")
    assert expected in refusal.value.detail
    assert "code-0123456789" not in f"{refusal.value.detail} {refusal.value.hint}"
    assert "/organizations/org/settings/apps" in (refusal.value.hint or "")


async def test_a_malformed_response_is_refused(setup_folder: SetupFolder) -> None:
    setup_folder.github.faults.malformed(on=Match(method="POST", path="/app-manifests/*"))
    addresses = GitHubAddresses.from_web_url(setup_folder.github.base_url)
    with pytest.raises(NotPossible):
        await asyncio.to_thread(convert_code, "code-0123456789", addresses, None)
