"""Findings about the state at GitHub: the App's installation and permissions, the repository's id, its workflows, and
the relays that they pin.

The reporter stops when no relay is pinned, and refuses a dispatch from a relay that is not pinned.
"""

from collections.abc import Iterator, Sequence
from datetime import datetime

from crcr.decide.allowlist.entries import AllowlistEntry
from crcr.decide.github.repository_setup import (
    Inspection,
    InstallationFacts,
    Pinning,
    SetupFacts,
    WorkflowFacts,
    downstream_shortfall,
    read_pins,
)
from crcr.decide.jobs.report import SELF_REPORTS
from crcr.decide.model import Level
from crcr.join.ci_kinds import Ci
from crcr.join.findings.finding import (
    SetupFinding,
    describe_workflows,
    format_age,
    join_words,
    ok,
    problem,
    unknown,
    warning,
)
from crcr.join.help_links import HintLinks

TEST_EVENT = "crcr_test"
_ACCEPT = "ask an owner of the organisation to accept the new permissions: Settings, GitHub Apps, Configure, Review request"
_DOWNSTREAM_PERMISSIONS = frozenset({"actions", "contents", "metadata"})
"""Permissions that the App needs on a downstream; the others are for the upstream."""
_REBIND = "ask the operator to look at it: `crcr repos rebind` accepts the new id, or the allowlist needs the new name"


def github_findings(
    facts: SetupFacts, entry: AllowlistEntry, now: datetime, links: HintLinks
) -> Iterator[SetupFinding]:
    inspection = facts.inspection
    if inspection is None or inspection.installed is None:
        yield _not_inspected(facts, inspection, now, links)
        yield _identity(facts)
        return
    yield _app(facts, inspection, links)
    if inspection.installation is not None and not inspection.installation.suspended:
        yield _permissions(inspection.installation, entry)
    yield _identity(facts)
    if inspection.installation is not None and not inspection.installation.suspended:
        show_names = facts.for_admin or not _is_private(inspection)
        yield from _workflows(inspection, entry, links, show_names=show_names)


def _not_inspected(
    facts: SetupFacts, inspection: Inspection | None, now: datetime, links: HintLinks
) -> SetupFinding:
    name = "app"
    if facts.is_being_inspected and facts.asked_at is not None:
        return unknown(
            name,
            f"An inspection on GitHub is in progress, requested {format_age(facts.asked_at, now)}.",
            "check again soon",
        )
    if _find_other_repository_id(facts) is not None:
        return unknown(
            name,
            "Not checked: another repository has the name now.",
            "see the finding about its identity",
        )
    if inspection is not None and inspection.other_id is None:
        return unknown(
            name, f"GitHub did not answer: {inspection.trouble or 'no answer'}.", "check again later"
        )
    return unknown(
        name,
        "The App's installation and the workflows were not checked yet.",
        f"check now: {links.check}",
    )


def _app(facts: SetupFacts, inspection: Inspection, links: HintLinks) -> SetupFinding:
    name = "app"
    if inspection.installation is None:
        return problem(
            name,
            f"The relay's GitHub App is not installed on {facts.repository}.",
            f"install it, with access to {facts.repository}: {links.app}",
        )
    if inspection.installation.suspended:
        return problem(
            name,
            "The App's installation is suspended, so GitHub refuses every dispatch.",
            "ask an owner of the organisation to unsuspend it: Settings, GitHub Apps, Configure",
        )
    if inspection.branch is not None and inspection.branch.archived:
        return problem(
            name,
            f"{facts.repository} is archived, so its workflows do not run.",
            "unarchive it, or leave the allowlist",
        )
    return ok(name, f"The App is installed on {facts.repository}.")


def _permissions(installation: InstallationFacts, entry: AllowlistEntry) -> SetupFinding:
    name = "permissions"
    lack = downstream_shortfall(installation.permissions, entry)
    if lack is not None:
        return (problem if lack.is_fatal else warning)(name, lack.meaning, _ACCEPT)
    granted = [
        f"{permission}: {right}"
        for permission, right in sorted(installation.permissions.items())
        if permission in _DOWNSTREAM_PERMISSIONS
    ]
    return ok(name, f"The App has the permissions it needs ({', '.join(granted)}).")


def _find_other_repository_id(facts: SetupFacts) -> int | None:
    """Return the id of another repository that has the name now, if it is not the admitted one."""
    other_id = facts.inspection.other_id if facts.inspection else None
    return other_id if facts.repository_id not in (None, other_id) else None


def _identity(facts: SetupFacts) -> SetupFinding:
    name = "identity"
    if facts.alarm:
        return problem(
            name,
            f"The name {facts.repository} no longer belongs to the repository that was admitted"
            f" ({facts.alarm.replace('_', ' ')}).",
            _REBIND,
        )
    if _find_other_repository_id(facts) is not None:
        return problem(
            name,
            f"The name {facts.repository} now belongs to the repository with the id {_find_other_repository_id(facts)}; the one that"
            f" was admitted has the id {facts.repository_id}.",
            _REBIND,
        )
    if facts.repository_id is None:
        return unknown(
            name,
            "The relay does not know the repository's id yet.",
            "install the App: then GitHub reports it",
        )
    if not facts.confirmed:
        return warning(
            name,
            f"Bound to id {facts.repository_id} by its first report; GitHub has not confirmed it.",
            "install the App: then GitHub confirms it",
        )
    return ok(name, f"Bound to its repository id {facts.repository_id}, confirmed by GitHub.")


