"""The onboarding page: the files it makes, what it says to each wrong field, the check, and who sees what of it."""

import re
import shlex
from collections.abc import AsyncIterator
from dataclasses import replace
from hashlib import sha256
from html import unescape
from typing import Any

import httpx
import pytest
import typer.main
import yaml
from starlette.requests import Request
from typer.core import TyperGroup

from crcr.cli.main import app as cli
from crcr.decide.model import RepoName
from crcr.errors import NotFound
from crcr.join.files import generate
from crcr.join.manual_steps import manual_steps
from crcr.join.request import Ci, JoinRequest
from crcr.join.shipped.texts import reporter_text
from crcr.receive.allowlist_yaml import read_allowlist
from crcr.show.pages.frame import Frame
from crcr.show.pages.onboarding import OnboardingSettings
from crcr.show.pages.onboarding_form import read_form_values
from crcr.show.pages.sandbox import try_command
from support.data.store_rows import OTHER, UPSTREAM, StoreRows
from support.page_app import page_app
from support.page_reader import HOSTILE, ParsedPage, assert_inert

ONBOARDING = "/crcr/onboarding"
RELAY = "https://relay.example.org"
PLAIN = JoinRequest(
    ci=Ci.GITHUB, upstream=UPSTREAM, repository=RepoName("a/b"), relay_url=RELAY, audience="relay-aud"
)
FIELDS = ("repository", "device", "oncalls", "command", "job_name", "junit", "runs_on", "branch")
COMPLETE = {"repository": "new/backend"}
ELSEWHERE = {
    "buildkite": {"organization": "acme", "pipeline": "torch"},
    "gitlab": {"project_id": "42"},
    "circleci": {"project": "gh/new/backend"},
}


@pytest.fixture
async def store(store: StoreRows) -> StoreRows:
    store.allowlist()
    return store


class FakeInspections:
    """Who has GitHub asked, as the API's `POST` does it."""

    def __init__(self) -> None:
        self.of: list[tuple[RepoName, RepoName]] = []
        self.taken = True

    async def ask(self, _: Request, upstream: RepoName, repo: RepoName) -> bool:
        if repo.owner == "no":
            raise NotFound(f"{repo} is not a backend of this upstream")
        self.of.append((upstream, repo))
        return self.taken


@pytest.fixture
def inspections() -> FakeInspections:
    return FakeInspections()


def browse(
    store: StoreRows, welcome: OnboardingSettings | None = None, upstreams: tuple[RepoName, ...] = (UPSTREAM,)
) -> httpx.AsyncClient:
    frame = Frame(store.views, upstreams=upstreams, clock=store.clock, public_url=RELAY)
    app = page_app(frame, None, welcome or OnboardingSettings(audience="relay-aud"))
    return httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://relay")


@pytest.fixture
async def browser(store: StoreRows, inspections: FakeInspections) -> AsyncIterator[httpx.AsyncClient]:
    async with browse(
        store, OnboardingSettings(audience="relay-aud", request_inspection=inspections.ask)
    ) as client:
        yield client


def code(text: str, name: str) -> str:
    """What the page's copy button would copy."""
    found = re.search(rf'<pre id="{name}"[^>]*>(.*?)</pre>', text, re.DOTALL)
    assert found, f"there is no {name}"
    return unescape(found[1])


async def test_the_page_shows_what_the_generator_makes(browser: httpx.AsyncClient) -> None:
    text = (await browser.get(ONBOARDING, params={**COMPLETE, "job_name": "npu", "nightly": "1"})).text
    wanted = JoinRequest(
        ci=Ci.GITHUB,
        upstream=UPSTREAM,
        repository=RepoName("new/backend"),
        relay_url=RELAY,
        audience="relay-aud",
        job_name="npu",
        nightly=True,
    )
    workflow, nightly, reporter = generate(wanted)
    assert code(text, "file-1") == workflow.text
    assert code(text, "file-2") == nightly.text
    assert reporter.path in text
    assert "npu" in str(yaml.safe_load(code(text, "file-1"))["jobs"])


async def test_the_entry_is_one_that_the_allowlist_takes(browser: httpx.AsyncClient) -> None:
    for more in ({"level": "L1"}, {"level": "L3", "device": "npu"}, {"level": "L4", "oncalls": "ada, x/y"}):
        text = (await browser.get(ONBOARDING, params={**COMPLETE, **more})).text
        checked = read_allowlist(code(text, "allowlist-entry"))
        assert "error" not in {each.severity for each in checked.problems}
        assert checked.allowlist is not None
        entry = checked.allowlist.find(RepoName("new/backend"))
        assert entry is not None
        assert entry.level.name == more["level"]


