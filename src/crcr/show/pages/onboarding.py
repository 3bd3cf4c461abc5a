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
"""Programs that are the same for every repository: their address here, by their path in a repository."""


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
    """Secrets and settings to create beside the files."""
    unusual: tuple[str, ...]
    """Values that differ from the defaults: somebody else may have made the link, so the reader should check them."""


def make_plan(
    request: JoinRequest, query: Mapping[str, str], site: str, *, one_upstream: bool
) -> OnboardingPlan:
    """`query` are the parameters that lead to this request; `site` is the public address of the relay."""
    files = generate(request)
    upstream = None if one_upstream else request.upstream
    return OnboardingPlan(
        entry=allowlist_entry(request),
        files=tuple(_make_plan_file(number, file, query, site) for number, file in enumerate(files, start=1)),
        registration=registration(request),
        command=init_command(request),
        doctor=doctor_command(request.relay_url, request.repository, upstream) + "\n",
        test=doctor_command(request.relay_url, request.repository, upstream, test=True) + "\n",
        badge=_badge(request, site, one_upstream=one_upstream),
        needs=manual_steps(request),
        unusual=(*unusual_secret_targets(request), *chosen_programs(request)),
    )


def _make_plan_file(number: int, file: NewFile, query: Mapping[str, str], site: str) -> PlanFile:
    if file.path not in PROGRAMS:
        address = f"/crcr/onboarding/files/{number}?{urlencode(query, safe='/')}"
        return PlanFile(number=number, path=file.path, why=file.why, address=address, text=file.text)
    address, _ = PROGRAMS[file.path]
    digest = sha256(file.text.encode()).hexdigest()
    folder = file.path.rpartition("/")[0]
    fetch = (
        f"mkdir -p {folder} && curl -fsS {shlex.quote(site + address)} -o {file.path}"
        f" && echo '{digest}  {file.path}' | sha256sum --check\n"
    )
    return PlanFile(number=number, path=file.path, why=file.why, address=address, fetch=fetch, digest=digest)


def init_command(request: JoinRequest) -> str:
    """Return `crcr init` with all choices; defaults are left out."""
    plain = JoinRequest(
        ci=request.ci,
        upstream=request.upstream,
        repository=request.repository,
        relay_url=request.relay_url,
        audience=request.audience,
    )
    arguments = ["crcr", "init", "--relay", request.relay_url, "--audience", request.audience]
    arguments += ["--upstream", str(request.upstream), "--repo", str(request.repository)]
    arguments += ["--ci", request.ci.value, "--level", request.level.name]
    for name in ("device", "command", "job_name", "junit", "runs_on", "branch"):
        if getattr(request, name) != getattr(plain, name):
            arguments += [f"--{name.replace('_', '-')}", str(getattr(request, name))]
    for oncall in request.oncalls:
        arguments += ["--oncall", oncall]
    for name, value in request.place.items():
        arguments += ["--place", f"{name}={value}"]
    if request.nightly:
        arguments.append("--nightly")
    return shlex.join(arguments) + "\n"


def _badge(request: JoinRequest, site: str, *, one_upstream: bool) -> str:
    more = "" if one_upstream else f"?{urlencode({'upstream': str(request.upstream)}, safe='/')}"
    name = request.repository
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
"""The findings that decide the state of a step."""
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

RequestInspection = Callable[[Request, RepoName, RepoName], Awaitable[bool]]


async def _no_change_id() -> int | None:
    return None


@dataclass(frozen=True, slots=True, kw_only=True)
class OnboardingSettings:
    """What the onboarding page needs to know about the relay."""

    audience: str = "crcr"
    allowlists: Mapping[RepoName, str] = field(default_factory=dict)
    """The page of an upstream's allowlist, if that is on GitHub."""
    app_page: Callable[[], str | None] = lambda: None
    """The page to install the App, once it is known."""
    request_inspection: RequestInspection | None = None
    """Requests an inspection of a backend that the reader may see; False when one was requested just before."""
    newest_change: Callable[[], Awaitable[int | None]] = _no_change_id
    """Reads the newest id of the change log; None where pages are not live."""
    is_public: bool = True


def routes(frame: Frame, settings: OnboardingSettings | None = None) -> list[BaseRoute]:
    pages = OnboardingPages(frame, settings or OnboardingSettings())
    return [
        Route(PATH, frame.endpoint(pages.page)),
        Route(f"{PATH}/check", frame.endpoint(pages.check), methods=["POST"]),
        Route(f"{PATH}/files/{{number:int}}", frame.endpoint(pages.file)),
        *(Route(address, _serve_program(name)) for address, name in PROGRAMS.values()),
    ]


