"""`/crcr/onboarding`: how a repository joins, with the files generated for it and a check of its set-up.

Nothing here needs a session: anybody can request a check of a listed, visible backend, at most once a minute. The files
come from the generator of `crcr init`, which refuses every value that could change their meaning. Programs that are the
same for every repository are fetched by address and verified by digest.
"""

import shlex
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any
from urllib.parse import urlencode

from starlette.datastructures import QueryParams
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import BaseRoute, Route

from crcr.decide.github.repository_setup import SetupFacts, relay_pin
from crcr.decide.model import Level, RepoName, is_repo_name
from crcr.errors import BadRequest, NotFound
from crcr.join.files import BRIDGE, REPORTER, NewFile, allowlist_entry, generate, registration
from crcr.join.findings.examine import SetupFinding, State, examine
from crcr.join.help_links import doctor_command, page_hint_links
from crcr.join.manual_steps import ManualStep, describe_effort, describe_safety, manual_steps
from crcr.join.request import CI_LOCATION_PARTS, Ci, JoinRequest, chosen_programs, unusual_secret_targets
from crcr.join.shipped.texts import bridge_text, reporter_text
from crcr.show.http.forms import read_form
from crcr.show.http.same_site import local_path
from crcr.show.pages.frame import Frame
from crcr.show.pages.onboarding_form import EXAMPLE, OnboardingForm, read_form_values
from crcr.show.pages.sandbox import is_simulated, try_command
from crcr.show.render.notices import with_notice
from crcr.show.render.status import Status
from crcr.show.urls.location import PageLocation, pick_upstream

PROGRAMS: Mapping[str, tuple[str, str]] = {
    REPORTER: ("/crcr/onboarding/report.py", "report.py"),
    BRIDGE: ("/crcr/onboarding/bridge.py", "bridge.py"),
}
"""Where a program that is the same for everybody is served, by its path in a repository."""


def program_text(name: str) -> str:
    return {"report.py": reporter_text, "bridge.py": bridge_text}[name]()


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanFile:
    """A file on the page: its text, or where to fetch it."""

    number: int
    path: str
    why: str
    address: str
    text: str | None = None
    fetch: str | None = None
    digest: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class OnboardingPlan:
    entry: str
    files: tuple[PlanFile, ...]
    registration: str | None
    command: str
    doctor: str
    test: str
    badge: str
    needs: tuple[ManualStep, ...]
    """Secrets and settings to make beside the files."""
    unusual: tuple[str, ...]
    """What is not as by default and should be looked at, because the address may be somebody else's."""


def make_plan(
    wanted: JoinRequest, asked: Mapping[str, str], site: str, *, one_upstream: bool
) -> OnboardingPlan:
    """`asked` is what leads to this wish again; `site` is where readers and programs reach us."""
    files = generate(wanted)
    named = None if one_upstream else wanted.upstream
    return OnboardingPlan(
        entry=allowlist_entry(wanted),
        files=tuple(_shown(number, file, asked, site) for number, file in enumerate(files, start=1)),
        registration=registration(wanted),
        command=init_command(wanted),
        doctor=doctor_command(wanted.relay_url, wanted.repository, named) + "\n",
        test=doctor_command(wanted.relay_url, wanted.repository, named, test=True) + "\n",
        badge=_badge(wanted, site, one_upstream=one_upstream),
        needs=manual_steps(wanted),
        unusual=(*unusual_secret_targets(wanted), *chosen_programs(wanted)),
    )


def _shown(number: int, file: NewFile, asked: Mapping[str, str], site: str) -> PlanFile:
    if file.path not in PROGRAMS:
        address = f"/crcr/onboarding/files/{number}?{urlencode(asked, safe='/')}"
        return PlanFile(number=number, path=file.path, why=file.why, address=address, text=file.text)
    address, _ = PROGRAMS[file.path]
    digest = sha256(file.text.encode()).hexdigest()
    folder = file.path.rpartition("/")[0]
    fetch = (
        f"mkdir -p {folder} && curl -fsS {shlex.quote(site + address)} -o {file.path}"
        f" && echo '{digest}  {file.path}' | sha256sum --check\n"
    )
    return PlanFile(number=number, path=file.path, why=file.why, address=address, fetch=fetch, digest=digest)


