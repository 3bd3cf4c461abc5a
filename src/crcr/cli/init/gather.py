"""What a downstream wants, gathered: flags first, then the relay, the repository and its earlier files, then the person.

On a terminal what is missing is asked for; elsewhere all of it is told at once, with its flags. What the relay tells
ends up in files that send tokens, so it is asked over https only.
"""

import shlex
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import typer

from crcr.cli.init.ask_relay import Relay, Silent, read_relay
from crcr.cli.init.previous_files import Earlier, earlier_ci, read_earlier
from crcr.cli.init.questions import Question, Questions, judged, read_ci, read_level
from crcr.cli.init.target_folder import Here
from crcr.cli.options import repo_name
from crcr.cli.printing import plain, say, warn
from crcr.decide.model import Level, RepoName
from crcr.join.ci_kinds import PLACES, Ci, PlacePart
from crcr.join.request import USUAL_COMMAND, Wanted, address_problems

_NO_JUNIT = "none"
_USUAL = {"command": USUAL_COMMAND, "job_name": "build", "runs_on": "ubuntu-latest"}
_RELAY = Question(
    "the relay's URL", "it is not known where the relay is: say --relay https://relay.example.org"
)
_AUDIENCE = Question(
    "the audience of tokens for the relay",
    "the relay did not tell which audience tokens must have: say --audience, as its operator names it",
)
_REPOSITORY = Question(
    "this repository, as owner/name",
    "it is not known what GitHub calls this repository: say --repo owner/name",
)
_DEVICE = Question(
    "the device, a name that becomes part of the label", "L3 needs a device: say --device, such as npu"
)
_ONCALLS = Question(
    "whom to call, logins or org/team with commas between them",
    "L4 needs somebody to call: say --oncall login",
)


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
    job_name: str | None
    junit: str | None
    runs_on: str | None
    branch: str | None
    nightly: bool | None
    action: str | None


@dataclass(frozen=True, slots=True)
class Wish:
    """What is wanted, still to be checked, and what is not in it."""

    wanted: Wanted
    relay: Relay | None
    branch_is_assumed: bool


def gather(said: Said, here: Here, *, ask: bool) -> Wish:
    questions = Questions(can_ask=ask and sys.stdin.isatty() and sys.stdout.isatty())
    url, told = _relay(said, questions)
    before = earlier_ci(here.folder)
    ci = said.ci or questions.offer(
        f"where the build runs ({', '.join(Ci)})", read_ci, (before or Ci.GITHUB).value
    )
    earlier = read_earlier(here.folder, ci)
    level = said.level or _level(questions, earlier)
    wanted: dict[str, Any] = {
        "ci": ci,
        "level": level,
        "repository": said.repository
        or questions.need(_REPOSITORY, repo_name, str(here.repository) if here.repository else None),
        "upstream": _upstream(said, told, questions) if url else None,
        "audience": _audience(said, told, questions) if url else None,
        "relay_url": told.url if told else url,
        "device": said.device or (questions.need(_DEVICE, _device) if level is Level.L3 else None),
        "oncalls": said.oncalls or (questions.need(_ONCALLS, _oncalls) if level is Level.L4 else ()),
        "place": _place(ci, said.place, earlier, questions),
        **_build(said, earlier, questions),
        "action": earlier.values.get("action") if said.action is None else said.action or None,
    }
    branch, assumed = _branch(said, here, earlier, questions)
    questions.refuse_missing()
    _say_taken_up(said, earlier)
    return Wish(Wanted(**wanted, branch=branch), told, assumed)


def _relay(said: Said, questions: Questions) -> tuple[str | None, Relay | None]:
    """Return the address, if there is one, and what the relay told."""
    if said.relay is None:
        return _named_relay(questions)
    url, told = _asked(said.relay)
    if isinstance(told, Silent):
        warn(f"{told.why}; the files would send reports there all the same")
        return url, None
    return url, told


def _named_relay(questions: Questions) -> tuple[str | None, Relay | None]:
    while answer := questions.need(_RELAY, _asked):
        url, told = answer
        if isinstance(told, Relay):
            return url, told
        warn(told.why)
        if questions.agree("use it all the same?", default=False):
            return url, None
    return None, None


def _asked(text: str) -> tuple[str, Relay | Silent]:
    url = text.rstrip("/")
    for problem in address_problems("the relay's URL", url):
        raise typer.BadParameter(problem, param_hint="--relay")
    return url, read_relay(url)


