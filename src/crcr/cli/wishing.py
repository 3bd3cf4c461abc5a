"""What a downstream wants, gathered: flags first, then the relay and the repository itself, then the person.

On a terminal what is missing is asked for; elsewhere it is an error that names the flag.
"""

import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import typer

from crcr.cli.options import repo_name
from crcr.cli.printing import plain, warn
from crcr.decide.model import Level, RepoName, is_repo_name
from crcr.join.place import PLACES, Ci
from crcr.join.wanted import Wanted

_PATIENCE_S = 10.0
_GIT_PATIENCE_S = 10
_MOST_BYTES = 65_536
_COMMAND = "./ci/build-and-test"
_CALLBACK = "/github/callback"


@dataclass(frozen=True, slots=True, kw_only=True)
class Said:
    """The flags, as they were given."""

    ci: Ci | None
    relay: str | None
    audience: str | None
    upstream: RepoName | None
    repository: RepoName | None
    level: Level | None
    device: str | None
    oncalls: tuple[str, ...]
    place: tuple[str, ...]
    command: str | None
    job_name: str
    junit: str | None
    runs_on: str
    branch: str | None
    nightly: bool
    action: str | None


@dataclass(frozen=True, slots=True)
class Relay:
    """What the relay tells those who join."""

    url: str
    upstreams: tuple[RepoName, ...]
    audience: str | None
    app_url: str | None


@dataclass(frozen=True, slots=True)
class Questions:
    """Asks where somebody can answer."""

    can_ask: bool

    def need(self, flag: str, words: str, default: str | None = None) -> str:
        """Return an answer; without anybody to ask, the default, or an error that names the flag."""
        if self.can_ask:
            return str(typer.prompt(words, default=default)).strip()
        if default is not None:
            return default
        raise typer.BadParameter(f"{words} is not known; say it with {flag}")

    def offer(self, words: str, default: str) -> str:
        return str(typer.prompt(words, default=default)).strip() if self.can_ask else default


def gather(said: Said, folder: Path, *, ask: bool) -> tuple[Wanted, Relay | None]:
    """Return the wish and what the relay told; the wish is still to be checked."""
    questions = Questions(can_ask=ask and sys.stdin.isatty() and sys.stdout.isatty())
    url = (said.relay or questions.need("--relay", "the relay's URL")).rstrip("/")
    told = read_relay(url)
    if told is None and None in (said.upstream, said.audience):
        warn(f"{url} does not tell its upstreams and audience; say them with --upstream and --audience")
    ci = said.ci or _ci(questions)
    level = said.level or _level(questions)
    guess = _origin(folder)
    repository = said.repository or repo_name(
        questions.need("--repo", "this repository, as owner/name", str(guess) if guess else None)
    )
    wanted = Wanted(
        ci=ci,
        upstream=_upstream(said, told, questions),
        repository=repository,
        relay_url=told.url if told else url,
        audience=said.audience
        or (told.audience if told else None)
        or questions.need("--audience", "the audience of tokens for the relay"),
        level=level,
        device=said.device or (_device(questions) if level is Level.L3 else None),
        oncalls=said.oncalls or (_oncalls(questions) if level is Level.L4 else ()),
        nightly=said.nightly,
        command=said.command or questions.offer("the command that builds and tests", _COMMAND),
        job_name=said.job_name,
        junit=said.junit,
        runs_on=said.runs_on,
        branch=said.branch or _default_branch(folder) or "main",
        action=said.action,
        place=_place(ci, said.place, questions),
    )
    return wanted, told


def _ci(questions: Questions) -> Ci:
    answer = questions.offer(f"where the build runs ({', '.join(Ci)})", Ci.GITHUB.value)
    if answer not in set(Ci):
        raise typer.BadParameter(f"{plain(answer)!r} is not one of {', '.join(Ci)}")
    return Ci(answer)


def _level(questions: Questions) -> Level:
    answer = questions.offer(
        "the level (L1 to be told, L2 to report, L3 for checks, L4 to gate)", "L2"
    ).upper()
    if answer not in Level.__members__:
        raise typer.BadParameter(f"{plain(answer)!r} is not one of {', '.join(Level.__members__)}")
    return Level[answer]


def _device(questions: Questions) -> str:
    return questions.need("--device", "the device, which becomes the label")


def _oncalls(questions: Questions) -> tuple[str, ...]:
    answer = questions.need("--oncall", "the on-calls, with commas")
    return tuple(each.strip() for each in answer.split(",") if each.strip())


def _upstream(said: Said, told: Relay | None, questions: Questions) -> RepoName:
    known = told.upstreams if told else ()
    only = str(known[0]) if len(known) == 1 else None
    if said.upstream is None and only and not questions.can_ask:
        return known[0]
    words = f"the upstream ({', '.join(map(str, known))})" if known else "the upstream, as owner/name"
    named = said.upstream or repo_name(questions.need("--upstream", words, only))
    if known and named not in known:
        raise typer.BadParameter(f"the relay does not serve {named}; it serves {', '.join(map(str, known))}")
    return named


def _place(ci: Ci, given: tuple[str, ...], questions: Questions) -> dict[str, str]:
    place = {}
    for each in given:
        name, sign, value = each.partition("=")
        if not sign:
            raise typer.BadParameter(f"{plain(each)!r} is not NAME=VALUE, as in --place pipeline=crcr")
        place[name] = value
    for part in PLACES[ci]:
        if part.required and not place.get(part.name):
            place[part.name] = questions.need(f"--place {part.name}=…", part.meaning)
    return place


def read_relay(url: str) -> Relay | None:
    """Ask the relay what who joins must know; None where it does not tell."""
    import httpx

    from crcr.cli.asking import client_for

    try:
        with client_for(url, timeout=_PATIENCE_S) as http:
            answer = http.get(f"{url}/api/v1/onboarding", headers={"Accept": "application/json"})
        found = (
            answer.json()
            if answer.status_code == httpx.codes.OK and len(answer.content) <= _MOST_BYTES
            else None
        )
    except (httpx.HTTPError, httpx.InvalidURL, ValueError):
        found = None
    return _told(url, found) if isinstance(found, dict) else None


def _told(url: str, found: dict[str, Any]) -> Relay:
    names = found.get("upstreams")
    listed = [each for each in names if isinstance(each, str)] if isinstance(names, list) else []
    own = _text(found.get("callback_url")) or ""
    return Relay(
        url=own.removesuffix(_CALLBACK) if own.endswith(_CALLBACK) else url,
        upstreams=tuple(RepoName(each) for each in listed if is_repo_name(each)),
        audience=_text(found.get("audience")),
        app_url=_text(found.get("app_url")),
    )


def _text(value: object) -> str | None:
    return value if isinstance(value, str) and value else None


def _origin(folder: Path) -> RepoName | None:
    """Return the name that the remote `origin` has: the last two parts of its address."""
    address = _git(folder, "remote", "get-url", "origin").removesuffix("/").removesuffix(".git")
    name = "/".join(address.replace(":", "/").split("/")[-2:])
    return RepoName(name) if is_repo_name(name) else None


def _default_branch(folder: Path) -> str | None:
    return _git(folder, "symbolic-ref", "--short", "refs/remotes/origin/HEAD").removeprefix("origin/") or None


def _git(folder: Path, *words: str) -> str:
    try:
        done = subprocess.run(  # noqa: S603  # our own words
            ["git", "-C", str(folder), *words],  # noqa: S607  # the person's own git
            capture_output=True, text=True, check=False, timeout=_GIT_PATIENCE_S,
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""