async def test_without_a_wish_the_page_is_complete(browser: httpx.AsyncClient) -> None:
    text = (await browser.get(ONBOARDING)).text
    assert "your-org/your-repo" in code(text, "allowlist-entry")
    assert "repository_dispatch" in code(text, "file-1")
    assert "Enter your repository" in text
    assert 'aria-invalid="true"' not in text


@pytest.mark.parametrize("ci", ELSEWHERE)
async def test_another_ci_gets_a_bridge_and_a_registration(browser: httpx.AsyncClient, ci: str) -> None:
    text = (await browser.get(ONBOARDING, params={**COMPLETE, "ci": ci, **ELSEWHERE[ci]})).text
    assert ".github/workflows/crcr-bridge.yml" in text
    assert 'repository = "new/backend"' in code(text, "registration")
    (chosen,) = re.findall(r'name="ci" value="(\w+)" checked', text)
    assert chosen == ci


@pytest.mark.parametrize("ci", ELSEWHERE)
async def test_what_another_ci_needs_has_an_example_until_it_is_told(
    browser: httpx.AsyncClient, ci: str
) -> None:
    text = (await browser.get(ONBOARDING, params={"ci": ci})).text
    assert "repository_dispatch" in code(text, "file-1")
    assert "is a placeholder; fill in the form" in text


@pytest.mark.parametrize(
    ("field", "value", "told"),
    [
        ("repository", "not a name", "write owner/name"),
        ("repository", "Torch/Torch", "are the same"),
        ("device", "npu", "a device is for L3 only"),
        ("oncalls", "ada, <b>", "is not an on-call"),
        ("command", "make ${{ github.token }}", "a CI would replace"),
        ("job_name", "a\nb", "cannot be used"),
        ("junit", "../*.xml", "cannot be used"),
        ("runs_on", "$(id)", "cannot be used"),
        ("branch", "-x", "cannot be used"),
        ("ci", "jenkins", "choose one of these"),
        ("level", "L9", "choose one of these"),
    ],
)
async def test_a_wrong_value_is_told_next_to_its_field_and_nothing_is_lost(
    browser: httpx.AsyncClient, field: str, value: str, told: str
) -> None:
    answer = await browser.get(ONBOARDING, params={**COMPLETE, "job_name": "kept", field: value})
    assert answer.status_code == 200
    assert told in unescape(answer.text)
    assert answer.text.count('class="unclear') == 1
    assert 'id="file-1"' not in answer.text
    if field not in {"ci", "level"}:
        (shown,) = re.findall(rf'name="{field}" value="([^"]*)"[^>]*aria-invalid="true"', answer.text)
        assert unescape(shown) == value
    if field != "job_name":
        assert 'name="job_name" value="kept"' in answer.text


@pytest.mark.parametrize("level", ["L3", "L4"])
async def test_what_a_level_needs_is_asked_for(browser: httpx.AsyncClient, level: str) -> None:
    text = (await browser.get(ONBOARDING, params={**COMPLETE, "level": level})).text
    field = {"L3": "device", "L4": "oncalls"}[level]
    assert f"{level} needs" in text
    assert f'aria-describedby="why-{field}"' in text


@pytest.mark.parametrize("hostile", HOSTILE, ids=range(len(HOSTILE)))
async def test_fault_29_hostile_values_are_only_text_and_reach_no_file(
    browser: httpx.AsyncClient, hostile: str
) -> None:
    for name in (*FIELDS, "ci", "level", "nightly", "organization", "done"):
        more = {"ci": "buildkite"} if name == "organization" else {}
        answer = await browser.get(ONBOARDING, params={**more, name: hostile[:20_000]})
        assert answer.status_code == 200
        assert_inert(ParsedPage(answer.text), answer.text)
        assert len(answer.content) < 100_000


@pytest.mark.parametrize("name", [each for each in FIELDS if each != "command"])
@pytest.mark.parametrize("value", ['x" \n run: evil', "${{ evil }}", "evil\n  - run: id", "'evil'", "`evil`"])
async def test_a_value_that_could_mean_something_in_a_file_is_in_none(
    browser: httpx.AsyncClient, name: str, value: str
) -> None:
    params = {"level": "L3" if name == "device" else "L2", name: value}
    answer = await browser.get(f"{ONBOARDING}/files/1", params=params)
    assert answer.status_code == 400
    assert "evil" not in answer.text
    page = (await browser.get(ONBOARDING, params=params)).text
    assert "file-1" not in page


