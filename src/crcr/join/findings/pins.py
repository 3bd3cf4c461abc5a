"""Findings about pinned relays: does every file that reports pin this relay, and by values of its own?

The reporter stops where no relay is pinned, and refuses a dispatch that names another than the pinned ones.
"""

from collections.abc import Iterator, Sequence

from crcr.decide.github.inspection import WorkflowFacts
from crcr.decide.github.relay_pins import Pinning, read_pins
from crcr.join.ci_kinds import Ci
from crcr.join.findings.finding import SetupFinding, describe_workflows, ok, problem, unknown, warning

NAME = "pins"
_PLACES = {
    Ci.GITHUB: "the two lines `env:` and `  CRCR_RELAYS: {pin}` at the top level of the workflow",
    Ci.BUILDKITE: "the two lines `env:` and `  CRCR_RELAYS: {pin}` to each step that reports",
    Ci.GITLAB: "` --relays {pin}` to each line `python3 .crcr/report.py` of its scripts",
    Ci.CIRCLECI: "the two lines `environment:` and `  CRCR_RELAYS: {pin}` to the job that reports",
}


def lines_to_add(pin: str | None, ci: Ci = Ci.GITHUB) -> str:
    """What pins the relay in a file of that CI; `pin` is None where the relay did not tell it."""
    if pin is None:
        return "`crcr init` writes the lines that pin it; so does the relay's page /crcr/onboarding"
    place = _PLACES[ci].format(pin=f'"{pin}"')
    return f"add {place}, or a line to what is pinned already; `crcr init` writes them"


def pin_findings(workflows: Sequence[WorkflowFacts], pin: str, *, named: bool) -> Iterator[SetupFinding]:
    """One finding: the worst that any workflow which reports gives reason for."""
    reporting = [each for each in workflows if each.pinning not in {None, Pinning.NONE}]
    if not reporting:
        return
    worst = Pinning.worst(each.pinning or Pinning.NONE for each in reporting)
    concerned = [each for each in reporting if each.pinning is worst]
    others = [each for each in reporting if each.pinning is Pinning.PINNED and not pins_relay(each.pins, pin)]
    if others and worst in {Pinning.PINNED, Pinning.UNKNOWN, Pinning.FOREIGN}:
        yield problem(
            NAME,
            f"{describe_workflows(others, named=named)} {_verb(others, 'pins', 'pin')} other relays and not this one,"
            " so the reporter refuses its dispatches.",
            lines_to_add(pin),
        )
        return
    yield pinning_finding(worst, describe_workflows(concerned, named=named), pin, many=len(concerned) > 1)


def pinning_finding(
    pinning: Pinning, subject: str, pin: str | None, *, many: bool = False, ci: Ci = Ci.GITHUB
) -> SetupFinding:
    """`subject` names the files."""
    add = lines_to_add(pin, ci)
    match pinning:
        case Pinning.EVENT:
            text = f"{subject} {'take' if many else 'takes'} the relays from the event, so a dispatch decides who gets a token."
            return problem(NAME, text, f"write the relay out: {add}")
        case Pinning.MISSING:
            text = f"{subject} {'report' if many else 'reports'} and {'pin' if many else 'pins'} no relay, so the reporter stops there."
            return problem(NAME, text, add)
        case Pinning.FOREIGN:
            text = f"{subject} {'report' if many else 'reports'} through an action that pins no relay: a dispatch may decide who gets its token."
            return warning(NAME, text, f"use the action of this relay with `relays`, or {add}")
        case Pinning.UNKNOWN:
            text = f"{subject} {'pin' if many else 'pins'} the relays by an expression, which was not worked out."
            return unknown(NAME, text, f"it must give {pin}" if pin else None)
        case _:
            return ok(NAME, f"{subject} {'pin' if many else 'pins'} {'this' if pin else 'a'} relay.")


def pins_relay(pins: Sequence[str], pin: str) -> bool:
    return bool(set(read_pins(pin)) & set(pins))


def _verb(workflows: Sequence[WorkflowFacts], one: str, several: str) -> str:
    return one if len(workflows) == 1 else several
