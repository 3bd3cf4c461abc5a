"""Gathers a join request: from flags, the relay, the repository, files of an earlier run, and prompts.

On a terminal missing values are prompted for; elsewhere all missing values are reported at once, with their flags. The
relay's facts end up in files that send tokens, so they are fetched over https only.
"""

import shlex
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, TypeVar

import typer

from crcr.cli.init.ask_relay import NoOnboardingFacts, OnboardingFacts, fetch_onboarding_facts
from crcr.cli.init.options import parse_ci, parse_level
from crcr.cli.init.previous_files import PreviousAnswers, find_previous_ci, read_previous_answers
from crcr.cli.init.write_files import TargetFolder
from crcr.cli.options import parse_repo_name
from crcr.cli.printing import escape_unprintable, print_error, print_line, print_warning
from crcr.decide.model import Level, RepoName
from crcr.join.ci_kinds import CI_LOCATION_PARTS, Ci, LocationPart
from crcr.join.request import DEFAULT_COMMAND, JoinRequest, address_problems, check_values

Read = TypeVar("Read")

_NO_JUNIT = "none"
_DEFAULTS = {"command": DEFAULT_COMMAND, "job_name": "build", "runs_on": "ubuntu-latest"}


@dataclass(frozen=True, slots=True)
class Prompt:
    text: str
    missing: str
    """Error text where prompting is not possible: what is missing, and its flag."""


@dataclass(slots=True)
class Prompts:
    """Prompts on a terminal; collects missing values elsewhere."""

    can_ask: bool
    missing: list[str] = field(default_factory=list)

    def need(self, question: Prompt, read: Callable[[str], Read], default: str | None = None) -> Read | None:
        """Return the answer; without terminal and default, note it as missing and return None."""
        if self.can_ask:
            return self._ask(question.text, read, default)
        if default is not None:
            return read(default)
        self.missing.append(question.missing)
        return None

    def offer(self, text: str, read: Callable[[str], Read], default: str) -> Read:
        return self._ask(text, read, default) if self.can_ask else read(default)

    def agree(self, text: str, *, default: bool) -> bool:
        return typer.confirm(text, default=default) if self.can_ask else default

    def refuse_missing(self) -> None:
        if self.missing:
            print_error("\n".join(self.missing))
            raise typer.Exit(2)

    def _ask(self, question: str, read: Callable[[str], Read], default: str | None) -> Read:
        answer: Read = typer.prompt(question, default=default, value_proc=lambda text: read(text.strip()))
        return answer


