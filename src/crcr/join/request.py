"""The request to join: a downstream's CI, upstream, level, command and so on; and the check of its values.

The values end up in files that others run, so each has a narrow form: anything with a meaning in YAML, a shell or a CI's
expressions is refused. The command is the exception: it is a shell line, and is written where a shell reads it.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any
from urllib.parse import urlsplit

from crcr.decide.github.repository_setup import relay_pin
from crcr.decide.model import Level, RepoName
from crcr.join.ci_kinds import CI_LOCATION_PARTS, Ci

__all__ = [
    "CI_LOCATION_PARTS",
    "DEFAULT_COMMAND",
    "Ci",
    "JoinRequest",
    "address_problems",
    "check_request",
    "check_values",
]

DEFAULT_COMMAND = "./ci/build-and-test"
_LOOPBACK = frozenset({"127.0.0.1", "::1", "localhost"})
_MAX_COMMAND = 1000
_EXPRESSIONS = ("${{", "<<", "$[[")
"""Expressions that GitHub, CircleCI and GitLab replace before a shell or parser runs."""

_ADDRESS = re.compile(r"https?://[A-Za-z0-9.\[\]:-]{1,253}(?:/[A-Za-z0-9._~-]{1,100}){0,4}/?")
_DEVICE = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]{0,36}[A-Za-z0-9])?")
_ONCALL = re.compile(r"@?[A-Za-z0-9][A-Za-z0-9_-]{0,38}(?:/[A-Za-z0-9][A-Za-z0-9._-]{0,99})?")
_AUDIENCE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._~:/@+-]{0,254}")
_JOB_NAME = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9 ._,:/+=()-]{0,126}[A-Za-z0-9.)])?")
_GLOB = re.compile(r"[A-Za-z0-9._*][A-Za-z0-9._*?/-]{0,199}")
_RUNNER = re.compile(r"[A-Za-z0-9][A-Za-z0-9._/-]{0,99}(?: ?, ?[A-Za-z0-9][A-Za-z0-9._/-]{0,99}){0,9}")
_BRANCH = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._/-]{0,198}[A-Za-z0-9_-])?")
_ACTION = re.compile(
    r"[A-Za-z0-9][A-Za-z0-9_-]{0,38}/[A-Za-z0-9._-]{1,100}(?:/[A-Za-z0-9._-]{1,100}){0,8}@[0-9a-f]{40}"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinRequest:
    ci: Ci
    upstream: RepoName
    repository: RepoName
    relay_url: str
    """Where the relay is reached: `https://relay.example.org`."""
    audience: str
    level: Level = Level.L2
    device: str | None = None
    oncalls: tuple[str, ...] = ()
    nightly: bool = False
    command: str = DEFAULT_COMMAND
    job_name: str = "build"
    junit: str | None = None
    runs_on: str = "ubuntu-latest"
    """A runner's label, or several with commas."""
    branch: str = "main"
    action: str | None = None
    """`owner/repo/path@<40 hex>`: use that action; None: copy the reporter into the repository."""
    place: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    """Location of the build at another CI; see `CI_LOCATION_PARTS`."""

    def where(self, name: str) -> str | None:
        """Return a part of `place`, or its default; an empty one counts as absent."""
        default = next((part.default for part in CI_LOCATION_PARTS[self.ci] if part.name == name), None)
        return self.place.get(name) or default

    @property
    def callback_url(self) -> str:
        return f"{self.relay_url.rstrip('/')}/github/callback"

    @property
    def pin(self) -> str:
        """The relay as workflows pin it: callback address, a space, audience."""
        return relay_pin(self.relay_url, self.audience)


def check_request(request: JoinRequest) -> tuple[str, ...]:
    """Return every problem of a request."""
    return tuple(dict.fromkeys(_find_problems(request)))


def _find_problems(request: JoinRequest) -> Iterator[str]:
    yield from _check_forms(request)
    yield from address_problems("the relay's URL", request.relay_url)
    yield from _check_command(request.command)
    yield from _check_requirements(request)
    yield from _check_location(request.ci, request.place)


def _check_forms(request: JoinRequest) -> Iterator[str]:
    """Check the values that only need a form."""
    forms: tuple[tuple[str, str | None, re.Pattern[str], str], ...] = (
        ("the audience", request.audience, _AUDIENCE, "letters, digits and . _ ~ : / @ + -"),
        ("the device", request.device, _DEVICE, "letters, digits, dot, dash and underscore, at most 38"),
        ("the job's name", request.job_name, _JOB_NAME, "letters, digits, spaces and . _ , : / + = ( ) -"),
        (
            "the JUnit glob",
            request.junit,
            _GLOB,
            "a path inside the repository; letters, digits and . _ - * ? /",
        ),
        ("the runner", request.runs_on, _RUNNER, "one label, or several with commas"),
        ("the branch", request.branch, _BRANCH, "letters, digits and . _ / -"),
        ("the action", request.action, _ACTION, "owner/repo/path@ and a full commit SHA of 40 hex digits"),
    )
    for name, value, form, hint in forms:
        if value is not None and (not form.fullmatch(value) or ".." in value):
            yield f"{name} {_quote(value)} cannot be used: write {hint}"
    for oncall in request.oncalls:
        if not _ONCALL.fullmatch(oncall):
            yield f"{_quote(oncall)} is not an on-call: write a GitHub login or org/team"


