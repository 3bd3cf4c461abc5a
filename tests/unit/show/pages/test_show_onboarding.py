"""The onboarding page: the generated files, messages for wrong fields, the set-up check, and visibility."""

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
    """Records the requests for an inspection by GitHub, as the API's `POST` makes them."""

    def __init__(self) -> None:
        self.requests: list[tuple[RepoName, RepoName]] = []
        self.accepts = True

    async def request(self, _: Request, upstream: RepoName, repo: RepoName) -> bool:
        if repo.owner == "no":
            raise NotFound(f"{repo} is not a backend of this upstream")
        self.requests.append((upstream, repo))
        return self.accepts


@pytest.fixture
def inspections() -> FakeInspections:
    return FakeInspections()


def browse(
    store: StoreRows,
    settings: OnboardingSettings | None = None,
    upstreams: tuple[RepoName, ...] = (UPSTREAM,),
) -> httpx.AsyncClient:
    frame = Frame(store.views, upstreams=upstreams, clock=store.clock, public_url=RELAY)
    app = page_app(frame, None, settings or OnboardingSettings(audience="relay-aud"))
    return httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://relay")


@pytest.fixture
async def browser(store: StoreRows, inspections: FakeInspections) -> AsyncIterator[httpx.AsyncClient]:
    async with browse(
        store, OnboardingSettings(audience="relay-aud", request_inspection=inspections.request)
    ) as client:
        yield client


def copied_text(text: str, name: str) -> str:
    """Return the text that the page's copy button copies."""
    match = re.search(rf'<pre id="{name}"[^>]*>(.*?)</pre>', text, re.DOTALL)
    assert match, f"there is no {name}"
    return unescape(match[1])


async def test_the_page_shows_the_generated_files(browser: httpx.AsyncClient) -> None:
    text = (await browser.get(ONBOARDING, params={**COMPLETE, "job_name": "npu", "nightly": "1"})).text
    join_request = JoinRequest(
        ci=Ci.GITHUB,
        upstream=UPSTREAM,
        repository=RepoName("new/backend"),
        relay_url=RELAY,
        audience="relay-aud",
        job_name="npu",
        nightly=True,
    )
    workflow, nightly, reporter = generate(join_request)
    assert copied_text(text, "file-1") == workflow.text
    assert copied_text(text, "file-2") == nightly.text
    assert reporter.path in text
    assert "npu" in str(yaml.safe_load(copied_text(text, "file-1"))["jobs"])


async def test_the_shown_entry_is_valid_in_the_allowlist(browser: httpx.AsyncClient) -> None:
    for more in ({"level": "L1"}, {"level": "L3", "device": "npu"}, {"level": "L4", "oncalls": "ada, x/y"}):
        text = (await browser.get(ONBOARDING, params={**COMPLETE, **more})).text
        checked = read_allowlist(copied_text(text, "allowlist-entry"))
        assert "error" not in {problem.severity for problem in checked.problems}
        assert checked.allowlist is not None
        entry = checked.allowlist.find(RepoName("new/backend"))
        assert entry is not None
        assert entry.level.name == more["level"]


async def test_without_parameters_the_page_shows_an_example(browser: httpx.AsyncClient) -> None:
    text = (await browser.get(ONBOARDING)).text
    assert "your-org/your-repo" in copied_text(text, "allowlist-entry")
    assert "repository_dispatch" in copied_text(text, "file-1")
    assert "Enter your repository" in text
    assert 'aria-invalid="true"' not in text


@pytest.mark.parametrize("ci", ELSEWHERE)
async def test_another_ci_gets_a_bridge_and_a_registration(browser: httpx.AsyncClient, ci: str) -> None:
    text = (await browser.get(ONBOARDING, params={**COMPLETE, "ci": ci, **ELSEWHERE[ci]})).text
    assert ".github/workflows/crcr-bridge.yml" in text
    assert 'repository = "new/backend"' in copied_text(text, "registration")
    (chosen,) = re.findall(r'name="ci" value="(\w+)" checked', text)
    assert chosen == ci


@pytest.mark.parametrize("ci", ELSEWHERE)
async def test_missing_fields_of_another_ci_have_placeholders(browser: httpx.AsyncClient, ci: str) -> None:
    text = (await browser.get(ONBOARDING, params={"ci": ci})).text
    assert "repository_dispatch" in copied_text(text, "file-1")
    assert "is a placeholder; fill in the form" in text