class OnboardingPages:
    def __init__(self, frame: Frame, settings: OnboardingSettings) -> None:
        self._frame = frame
        self._settings = settings

    async def page(self, request: Request, location: PageLocation) -> Response:
        form = self._form(request.query_params, location)
        # Read before the facts: a change in between is sent twice rather than missed.
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
            can_ask=self._settings.request_inspection is not None,
            **await self._read_state(request, location, form.repository),
        )

    async def check(self, request: Request, location: PageLocation) -> Response:
        """Request an inspection, as the API's `POST` does, and redirect to the page."""
        fields = await read_form(request)
        name = fields.get("repository", "")
        if self._settings.request_inspection is None or not is_repo_name(name):
            raise BadRequest("name the repository to be checked", hint="write owner/name")
        upstream = pick_upstream(location.upstreams, fields.get("upstream"))
        is_new = await self._settings.request_inspection(request, upstream, RepoName(name))
        back = local_path(fields.get("next"))
        address = with_notice(back if back.startswith(PATH) else PATH, "checking", int(is_new))
        return RedirectResponse(address, status_code=303)

    async def file(self, request: Request, location: PageLocation) -> Response:
        plan = self._plan(self._form(request.query_params, location), request.query_params, location)
        if plan is None:
            raise BadRequest("the address holds a value that cannot be used", hint=f"see {PATH}")
        chosen = next((file for file in plan.files if file.number == request.path_params["number"]), None)
        if chosen is None or chosen.text is None:
            raise NotFound("there is no such file", hint=f"see {PATH}")
        return _download(chosen.text, chosen.path.rpartition("/")[2])

    def _form(self, query: QueryParams, location: PageLocation) -> OnboardingForm:
        plain = JoinRequest(
            ci=Ci.GITHUB,
            upstream=location.upstream,
            repository=EXAMPLE,
            relay_url=self._frame.site,
            audience=self._settings.audience,
        )
        return read_form_values(_accept_repo_alias(query), plain)

    def _plan(
        self, form: OnboardingForm, query: QueryParams, location: PageLocation
    ) -> OnboardingPlan | None:
        if form.request is None:
            return None
        values = _accept_repo_alias(query)
        chosen = {name: values[name] for name in _CHOSEN if values.get(name, "").strip()}
        return make_plan(form.request, chosen, self._frame.site, one_upstream=len(location.upstreams) == 1)

    def _trial(self, form: OnboardingForm, location: PageLocation) -> str | None:
        """Return the command that tests the workflow before it is listed. Other CIs' tokens must be registered first."""
        if not self._frame.sandbox or form.request is None or form.chosen_ci is not Ci.GITHUB:
            return None
        join_request = form.request
        return try_command(
            form.repository,
            join_request.callback_url,
            join_request.audience,
            join_request.upstream,
            github_url=location.github_url,
        )

    async def _read_state(
        self, request: Request, location: PageLocation, repository: RepoName | None
    ) -> dict[str, Any]:
        if repository is None:
            return _onboarding_state(None, ())
        now = self._frame.clock.now()
        facts = await self._frame.views(request).setup(location.upstream, repository, now)
        pointers = page_hint_links(relay_pin(self._frame.site, self._settings.audience))
        return _onboarding_state(facts, examine(facts, now, pointers))


def _accept_repo_alias(query: QueryParams) -> Mapping[str, str]:
    """Return the parameters; `repo` is accepted for `repository`, as on the command line."""
    repo = query.get("repo", "")
    return {**query, "repository": repo} if repo and not query.get("repository") else query


def _onboarding_state(facts: SetupFacts | None, findings: tuple[SetupFinding, ...]) -> dict[str, Any]:
    is_listed = facts is not None and facts.entry is not None
    return {
        "findings": findings,
        "finding_words": FINDINGS,
        "states": _step_states(findings) if is_listed or findings else dict.fromkeys((*_STEPS, "check"), ""),
        "listed": is_listed,
        "asking": facts is not None and facts.is_being_inspected,
        "inspected_at": facts.inspected_at if facts else None,
    }


def _step_states(findings: tuple[SetupFinding, ...]) -> dict[str, str]:
    """Return the state of each step: ok when all of its findings are, problem when one is."""
    state_by_name = {finding.name: finding.state for finding in findings}
    states = {
        step: _step_state([state_by_name[name] for name in names if name in state_by_name])
        for step, names in _STEPS.items()
    }
    return {**states, "check": _step_state(list(state_by_name.values()))}


def _step_state(states: list[State]) -> str:
    if State.PROBLEM in states:
        return State.PROBLEM.value
    return State.OK.value if states and all(state is State.OK for state in states) else ""


def _serve_program(name: str) -> Callable[[Request], Awaitable[Response]]:
    async def served(_: Request) -> Response:
        return _download(program_text(name), name)

    return served


def _download(text: str, name: str) -> Response:
    """`name` comes from the generator or from us, never from the request."""
    headers = {**_PLAIN_TEXT, "Content-Disposition": f'attachment; filename="{name}"'}
    return Response(text, media_type="text/plain", headers=headers)