_RELAY = Prompt("the relay's URL", "Relay unknown; pass --relay https://relay.example.org")
_AUDIENCE = Prompt(
    "the audience of tokens for the relay",
    "Audience unknown; ask the relay's operator and pass --audience",
)
_REPOSITORY = Prompt(
    "this repository, as owner/name",
    "Repository unknown; pass --repo owner/name",
)
_DEVICE = Prompt(
    "the device, which becomes part of the label", "L3 needs a device; pass --device, such as npu"
)
_ONCALLS = Prompt(
    "on-calls: logins or org/team, separated by commas",
    "L4 needs an on-call; pass --oncall login",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class InitFlags:
    """The flags as given."""

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
class GatheredRequest:
    """The request, not yet checked, and what is not in it."""

    request: JoinRequest
    relay: OnboardingFacts | None
    branch_is_assumed: bool


def gather_request(flags: InitFlags, target: TargetFolder, *, ask: bool) -> GatheredRequest:
    questions = Prompts(can_ask=ask and sys.stdin.isatty() and sys.stdout.isatty())
    url, facts = _find_relay(flags, questions)
    previous_ci = find_previous_ci(target.folder)
    ci = flags.ci or questions.offer(
        f"the CI that runs the build ({', '.join(Ci)})", parse_ci, (previous_ci or Ci.GITHUB).value
    )
    previous = read_previous_answers(target.folder, ci)
    level = flags.level or _choose_level(questions, previous)
    request: dict[str, Any] = {
        "ci": ci,
        "level": level,
        "repository": flags.repository
        or questions.need(
            _REPOSITORY, parse_repo_name, str(target.repository) if target.repository else None
        ),
        "upstream": _choose_upstream(flags, facts, questions) if url else None,
        "audience": _choose_audience(flags, facts, questions) if url else None,
        "relay_url": facts.url if facts else url,
        "device": flags.device or (questions.need(_DEVICE, _parse_device) if level is Level.L3 else None),
        "oncalls": flags.oncalls or (questions.need(_ONCALLS, _parse_oncalls) if level is Level.L4 else ()),
        "place": _gather_location(ci, flags.place, previous, questions),
        **_gather_build(flags, previous, questions),
        "action": previous.values.get("action") if flags.action is None else flags.action or None,
    }
    branch, assumed = _choose_branch(flags, target, previous, questions)
    questions.refuse_missing()
    _print_reused(flags, previous)
    return GatheredRequest(JoinRequest(**request, branch=branch), facts, assumed)


def _find_relay(flags: InitFlags, questions: Prompts) -> tuple[str | None, OnboardingFacts | None]:
    """Return the address, if known, and the relay's facts."""
    if flags.relay is None:
        return _prompt_for_relay(questions)
    url, facts = _fetch_facts(flags.relay)
    if isinstance(facts, NoOnboardingFacts):
        print_warning(f"{facts.why}; the files will send reports there anyway")
        return url, None
    return url, facts


def _prompt_for_relay(questions: Prompts) -> tuple[str | None, OnboardingFacts | None]:
    while answer := questions.need(_RELAY, _fetch_facts):
        url, facts = answer
        if isinstance(facts, OnboardingFacts):
            return url, facts
        print_warning(facts.why)
        if questions.agree("use it anyway?", default=False):
            return url, None
    return None, None


def _fetch_facts(text: str) -> tuple[str, OnboardingFacts | NoOnboardingFacts]:
    url = text.rstrip("/")
    for problem in address_problems("the relay's URL", url):
        raise typer.BadParameter(problem, param_hint="--relay")
    return url, fetch_onboarding_facts(url)


def _choose_level(questions: Prompts, previous: PreviousAnswers) -> Level:
    text = "the level (L1: dispatches, L2: results, L3: checks, L4: gate)"
    if questions.can_ask:
        return questions.offer(text, parse_level, "L4" if previous.gates else "L2")
    if previous.gates:
        print_warning(
            "the workflow here also listens to merge groups, as for L4; pass --level L4 to keep that"
        )
    return Level.L2


def _choose_upstream(flags: InitFlags, facts: OnboardingFacts | None, questions: Prompts) -> RepoName | None:
    served_upstreams = facts.upstreams if facts else ()

    def read(text: str) -> RepoName:
        name = parse_repo_name(text)
        if served_upstreams and name not in served_upstreams:
            served = ", ".join(map(str, served_upstreams))
            raise typer.BadParameter(f"the relay does not serve {name}; it serves {served}")
        return name

    if flags.upstream is not None:
        return read(str(flags.upstream))
    choice = " or ".join(map(str, served_upstreams)) or "owner/name"
    question = Prompt(f"the upstream ({choice})", f"Upstream unknown; pass --upstream {choice}")
    return questions.need(question, read, str(served_upstreams[0]) if len(served_upstreams) == 1 else None)


def _choose_audience(flags: InitFlags, facts: OnboardingFacts | None, questions: Prompts) -> str | None:
    def read(text: str) -> str:
        _refuse_invalid(audience=text)
        return text

    return flags.audience or (facts.audience if facts else None) or questions.need(_AUDIENCE, read)


def _parse_device(text: str) -> str:
    _refuse_invalid(level=Level.L3, device=text)
    return text


def _parse_oncalls(text: str) -> tuple[str, ...]:
    oncalls = tuple(name.strip() for name in text.split(",") if name.strip())
    _refuse_invalid(level=Level.L4, oncalls=oncalls)
    return oncalls


def _gather_build(flags: InitFlags, previous: PreviousAnswers, questions: Prompts) -> dict[str, Any]:
    """Return the build's values; the most important ones are prompted for on a terminal."""
    usual = {**_DEFAULTS, **previous.values}
    command, junit, nightly = flags.command, flags.junit, flags.nightly
    if command is None:
        command = questions.offer("the command that builds and tests", _parse_command, usual["command"])
    if junit is None:
        text = "JUnit files of the build, such as out/**/*.xml"
        junit = questions.offer(text, _parse_junit, usual.get("junit", _NO_JUNIT))
    if nightly is None:
        nightly = questions.agree(
            "test the upstream's newest commit every night too?", default=previous.nightly
        )
    return {
        "command": command,
        "junit": junit or None,
        "nightly": nightly,
        "job_name": usual["job_name"] if flags.job_name is None else flags.job_name,
        "runs_on": usual["runs_on"] if flags.runs_on is None else flags.runs_on,
    }


def _parse_command(text: str) -> str:
    _refuse_invalid(command=text)
    return text


def _parse_junit(text: str) -> str | None:
    glob = None if text == _NO_JUNIT else text
    _refuse_invalid(junit=glob)
    return glob


def _choose_branch(
    flags: InitFlags, target: TargetFolder, previous: PreviousAnswers, questions: Prompts
) -> tuple[str, bool]:
    """Return the default branch, and whether it is a guess."""

    def read(text: str) -> str:
        _refuse_invalid(branch=text)
        return text

    if branch := flags.branch or (target.branch if target.branch_is_known else None):
        return branch, False
    guess = previous.values.get("branch", target.branch)
    return questions.offer("the default branch", read, guess), not questions.can_ask


def _gather_location(
    ci: Ci, pairs: tuple[str, ...], previous: PreviousAnswers, questions: Prompts
) -> dict[str, str | None]:
    place: dict[str, str | None] = dict(previous.place)
    for pair in pairs:
        name, sign, value = pair.partition("=")
        if not sign:
            raise typer.BadParameter(
                f"{escape_unprintable(pair)!r} is not NAME=VALUE, as in --place pipeline=crcr"
            )
        place[name] = value
    for part in CI_LOCATION_PARTS[ci]:
        if part.required and not place.get(part.name):
            place[part.name] = _prompt_for_part(ci, part, questions)
    return place


def _prompt_for_part(ci: Ci, part: LocationPart, questions: Prompts) -> str | None:
    def read(text: str) -> str:
        _refuse_invalid(ci=ci, place={part.name: text})
        return text

    missing = f"{ci.title} needs {part.meaning}; pass --place {part.name}=…"
    return questions.need(Prompt(part.meaning, missing), read)


def _print_reused(flags: InitFlags, previous: PreviousAnswers) -> None:
    if reused := list(_reused_flags(flags, previous)):
        print_line(f"from the files here: {' '.join(reused)}")


def _reused_flags(flags: InitFlags, previous: PreviousAnswers) -> Iterator[str]:
    for name, value in previous.values.items():
        if getattr(flags, name) is None and value != _DEFAULTS.get(name):
            yield f"--{name.replace('_', '-')} {shlex.quote(value)}"
    given_names = {pair.partition("=")[0] for pair in flags.place}
    usual = {(part.name, part.default) for parts in CI_LOCATION_PARTS.values() for part in parts}
    for name, value in previous.place.items():
        if name not in given_names and (name, value) not in usual:
            yield f"--place {name}={shlex.quote(value)}"
    if flags.nightly is None and previous.nightly:
        yield "--nightly"


def _refuse_invalid(**values: Any) -> None:
    """Refuse values that must not go into a file."""
    if problems := check_values(**values):
        raise typer.BadParameter("; ".join(problems))