def _is_private(inspection: Inspection) -> bool:
    return inspection.branch is not None and inspection.branch.private


def _workflows(
    inspection: Inspection, entry: AllowlistEntry, links: HintLinks, *, show_names: bool
) -> Iterator[SetupFinding]:
    """File names of a private repository are not public: unless `show_names`, only their number is given."""
    branch = inspection.branch.default_branch if inspection.branch and show_names else "the default branch"
    if inspection.workflows is None:
        trouble = f": {inspection.trouble}" if inspection.trouble else ""
        yield unknown(
            "workflow", f"The workflows on {branch} could not be read{trouble}.", "check again later"
        )
        return
    listening = tuple(workflow for workflow in inspection.workflows if workflow.listens)
    first = f"{links.workflow}; commit it to the default branch"
    yield _listening(inspection, listening, branch, first, show_names=show_names)
    if listening:
        yield _events(listening, entry)
        yield from _test_run(listening, show_names=show_names)
        if entry.level >= Level.L2:
            yield _id_token(listening, show_names=show_names)
    yield from pin_findings(inspection.workflows, links.pin, show_names=show_names)


def _test_run(listening: tuple[WorkflowFacts, ...], *, show_names: bool) -> Iterator[SetupFinding]:
    ready = [workflow for workflow in listening if workflow.requests_tests and workflow.runs]
    if ready:
        names = describe_workflows(ready[:1], show_names=show_names)
        yield ok(
            "test run",
            f"To test the round trip, press Run workflow for {names} in the Actions tab: no token is needed.",
        )


def _listening(
    inspection: Inspection, listening: tuple[WorkflowFacts, ...], branch: str, first: str, *, show_names: bool
) -> SetupFinding:
    """`first`: where to get a workflow."""
    name = "workflow"
    running = [workflow for workflow in listening if workflow.runs]
    if running:
        verb = "listens" if len(running) == 1 else "listen"
        return ok(
            name, f"{describe_workflows(running, show_names=show_names)} on {branch} {verb} to dispatches."
        )
    if listening:
        disabled = (
            join_words(
                [f"{workflow.path} is {(workflow.state or '').replace('_', ' ')}" for workflow in listening]
            )
            if show_names
            else f"{describe_workflows(listening, show_names=False)} on {branch} {'is' if len(listening) == 1 else 'are'} disabled"
        )
        return problem(
            name, f"{disabled}, so GitHub starts nothing.", "enable it again in the repository's Actions tab"
        )
    unread = [workflow for workflow in inspection.workflows or () if workflow.problem]
    if unread:
        why = (
            join_words([f"{workflow.path}: {workflow.problem}" for workflow in unread[:3]])
            if show_names
            else f"{len(unread)} could not be read"
        )
        return problem(name, f"No workflow on {branch} listens to repository_dispatch ({why}).", first)
    if inspection.files_left:
        return unknown(
            name,
            f"None of the workflows that were read listens to repository_dispatch; {inspection.files_left:,} more were not read.",
            "if one of those listens, nothing is wrong",
        )
    if not inspection.workflows:
        return problem(name, f"There is no workflow on {branch}; GitHub looks for it only there.", first)
    none = (
        "The only workflow"
        if len(inspection.workflows) == 1
        else f"None of the {len(inspection.workflows):,} workflows"
    )
    verb = "does not listen" if len(inspection.workflows) == 1 else "listens"
    return problem(name, f"{none} on {branch} {verb} to repository_dispatch.", first)


def _events(listening: tuple[WorkflowFacts, ...], entry: AllowlistEntry) -> SetupFinding:
    name = "events"
    sent = tuple(sorted(entry.events - SELF_REPORTS))
    covered = tuple(event for event in sent if any(workflow.takes(event) for workflow in listening))
    missing = [event for event in sent if event not in covered]
    if missing:
        hint = (
            f"add {join_words(missing)} to `on: repository_dispatch: types`, or leave "
            f"{'it' if len(missing) == 1 else 'them'} out of the allowlist's `events`"
        )
        text = f"No workflow listens to {join_words(missing)}"
        if covered:
            return warning(name, f"{text}; covered: {join_words(list(covered))}.", hint)
        return problem(name, f"{text}, and nothing else is sent.", hint)
    if not any(workflow.takes(TEST_EVENT) for workflow in listening):
        return ok(
            name,
            f"Listens to {join_words(list(sent))}.",
            f"add {TEST_EVENT} to the types, to test the round trip without waiting for an event",
        )
    return ok(name, f"Listens to {join_words([*sent, TEST_EVENT])}.")