async def test_each_file_can_be_downloaded_as_it_is_shown(browser: httpx.AsyncClient) -> None:
    params = {**COMPLETE, "ci": "gitlab", "project_id": "42", "nightly": "1"}
    text = (await browser.get(ONBOARDING, params=params)).text
    links = [href for href in ParsedPage(text).attributes("href") if href.startswith(f"{ONBOARDING}/files/")]
    assert len(links) == 3
    for link in links:
        answer = await browser.get(link)
        number = link.partition("?")[0].rpartition("/")[2]
        assert answer.text == code(text, f"file-{number}")
        assert answer.headers["content-type"] == "text/plain; charset=utf-8"
        assert answer.headers["content-disposition"].startswith("attachment;")
        assert "sandbox" in answer.headers["content-security-policy"]
    assert (await browser.get(f"{ONBOARDING}/files/99", params=params)).status_code == 404


async def test_values_that_came_with_a_link_are_pointed_out(browser: httpx.AsyncClient) -> None:
    link = {"ci": "gitlab", "project_id": "1", "url": "https://gitlab.evil.example", "command": "<b>`x`"}
    text = (await browser.get(ONBOARDING, params={**COMPLETE, **link})).text
    (note,) = re.findall(r'id="unusual">(.*?)</section>', text, re.DOTALL)
    assert "sends GITLAB_TRIGGER_TOKEN to gitlab.evil.example" in note
    assert "runs the command: <b>`x`" in unescape(note)
    assert "<b>" not in note
    file = (await browser.get(f"{ONBOARDING}/files/1", params={**COMPLETE, **link})).text
    assert file.startswith("# This file sends GITLAB_TRIGGER_TOKEN to gitlab.evil.example\n")


@pytest.mark.parametrize("ci", ["github", *ELSEWHERE])
async def test_defaults_are_not_pointed_out(browser: httpx.AsyncClient, ci: str) -> None:
    params = {**COMPLETE, "ci": ci, **ELSEWHERE.get(ci, {}), "nightly": "1"}
    assert 'id="unusual"' not in (await browser.get(ONBOARDING, params=params)).text


async def test_the_reporter_is_served_with_the_digest_that_is_shown(browser: httpx.AsyncClient) -> None:
    served = await browser.get(f"{ONBOARDING}/report.py")
    assert served.text == reporter_text()
    assert served.headers["content-type"].startswith("text/plain")
    digest = sha256(served.content).hexdigest()
    page = (await browser.get(ONBOARDING)).text
    assert f'<span class="sha">{digest}</span>' in page
    assert digest in code(page, "file-2")
    assert f"{RELAY}{ONBOARDING}/report.py" in code(page, "file-2")


async def test_where_readers_sign_in_no_bare_download_is_shown(store: StoreRows) -> None:
    async with browse(store, OnboardingSettings(is_public=False)) as browser:
        page = (await browser.get(ONBOARDING)).text
    assert "curl" not in page
    assert f'href="{ONBOARDING}/report.py"' in page


async def test_the_check_shows_what_was_found(browser: httpx.AsyncClient) -> None:
    text = (await browser.get(ONBOARDING, params={"repository": "good/backend"})).text
    assert 'id="step-allowlist" data-state="ok"' in text
    assert re.search(r'data-key="allowlist">.*?chip ok', text)
    unlisted = (await browser.get(ONBOARDING, params={"repository": "no/body"})).text
    assert 'id="step-allowlist" data-state="problem"' in unlisted
    assert "Check now" not in unlisted


async def test_a_hidden_backend_looks_like_one_that_is_not_listed(
    store: StoreRows, inspections: FakeInspections
) -> None:
    store.allowlist("L2:\n  - secret/one: {visibility: hidden}\n", version=2)
    async with browse(store, OnboardingSettings(request_inspection=inspections.ask)) as browser:
        hidden = (await browser.get(ONBOARDING, params={"repository": "secret/one"})).text
        nobody = (await browser.get(ONBOARDING, params={"repository": "secret/two"})).text
    assert hidden.replace("secret/one", "secret/two").replace("secret%2Fone", "secret%2Ftwo") == nobody


async def test_a_check_is_asked_for_by_a_form_without_a_session(
    browser: httpx.AsyncClient, inspections: FakeInspections
) -> None:
    back = f"{ONBOARDING}?repository=good%2Fbackend&level=L2"
    form = {"repository": "good/backend", "upstream": str(UPSTREAM), "next": back}
    answer = await browser.post(f"{ONBOARDING}/check", data=form)
    assert answer.status_code == 303
    assert answer.headers["location"].startswith(f"{ONBOARDING}?repository=good/backend&level=L2&done=")
    assert inspections.of == [(UPSTREAM, RepoName("good/backend"))]
    assert "Asking GitHub." in (await browser.get(answer.headers["location"])).text
    inspections.taken = False
    again = await browser.post(f"{ONBOARDING}/check", data=form)
    assert "asked a moment ago" in (await browser.get(again.headers["location"])).text