def init_command(wanted: JoinRequest) -> str:
    """`crcr init` with all that was chosen; what is as by default is left out."""
    plain = JoinRequest(
        ci=wanted.ci,
        upstream=wanted.upstream,
        repository=wanted.repository,
        relay_url=wanted.relay_url,
        audience=wanted.audience,
    )
    words = ["crcr", "init", "--relay", wanted.relay_url, "--audience", wanted.audience]
    words += ["--upstream", str(wanted.upstream), "--repo", str(wanted.repository)]
    words += ["--ci", wanted.ci.value, "--level", wanted.level.name]
    for name in ("device", "command", "job_name", "junit", "runs_on", "branch"):
        if getattr(wanted, name) != getattr(plain, name):
            words += [f"--{name.replace('_', '-')}", str(getattr(wanted, name))]
    for oncall in wanted.oncalls:
        words += ["--oncall", oncall]
    for name, value in wanted.place.items():
        words += ["--place", f"{name}={value}"]
    if wanted.nightly:
        words.append("--nightly")
    return shlex.join(words) + "\n"


def _badge(wanted: JoinRequest, site: str, *, one_upstream: bool) -> str:
    more = "" if one_upstream else f"?{urlencode({'upstream': str(wanted.upstream)}, safe='/')}"
    name = wanted.repository
    return f"[![crcr]({site}/badge/{name}.svg{more})]({site}/crcr/{name}{more})\n"


PATH = "/crcr/onboarding"
FINDINGS = {
    State.OK: Status("O", "ok", "ok"),
    State.WARNING: Status("!", "warning", "warn"),
    State.PROBLEM: Status("X", "problem", "bad"),
    State.UNKNOWN: Status("?", "unknown", "off"),
}
LEVEL_SAYS = {
    Level.L1: "you are notified of changes; your results are not shown.",
    Level.L2: "your results are shown on these pages.",
    Level.L3: "your results become checks on pull requests that carry your device's label.",
    Level.L4: "your results are checks on every pull request, and a failure blocks its merge.",
}
_STEPS = {
    "app": ("app", "permissions"),
    "allowlist": ("allowlist",),
    "workflow": ("workflow", "events", "id_token", "pins"),
}
"""Which findings tell how far a step is."""
_CHOSEN = (
    *("upstream", "ci", "repository", "level", "device", "oncalls", "nightly"),
    *("command", "job_name", "junit", "runs_on", "branch"),
    *sorted({part.name for parts in CI_LOCATION_PARTS.values() for part in parts}),
)
_PLAIN_TEXT = {
    "Content-Security-Policy": "default-src 'none'; sandbox",
    "X-Content-Type-Options": "nosniff",
    "Cache-Control": "no-cache",
}

Ask = Callable[[Request, RepoName, RepoName], Awaitable[bool]]


async def _stands_nowhere() -> int | None:
    return None


@dataclass(frozen=True, slots=True, kw_only=True)
class OnboardingSettings:
    """What the relay tells those who join, beside what is on the pages."""

    audience: str = "crcr"
    allowlists: Mapping[RepoName, str] = field(default_factory=dict)
    """Where people see an upstream's allowlist, if that is on GitHub."""
    app_page: Callable[[], str | None] = lambda: None
    """Where the App is installed, once that is known."""
    ask: Ask | None = None
    """Has GitHub asked about an upstream's backend that the reader may see; False when it was asked just before."""
    newest_change: Callable[[], Awaitable[int | None]] = _stands_nowhere
    """Where the stream of changes stands; None where pages are not live."""
    is_public: bool = True


def routes(frame: Frame, settings: OnboardingSettings | None = None) -> list[BaseRoute]:
    pages = OnboardingPages(frame, settings or OnboardingSettings())
    return [
        Route(PATH, frame.endpoint(pages.page)),
        Route(f"{PATH}/check", frame.endpoint(pages.check), methods=["POST"]),
        Route(f"{PATH}/files/{{number:int}}", frame.endpoint(pages.file)),
        *(Route(address, _program(name)) for address, name in PROGRAMS.values()),
    ]