def _level(questions: Questions, earlier: Earlier) -> Level:
    words = "the level (L1 to be told, L2 to report, L3 for checks, L4 to gate)"
    if questions.can_ask:
        return questions.offer(words, read_level, "L4" if earlier.gates else "L2")
    if earlier.gates:
        warn("the workflow here also listens to merge groups, as for L4; say --level L4 to keep that")
    return Level.L2


def _upstream(said: Said, told: Relay | None, questions: Questions) -> RepoName | None:
    known = told.upstreams if told else ()

    def read(text: str) -> RepoName:
        named = repo_name(text)
        if known and named not in known:
            served = ", ".join(map(str, known))
            raise typer.BadParameter(f"the relay does not serve {named}; it serves {served}")
        return named

    if said.upstream is not None:
        return read(str(said.upstream))
    choice = " or ".join(map(str, known)) or "owner/name"
    question = Question(
        f"the upstream ({choice})", f"it is not known which upstream is tested: say --upstream {choice}"
    )
    return questions.need(question, read, str(known[0]) if len(known) == 1 else None)


def _audience(said: Said, told: Relay | None, questions: Questions) -> str | None:
    def read(text: str) -> str:
        judged(audience=text)
        return text

    return said.audience or (told.audience if told else None) or questions.need(_AUDIENCE, read)


def _device(text: str) -> str:
    judged(level=Level.L3, device=text)
    return text


def _oncalls(text: str) -> tuple[str, ...]:
    found = tuple(each.strip() for each in text.split(",") if each.strip())
    judged(level=Level.L4, oncalls=found)
    return found


def _build(said: Said, earlier: Earlier, questions: Questions) -> dict[str, Any]:
    """Return the values of the build itself; on a terminal what most want to say is asked for."""
    usual = {**_USUAL, **earlier.values}
    command, junit, nightly = said.command, said.junit, said.nightly
    if command is None:
        command = questions.offer("the command that builds and tests", _command, usual["command"])
    if junit is None:
        words = "JUnit files that the build leaves, such as out/**/*.xml"
        junit = questions.offer(words, _junit, usual.get("junit", _NO_JUNIT))
    if nightly is None:
        nightly = questions.agree(
            "test the upstream's newest commit every night too?", default=earlier.nightly
        )
    return {
        "command": command,
        "junit": junit or None,
        "nightly": nightly,
        "job_name": usual["job_name"] if said.job_name is None else said.job_name,
        "runs_on": usual["runs_on"] if said.runs_on is None else said.runs_on,
    }


def _command(text: str) -> str:
    judged(command=text)
    return text


def _junit(text: str) -> str | None:
    glob = None if text == _NO_JUNIT else text
    judged(junit=glob)
    return glob


def _branch(said: Said, here: Here, earlier: Earlier, questions: Questions) -> tuple[str, bool]:
    """Return the default branch, and whether nobody but a guess said so."""

    def read(text: str) -> str:
        judged(branch=text)
        return text

    if found := said.branch or (here.branch if here.branch_is_known else None):
        return found, False
    guess = earlier.values.get("branch", here.branch)
    return questions.offer("the default branch", read, guess), not questions.can_ask


def _place(ci: Ci, given: tuple[str, ...], earlier: Earlier, questions: Questions) -> dict[str, str | None]:
    place: dict[str, str | None] = dict(earlier.place)
    for each in given:
        name, sign, value = each.partition("=")
        if not sign:
            raise typer.BadParameter(f"{plain(each)!r} is not NAME=VALUE, as in --place pipeline=crcr")
        place[name] = value
    for part in PLACES[ci]:
        if part.required and not place.get(part.name):
            place[part.name] = _part(ci, part, questions)
    return place


def _part(ci: Ci, part: PlacePart, questions: Questions) -> str | None:
    def read(text: str) -> str:
        judged(ci=ci, place={part.name: text})
        return text

    missing = f"{ci.title} needs {part.meaning}: say --place {part.name}=…"
    return questions.need(Question(part.meaning, missing), read)


def _say_taken_up(said: Said, earlier: Earlier) -> None:
    if taken := list(_taken_up(said, earlier)):
        say(f"taken from the files here: {' '.join(taken)}")


def _taken_up(said: Said, earlier: Earlier) -> Iterator[str]:
    for name, value in earlier.values.items():
        if getattr(said, name) is None and value != _USUAL.get(name):
            yield f"--{name.replace('_', '-')} {shlex.quote(value)}"
    named = {each.partition("=")[0] for each in said.place}
    usual = {(part.name, part.default) for parts in PLACES.values() for part in parts}
    for name, value in earlier.place.items():
        if name not in named and (name, value) not in usual:
            yield f"--place {name}={shlex.quote(value)}"
    if said.nightly is None and earlier.nightly:
        yield "--nightly"