@pytest.mark.parametrize("back", ["https://evil.example/", "//evil.example", "/crcr/login", "/crcr/audit"])
async def test_a_check_leads_back_to_this_page_only(browser: httpx.AsyncClient, back: str) -> None:
    form = {"repository": "good/backend", "next": back}
    answer = await browser.post(f"{ONBOARDING}/check", data=form)
    assert answer.headers["location"] == f"{ONBOARDING}?done=checking&n=1"


async def test_a_check_of_who_is_not_listed_or_no_name_is_refused(
    browser: httpx.AsyncClient, inspections: FakeInspections
) -> None:
    unlisted = await browser.post(f"{ONBOARDING}/check", data={"repository": "no/body"})
    assert unlisted.status_code == 404
    unclear = await browser.post(f"{ONBOARDING}/check", data={"repository": "<b>"})
    assert unclear.status_code == 400
    assert inspections.of == []


@pytest.mark.parametrize("ci", ELSEWHERE)
async def test_another_ci_is_told_what_it_takes_and_promised_no_more(
    browser: httpx.AsyncClient, ci: str
) -> None:
    text = unescape((await browser.get(ONBOARDING, params={**COMPLETE, "ci": ci, **ELSEWHERE[ci]})).text)
    assert "no secret is shared" not in text
    assert "Safe by default" not in text
    wanted = replace(PLAIN, ci=Ci(ci), repository=RepoName("new/backend"), place=ELSEWHERE[ci])
    for each in manual_steps(wanted):
        assert each.name in text
    plain = (await browser.get(ONBOARDING, params=COMPLETE)).text
    assert 'id="step-needs"' not in plain
    assert "no secret is shared" in plain


async def test_a_shell_does_not_run_what_is_pasted_before_it_was_read(browser: httpx.AsyncClient) -> None:
    text = (await browser.get(ONBOARDING, params=COMPLETE)).text
    for name in ("init-command", "doctor-command", "test-command", "file-2"):
        assert code(text, name).strip() == code(text, name) != ""
    assert code(text, "file-1").endswith("\n")


async def test_repo_is_another_word_for_repository(browser: httpx.AsyncClient) -> None:
    text = (await browser.get(ONBOARDING, params={"repo": "good/backend", "job_name": "npu"})).text
    assert 'id="step-allowlist" data-state="ok"' in text
    assert 'name="repository" value="good/backend"' in text
    links = [href for href in ParsedPage(text).attributes("href") if f"{ONBOARDING}/files/" in href]
    assert links
    assert all("repository=good/backend" in href for href in links)
    both = (await browser.get(ONBOARDING, params={"repo": "x/y", "repository": "good/backend"})).text
    assert 'name="repository" value="good/backend"' in both


async def test_hints_on_the_page_lead_to_its_own_steps(browser: httpx.AsyncClient) -> None:
    text = (await browser.get(ONBOARDING, params={"repository": "no/body"})).text
    findings = text[text.index('id="findings"') :].partition("</ul>")[0]
    assert "step 2 has the entry" in findings
    assert "crcr/onboarding" not in findings
    assert findings.count("once you are listed") == 2


async def test_with_a_wrong_value_nothing_is_announced_that_is_not_there(browser: httpx.AsyncClient) -> None:
    text = (await browser.get(ONBOARDING, params={**COMPLETE, "branch": "a b"})).text
    assert 'id="test-command"' not in text
    assert "run:" not in text
    assert "crcr dispatch --test new/backend" in text


async def test_where_the_sandbox_is_on_the_page_has_the_command_that_tries_it(store: StoreRows) -> None:
    frame = Frame(store.views, upstreams=(UPSTREAM,), clock=store.clock, public_url=RELAY, sandbox=True)
    app = page_app(frame, None, OnboardingSettings(audience="relay-aud"))
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://relay") as browser:
        new = (await browser.get(ONBOARDING, params=COMPLETE)).text
        listed = (await browser.get(ONBOARDING, params={"repository": "good/backend"})).text
        other = (await browser.get(ONBOARDING, params={**COMPLETE, "ci": "gitlab", "project_id": "1"})).text
    tried = try_command(RepoName("new/backend"), f"{RELAY}/github/callback", "relay-aud", UPSTREAM)
    assert code(new, "trial-command") == tried.rstrip()
    assert 'id="trial-command"' not in listed + other