class OnboardingPages:
    def __init__(self, frame: Frame, settings: OnboardingSettings) -> None:
        self._frame = frame
        self._settings = settings

    async def page(self, request: Request, location: PageLocation) -> Response:
        form = self._form(request.query_params, location)
        # Read before the facts: what happens in between is told again, and not missed.
        cursor = await self._settings.newest_change() if form.repository else None
        return self._frame.page(
            request,
            "onboarding.html",
            location,
            cursor=cursor,
            form=form,
            repository=form.repository,
            plan=self._plan(form, request.query_params, location),
            level_says=LEVEL_SAYS,
            lead=describe_effort(form.chosen_ci),
            safety=describe_safety(form.chosen_ci),
            trial=self._trial(form, location),
            simulated=is_simulated(location.github_url),
            app_page=self._settings.app_page(),
            allowlist_page=self._settings.allowlists.get(location.upstream),
            is_public=self._settings.is_public,
            can_ask=self._settings.ask is not None,
            **await self._checked(request, location, form.repository),
        )

    async def check(self, request: Request, location: PageLocation) -> Response:
        """Have GitHub asked, as the API's `POST` does, and lead back to the page."""
        fields = await read_form(request)
        name = fields.get("repository", "")
        if self._settings.ask is None or not is_repo_name(name):
            raise BadRequest("name the repository to be checked", hint="write owner/name")
        upstream = pick_upstream(location.upstreams, fields.get("upstream"))
        taken = await self._settings.ask(request, upstream, RepoName(name))
        back = local_path(fields.get("next"))
        address = with_notice(back if back.startswith(PATH) else PATH, "checking", int(taken))
        return RedirectResponse(address, status_code=303)

    async def file(self, request: Request, location: PageLocation) -> Response:
        plan = self._plan(self._form(request.query_params, location), request.query_params, location)
        if plan is None:
            raise BadRequest("the address holds a value that cannot be used", hint=f"see {PATH}")
        found = next((file for file in plan.files if file.number == request.path_params["number"]), None)
        if found is None or found.text is None:
            raise NotFound("there is no such file", hint=f"see {PATH}")
        return _plain(found.text, found.path.rpartition("/")[2])

    def _form(self, asked: QueryParams, location: PageLocation) -> OnboardingForm:
        plain = JoinRequest(
            ci=Ci.GITHUB,
            upstream=location.upstream,
            repository=EXAMPLE,
            relay_url=self._frame.site,
            audience=self._settings.audience,
        )
        return read_form_values(_named(asked), plain)

    def _plan(
        self, form: OnboardingForm, asked: QueryParams, location: PageLocation
    ) -> OnboardingPlan | None:
        if form.wanted is None:
            return None
        told = _named(asked)
        chosen = {name: told[name] for name in _CHOSEN if told.get(name, "").strip()}
        return make_plan(form.wanted, chosen, self._frame.site, one_upstream=len(location.upstreams) == 1)

    def _trial(self, form: OnboardingForm, location: PageLocation) -> str | None:
        """What tries the workflow before anybody lists it; another CI's token would have to be registered first."""
        if not self._frame.sandbox or form.wanted is None or form.chosen_ci is not Ci.GITHUB:
            return None
        wanted = form.wanted
        return try_command(
            form.repository,
            wanted.callback_url,
            wanted.audience,
            wanted.upstream,
            github_url=location.github_url,
        )

    async def _checked(
        self, request: Request, location: PageLocation, repository: RepoName | None
    ) -> dict[str, Any]:
        if repository is None:
            return _onboarding_state(None, ())
        now = self._frame.clock.now()
        facts = await self._frame.views(request).setup(location.upstream, repository, now)
        pointers = page_hint_links(relay_pin(self._frame.site, self._settings.audience))
        return _onboarding_state(facts, examine(facts, now, pointers))


def _named(asked: QueryParams) -> Mapping[str, str]:
    """What was asked; `repo` is another word for `repository`, as on the command line."""
    repo = asked.get("repo", "")
    return {**asked, "repository": repo} if repo and not asked.get("repository") else asked


def _onboarding_state(facts: SetupFacts | None, findings: tuple[SetupFinding, ...]) -> dict[str, Any]:
    listed = facts is not None and facts.entry is not None
    return {
        "findings": findings,
        "finding_words": FINDINGS,
        "states": _states(findings) if listed or findings else dict.fromkeys((*_STEPS, "check"), ""),
        "listed": listed,
        "asking": facts is not None and facts.is_being_inspected,
        "inspected_at": facts.inspected_at if facts else None,
    }


def _states(findings: tuple[SetupFinding, ...]) -> dict[str, str]:
    """How far each step is: done when all that tells of it is well, marked when any of it is wrong."""
    found = {finding.name: finding.state for finding in findings}
    states = {
        step: _state([found[name] for name in names if name in found]) for step, names in _STEPS.items()
    }
    return {**states, "check": _state(list(found.values()))}


def _state(found: list[State]) -> str:
    if State.PROBLEM in found:
        return State.PROBLEM.value
    return State.OK.value if found and all(state is State.OK for state in found) else ""


def _program(name: str) -> Callable[[Request], Awaitable[Response]]:
    async def served(_: Request) -> Response:
        return _plain(program_text(name), name)

    return served


def _plain(text: str, name: str) -> Response:
    """`name` has been checked: the generator's own, or ours."""
    headers = {**_PLAIN_TEXT, "Content-Disposition": f'attachment; filename="{name}"'}
    return Response(text, media_type="text/plain", headers=headers)