@pytest.mark.parametrize(
    ("field", "value", "message"),
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
async def test_a_wrong_value_has_a_message_beside_its_field_and_all_values_are_kept(
    browser: httpx.AsyncClient, field: str, value: str, message: str
) -> None:
    answer = await browser.get(ONBOARDING, params={**COMPLETE, "job_name": "kept", field: value})
    assert answer.status_code == 200
    assert message in unescape(answer.text)
    assert answer.text.count('class="unclear') == 1
    assert 'id="file-1"' not in answer.text
    if field not in {"ci", "level"}:
        (shown,) = re.findall(rf'name="{field}" value="([^"]*)"[^>]*aria-invalid="true"', answer.text)
        assert unescape(shown) == value
    if field != "job_name":
        assert 'name="job_name" value="kept"' in answer.text


@pytest.mark.parametrize("level", ["L3", "L4"])
async def test_a_missing_field_of_a_level_is_requested(browser: httpx.AsyncClient, level: str) -> None:
    text = (await browser.get(ONBOARDING, params={**COMPLETE, "level": level})).text
    field = {"L3": "device", "L4": "oncalls"}[level]
    assert f"{level} needs" in text
    assert f'aria-describedby="why-{field}"' in text


@pytest.mark.parametrize("hostile", HOSTILE, ids=range(len(HOSTILE)))
async def test_fault_29_hostile_values_stay_text(browser: httpx.AsyncClient, hostile: str) -> None:
    for name in (*FIELDS, "ci", "level", "nightly", "organization", "done"):
        more = {"ci": "buildkite"} if name == "organization" else {}
        answer = await browser.get(ONBOARDING, params={**more, name: hostile[:20_000]})
        assert answer.status_code == 200
        assert_inert(ParsedPage(answer.text), answer.text)
        assert len(answer.content) < 100_000


@pytest.mark.parametrize("name", [field for field in FIELDS if field != "command"])
@pytest.mark.parametrize("value", ['x" \n run: evil', "${{ evil }}", "evil\n  - run: id", "'evil'", "`evil`"])
async def test_a_value_with_yaml_or_shell_syntax_gets_into_no_file(
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
        assert answer.text == copied_text(text, f"file-{number}")
        assert answer.headers["content-type"] == "text/plain; charset=utf-8"
        assert answer.headers["content-disposition"].startswith("attachment;")
        assert "sandbox" in answer.headers["content-security-policy"]
    assert (await browser.get(f"{ONBOARDING}/files/99", params=params)).status_code == 404


async def test_unusual_values_from_a_link_are_pointed_out(browser: httpx.AsyncClient) -> None:
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
    assert digest in copied_text(page, "file-2")
    assert f"{RELAY}{ONBOARDING}/report.py" in copied_text(page, "file-2")


async def test_with_sign_in_no_unauthenticated_download_is_shown(store: StoreRows) -> None:
    async with browse(store, OnboardingSettings(is_public=False)) as browser:
        page = (await browser.get(ONBOARDING)).text
    assert "curl" not in page
    assert f'href="{ONBOARDING}/report.py"' in page


async def test_the_check_shows_its_findings(browser: httpx.AsyncClient) -> None:
    text = (await browser.get(ONBOARDING, params={"repository": "good/backend"})).text
    assert 'id="step-allowlist" data-state="ok"' in text
    assert re.search(r'data-key="allowlist">.*?chip ok', text)
    unlisted = (await browser.get(ONBOARDING, params={"repository": "no/body"})).text
    assert 'id="step-allowlist" data-state="problem"' in unlisted
    assert "Check now" not in unlisted


async def test_a_hidden_backend_gets_the_same_page_as_an_unlisted_one(
    store: StoreRows, inspections: FakeInspections
) -> None:
    store.allowlist("L2:\n  - secret/one: {visibility: hidden}\n", version=2)
    async with browse(store, OnboardingSettings(request_inspection=inspections.request)) as browser:
        hidden = (await browser.get(ONBOARDING, params={"repository": "secret/one"})).text
        nobody = (await browser.get(ONBOARDING, params={"repository": "secret/two"})).text
    assert hidden.replace("secret/one", "secret/two").replace("secret%2Fone", "secret%2Ftwo") == nobody


async def test_a_check_can_be_requested_by_a_form_without_a_session(
    browser: httpx.AsyncClient, inspections: FakeInspections
) -> None:
    back = f"{ONBOARDING}?repository=good%2Fbackend&level=L2"
    form = {"repository": "good/backend", "upstream": str(UPSTREAM), "next": back}
    answer = await browser.post(f"{ONBOARDING}/check", data=form)
    assert answer.status_code == 303
    assert answer.headers["location"].startswith(f"{ONBOARDING}?repository=good/backend&level=L2&done=")
    assert inspections.requests == [(UPSTREAM, RepoName("good/backend"))]
    assert "Asking GitHub." in (await browser.get(answer.headers["location"])).text
    inspections.accepts = False
    again = await browser.post(f"{ONBOARDING}/check", data=form)
    assert "asked a moment ago" in (await browser.get(again.headers["location"])).text


@pytest.mark.parametrize("back", ["https://evil.example/", "//evil.example", "/crcr/login", "/crcr/audit"])
async def test_a_check_redirects_to_this_page_only(browser: httpx.AsyncClient, back: str) -> None:
    form = {"repository": "good/backend", "next": back}
    answer = await browser.post(f"{ONBOARDING}/check", data=form)
    assert answer.headers["location"] == f"{ONBOARDING}?done=checking&n=1"


async def test_a_check_of_an_unlisted_or_invalid_repository_is_refused(
    browser: httpx.AsyncClient, inspections: FakeInspections
) -> None:
    unlisted = await browser.post(f"{ONBOARDING}/check", data={"repository": "no/body"})
    assert unlisted.status_code == 404
    unclear = await browser.post(f"{ONBOARDING}/check", data={"repository": "<b>"})
    assert unclear.status_code == 400
    assert inspections.requests == []


@pytest.mark.parametrize("ci", ELSEWHERE)
async def test_another_ci_gets_its_manual_steps_and_no_github_only_promises(
    browser: httpx.AsyncClient, ci: str
) -> None:
    text = unescape((await browser.get(ONBOARDING, params={**COMPLETE, "ci": ci, **ELSEWHERE[ci]})).text)
    assert "no secret is shared" not in text
    assert "Safe by default" not in text
    join_request = replace(PLAIN, ci=Ci(ci), repository=RepoName("new/backend"), place=ELSEWHERE[ci])
    for step in manual_steps(join_request):
        assert step.name in text
    plain = (await browser.get(ONBOARDING, params=COMPLETE)).text
    assert 'id="step-needs"' not in plain
    assert "no secret is shared" in plain


async def test_copied_commands_have_no_newline_that_would_run_them_on_paste(
    browser: httpx.AsyncClient,
) -> None:
    text = (await browser.get(ONBOARDING, params=COMPLETE)).text
    for name in ("init-command", "doctor-command", "test-command", "file-2"):
        assert copied_text(text, name).strip() == copied_text(text, name) != ""
    assert copied_text(text, "file-1").endswith("\n")


async def test_repo_is_an_alias_of_repository(browser: httpx.AsyncClient) -> None:
    text = (await browser.get(ONBOARDING, params={"repo": "good/backend", "job_name": "npu"})).text
    assert 'id="step-allowlist" data-state="ok"' in text
    assert 'name="repository" value="good/backend"' in text
    links = [href for href in ParsedPage(text).attributes("href") if f"{ONBOARDING}/files/" in href]
    assert links
    assert all("repository=good/backend" in href for href in links)
    both = (await browser.get(ONBOARDING, params={"repo": "x/y", "repository": "good/backend"})).text
    assert 'name="repository" value="good/backend"' in both


async def test_hints_on_the_page_refer_to_its_own_steps(browser: httpx.AsyncClient) -> None:
    text = (await browser.get(ONBOARDING, params={"repository": "no/body"})).text
    findings = text[text.index('id="findings"') :].partition("</ul>")[0]
    assert "step 2 has the entry" in findings
    assert "crcr/onboarding" not in findings
    assert findings.count("once you are listed") == 2


async def test_with_a_wrong_value_the_page_mentions_no_missing_command(browser: httpx.AsyncClient) -> None:
    text = (await browser.get(ONBOARDING, params={**COMPLETE, "branch": "a b"})).text
    assert 'id="test-command"' not in text
    assert "run:" not in text
    assert "crcr dispatch --test new/backend" in text


async def test_with_the_sandbox_enabled_the_page_has_the_trial_command(store: StoreRows) -> None:
    frame = Frame(store.views, upstreams=(UPSTREAM,), clock=store.clock, public_url=RELAY, sandbox=True)
    app = page_app(frame, None, OnboardingSettings(audience="relay-aud"))
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://relay") as browser:
        new = (await browser.get(ONBOARDING, params=COMPLETE)).text
        listed = (await browser.get(ONBOARDING, params={"repository": "good/backend"})).text
        other = (await browser.get(ONBOARDING, params={**COMPLETE, "ci": "gitlab", "project_id": "1"})).text
    command = try_command(RepoName("new/backend"), f"{RELAY}/github/callback", "relay-aud", UPSTREAM)
    assert copied_text(new, "trial-command") == command.rstrip()
    assert 'id="trial-command"' not in listed + other


async def test_links_to_the_app_and_the_allowlist_are_shown_once_known(store: StoreRows) -> None:
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


async def test_with_several_upstreams_the_chosen_one_is_used_everywhere(store: StoreRows) -> None:
    async with browse(store, upstreams=(UPSTREAM, OTHER)) as browser:
        text = (await browser.get(ONBOARDING, params={**COMPLETE, "upstream": str(OTHER)})).text
    assert f'<option value="{OTHER}" selected>' in text
    assert f"--upstream {OTHER}" in copied_text(text, "init-command")
    assert f"?upstream={OTHER}" in copied_text(text, "readme-badge")
    links = [href for href in ParsedPage(text).attributes("href") if f"{ONBOARDING}/files/" in href]
    assert all(f"upstream={OTHER}" in href for href in links)


async def test_the_onboarding_paths_take_precedence_over_backend_pages(browser: httpx.AsyncClient) -> None:
    assert "Join in minutes" in (await browser.get(ONBOARDING)).text
    assert (await browser.get(f"{ONBOARDING}/report.py")).headers["content-type"].startswith("text/plain")


async def test_the_404_page_of_an_unlisted_backend_links_to_the_onboarding(
    store: StoreRows, browser: httpx.AsyncClient
) -> None:
    answer = await browser.get("/crcr/new/backend")
    assert answer.status_code == 404
    assert f"{ONBOARDING}?repository=new/backend" in ParsedPage(answer.text).attributes("href")
    store.allowlist("L2: []\n", version=2)
    assert ONBOARDING in ParsedPage((await browser.get("/crcr")).text).attributes("href")


async def test_a_relay_without_a_usable_public_url_explains_it_instead_of_files(store: StoreRows) -> None:
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
async def test_the_shown_commands_parse_with_the_command_line(
    browser: httpx.AsyncClient, more: dict[str, str]
) -> None:
    text = (await browser.get(ONBOARDING, params={**COMPLETE, **more})).text
    init = parse_command(copied_text(text, "init-command"))
    assert str(init["repository"]) == "new/backend"
    assert bool(init["nightly"]) is ("nightly" in more)
    for name in {"device", "command", "junit", "job_name", "runs_on", "branch"} & set(more):
        assert init[name] == more[name]
    assert list(init["oncall"] or ()) == more.get("oncalls", "").replace(",", "").split()
    assert len(init["place"] or ()) == len(set(more) & {"organization", "pipeline"})
    assert parse_command(copied_text(text, "doctor-command"))["test"] is False
    assert parse_command(copied_text(text, "test-command"))["test"] is True


def parse_command(line: str) -> dict[str, Any]:
    """Return the parameters that the command line parses from a shown command; it is not run."""
    _, name, *words = shlex.split(line)
    group = typer.main.get_command(cli)
    assert isinstance(group, TyperGroup)
    return group.commands[name].make_context(name, words).params


def test_an_omitted_field_has_the_generators_default() -> None:
    form = read_form_values({"repository": "a/b", "command": "  "}, PLAIN)
    assert form.request == PLAIN