async def test_the_links_are_there_once_they_are_known(store: StoreRows) -> None:
    page = "https://github.com/apps/crcr"
    file = "https://github.com/torch/torch/blob/main/allowlist.yml"
    known = OnboardingSettings(app_page=lambda: page, allowlists={UPSTREAM: file})
    async with browse(store, known) as browser:
        links = ParsedPage((await browser.get(ONBOARDING)).text).attributes("href")
        assert page in links
        assert file in links
    async with browse(store, OnboardingSettings(app_page=lambda: "javascript:alert(1)")) as browser:
        text = (await browser.get(ONBOARDING)).text
        assert "not known here yet" in text
        assert "javascript:" not in text


async def test_the_upstream_is_chosen_where_there_are_several(store: StoreRows) -> None:
    async with browse(store, upstreams=(UPSTREAM, OTHER)) as browser:
        text = (await browser.get(ONBOARDING, params={**COMPLETE, "upstream": str(OTHER)})).text
    assert f'<option value="{OTHER}" selected>' in text
    assert f"--upstream {OTHER}" in code(text, "init-command")
    assert f"?upstream={OTHER}" in code(text, "readme-badge")
    links = [href for href in ParsedPage(text).attributes("href") if f"{ONBOARDING}/files/" in href]
    assert all(f"upstream={OTHER}" in href for href in links)


async def test_literal_addresses_win_over_a_backends(browser: httpx.AsyncClient) -> None:
    assert "Join in minutes" in (await browser.get(ONBOARDING)).text
    assert (await browser.get(f"{ONBOARDING}/report.py")).headers["content-type"].startswith("text/plain")


async def test_who_is_not_listed_is_told_how_to_join(store: StoreRows, browser: httpx.AsyncClient) -> None:
    answer = await browser.get("/crcr/new/backend")
    assert answer.status_code == 404
    assert f"{ONBOARDING}?repository=new/backend" in ParsedPage(answer.text).attributes("href")
    store.allowlist("L2: []\n", version=2)
    assert ONBOARDING in ParsedPage((await browser.get("/crcr")).text).attributes("href")


async def test_a_relay_that_callers_cannot_use_says_so_instead_of_files(store: StoreRows) -> None:
    frame = Frame(store.views, upstreams=(UPSTREAM,), clock=store.clock, public_url="http://relay.test")
    transport = httpx.ASGITransport(page_app(frame))
    async with httpx.AsyncClient(transport=transport, base_url="http://relay") as browser:
        text = unescape((await browser.get(ONBOARDING, params=COMPLETE)).text)
    assert "This relay cannot generate it" in text
    assert "the relay's URL" in text
    assert 'aria-invalid="true"' not in text


@pytest.mark.parametrize(
    "more",
    [
        {
            "level": "L3",
            "device": "npu",
            "command": "make 'a b' && true",
            "junit": "out/*.xml",
            "nightly": "1",
        },
        {"level": "L4", "oncalls": "ada, x/y", "job_name": "a b", "runs_on": "gpu, big", "branch": "dev"},
        {"ci": "buildkite", **ELSEWHERE["buildkite"]},
    ],
)
async def test_the_commands_are_those_of_the_command_line(
    browser: httpx.AsyncClient, more: dict[str, str]
) -> None:
    text = (await browser.get(ONBOARDING, params={**COMPLETE, **more})).text
    init = parsed(code(text, "init-command"))
    assert str(init["repository"]) == "new/backend"
    assert bool(init["nightly"]) is ("nightly" in more)
    for name in {"device", "command", "junit", "job_name", "runs_on", "branch"} & set(more):
        assert init[name] == more[name]
    assert list(init["oncall"] or ()) == more.get("oncalls", "").replace(",", "").split()
    assert len(init["place"] or ()) == len(set(more) & {"organization", "pipeline"})
    assert parsed(code(text, "doctor-command"))["test"] is False
    assert parsed(code(text, "test-command"))["test"] is True


def parsed(line: str) -> dict[str, Any]:
    """What the command line takes a shown command for; it is not run."""
    _, name, *words = shlex.split(line)
    group = typer.main.get_command(cli)
    assert isinstance(group, TyperGroup)
    return group.commands[name].make_context(name, words).params


def test_a_field_that_was_left_out_has_the_generators_default() -> None:
    form = read_form_values({"repository": "a/b", "command": "  "}, PLAIN)
    assert form.request == PLAIN