def _id_token(listening: tuple[WorkflowFacts, ...], *, show_names: bool) -> SetupFinding:
    name = "id_token"
    # A bridge requests a token for tests only.
    holders = [workflow for workflow in listening if workflow.id_token and not workflow.bridge_to]
    if holders:
        return ok(
            name,
            f"{describe_workflows(holders, show_names=show_names)} may request an OIDC token (id-token: write).",
        )
    bridge = next((workflow for workflow in listening if workflow.bridge_to), None)
    if bridge is not None:
        ci = _ci_title(bridge) if show_names else "another CI"
        return ok(
            name, f"Reports come from {ci}; its tokens count once the operator has registered the pipeline."
        )
    if any(workflow.calls_others for workflow in listening):
        return unknown(
            name,
            "No id-token: write in the listening workflow itself; it calls reusable workflows, which were not read.",
            "the job that calls them needs `permissions: id-token: write` too",
        )
    return problem(
        name,
        f"{describe_workflows(listening, show_names=show_names)} may not request an OIDC token, so it cannot report.",
        "give the job that reports, and only that one, `permissions: id-token: write`",
    )


def _ci_title(bridge: WorkflowFacts) -> str:
    return Ci(bridge.bridge_to).title if bridge.bridge_to in set(Ci) else "another CI"


PINS = "pins"
_LINES_TO_ADD = {
    Ci.GITHUB: "the two lines `env:` and `  CRCR_RELAYS: {pin}` at the top level of the workflow",
    Ci.BUILDKITE: "the two lines `env:` and `  CRCR_RELAYS: {pin}` to each step that reports",
    Ci.GITLAB: "` --relays {pin}` to each line `python3 .crcr/report.py` of its scripts",
    Ci.CIRCLECI: "the two lines `environment:` and `  CRCR_RELAYS: {pin}` to the job that reports",
}


def lines_to_add(pin: str | None, ci: Ci = Ci.GITHUB) -> str:
    """Return the lines that pin the relay in a file of that CI; `pin` is None when the relay did not send it."""
    if pin is None:
        return "`crcr init` and the relay's page /crcr/onboarding write the lines that pin it"
    lines = _LINES_TO_ADD[ci].format(pin=f'"{pin}"')
    return f"add {lines}, or a line to the pins already there; `crcr init` writes them"


def pin_findings(workflows: Sequence[WorkflowFacts], pin: str, *, show_names: bool) -> Iterator[SetupFinding]:
    """Yield one finding: the worst of all workflows that report."""
    reporting = [workflow for workflow in workflows if workflow.pinning not in {None, Pinning.NONE}]
    if not reporting:
        return
    worst = Pinning.worst(workflow.pinning or Pinning.NONE for workflow in reporting)
    concerned = [workflow for workflow in reporting if workflow.pinning is worst]
    others = [
        workflow
        for workflow in reporting
        if workflow.pinning is Pinning.PINNED and not pins_relay(workflow.pins, pin)
    ]
    if others and worst in {Pinning.PINNED, Pinning.UNKNOWN, Pinning.FOREIGN}:
        yield problem(
            PINS,
            f"{describe_workflows(others, show_names=show_names)} {_choose_verb(others, 'pins', 'pin')} other relays and not this one,"
            " so the reporter refuses its dispatches.",
            lines_to_add(pin),
        )
        return
    yield pinning_finding(
        worst, describe_workflows(concerned, show_names=show_names), pin, many=len(concerned) > 1
    )


def pinning_finding(
    pinning: Pinning, subject: str, pin: str | None, *, many: bool = False, ci: Ci = Ci.GITHUB
) -> SetupFinding:
    """Return the finding for one kind of pinning; `subject` names the files."""
    add = lines_to_add(pin, ci)
    match pinning:
        case Pinning.EVENT:
            text = f"{subject} {'take' if many else 'takes'} the relays from the event, so a dispatch decides who gets a token."
            return problem(PINS, text, f"write the relay out: {add}")
        case Pinning.MISSING:
            text = f"{subject} {'report' if many else 'reports'} and {'pin' if many else 'pins'} no relay, so the reporter stops there."
            return problem(PINS, text, add)
        case Pinning.FOREIGN:
            text = f"{subject} {'report' if many else 'reports'} through an action that pins no relay: a dispatch may decide who gets its token."
            return warning(PINS, text, f"use the action of this relay with `relays`, or {add}")
        case Pinning.UNKNOWN:
            text = (
                f"{subject} {'pin' if many else 'pins'} the relays by an expression, which was not evaluated."
            )
            return unknown(PINS, text, f"it must give {pin}" if pin else None)
        case _:
            return ok(PINS, f"{subject} {'pin' if many else 'pins'} {'this' if pin else 'a'} relay.")


def pins_relay(pins: Sequence[str], pin: str) -> bool:
    return bool(set(read_pins(pin)) & set(pins))


def _choose_verb(workflows: Sequence[WorkflowFacts], one: str, several: str) -> str:
    return one if len(workflows) == 1 else several