def address_problems(name: str, value: str) -> Iterator[str]:
    """Yield why that address must not be used."""
    hint = "write https://host (http only on this machine)"
    if not _ADDRESS.fullmatch(value) or ".." in value:
        yield f"{name} {_quote(value)} cannot be used: {hint}"
        return
    try:
        parts = urlsplit(value)
        host, _ = parts.hostname, parts.port
    except ValueError:
        host = None
    if not host or (parts.scheme == "http" and host not in _LOOPBACK):
        yield f"{name} {_quote(value)} cannot be used: {hint}"


def _check_command(command: str) -> Iterator[str]:
    if not command.strip():
        yield "the command is empty: write the command that builds and tests your repository"
    elif len(command) > _MAX_COMMAND:
        yield f"the command is longer than {_MAX_COMMAND} characters: put it into a script"
    elif not command.isprintable():
        yield f"the command {_quote(command)} must be one line of printable text: put more into a script"
    for marker in _EXPRESSIONS:
        if marker in command:
            yield f"the command holds {marker}, which a CI would replace: take the value from the environment"


def _check_requirements(request: JoinRequest) -> Iterator[str]:
    """Check what a level or a CI requires beyond the form of each value."""
    if request.upstream == request.repository:
        yield "the upstream and your repository are the same"
    if request.level is Level.L3 and request.device is None:
        yield "L3 needs a device: it names the label that requests your checks, such as ciflow/crcr/npu"
    if request.device is not None and request.level is not Level.L3:
        yield "a device is for L3 only; leave it out, or choose L3"
    if request.level is Level.L4 and not request.oncalls:
        yield "L4 needs on-calls: a gate needs a contact"
    if request.action is not None and request.ci is not Ci.GITHUB:
        yield f"the action works in GitHub Actions only; leave it out for {request.ci.title}"


def _check_location(ci: Ci, place: Mapping[str, str]) -> Iterator[str]:
    parts = {part.name: part for part in CI_LOCATION_PARTS[ci]}
    for name, value in place.items():
        if name not in parts:
            hint = f"it has {', '.join(parts)}" if parts else "leave it out"
            yield f"{ci.title} has no {_quote(name)}: {hint}"
        elif value and not re.fullmatch(parts[name].form, value):
            yield f"{parts[name].meaning} {_quote(value)} cannot be used"
    for part in parts.values():
        if part.required and not place.get(part.name):
            yield f"{ci.title} needs {part.meaning} ({part.name})"
    if ci is Ci.GITLAB and place.get("url"):
        yield from address_problems(parts["url"].meaning, place["url"])


def _quote(value: str) -> str:
    text = value if len(value) <= 80 else value[:79] + "…"
    return repr(text) if text.isprintable() else ascii(text)


_LONGEST = 160


def unusual_secret_targets(request: JoinRequest) -> tuple[str, ...]:
    """Return where the bridge sends its secret, if it is not the CI's public address."""
    if request.ci is not Ci.GITLAB:
        return ()
    usual = next(part.default for part in CI_LOCATION_PARTS[Ci.GITLAB] if part.name == "url")
    target = _host(request.where("url") or "")
    if target == _host(usual or ""):
        return ()
    return (f"sends GITLAB_TRIGGER_TOKEN to {target}",)


def chosen_programs(request: JoinRequest) -> tuple[str, ...]:
    """Return the command and the action of the request, if they are not the defaults."""
    return tuple(_describe_programs(request))


def _describe_programs(request: JoinRequest) -> Iterator[str]:
    if request.command != DEFAULT_COMMAND:
        command = (
            request.command if len(request.command) <= _LONGEST else request.command[: _LONGEST - 1] + "…"
        )
        yield f"runs the command: {command}"
    if request.action is not None:
        yield f"runs the action {request.action}"


def _host(url: str) -> str:
    return urlsplit(url).netloc.lower()


_VALID = JoinRequest(
    ci=Ci.GITHUB,
    upstream=RepoName("owner/upstream"),
    repository=RepoName("owner/name"),
    relay_url="https://relay.example.org",
    audience="crcr",
)


def check_values(**values: Any) -> tuple[str, ...]:
    """Return the problems of single values, whatever the rest of the request is."""
    before = check_request(replace(_VALID, ci=values.get("ci", Ci.GITHUB)))
    return tuple(problem for problem in check_request(replace(_VALID, **values)) if problem not in before)
