"""Findings about allowlists (source and version in force), and about the App's installations on their repositories."""

import asyncio
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from datetime import datetime

from crcr.cli.printing import ProgressLine
from crcr.decide.allowlist.check import check_channels
from crcr.decide.allowlist.entries import Allowlist, AllowlistEntry, AllowlistProblem, CheckedAllowlist
from crcr.decide.github.repository_setup import (
    PERMISSIONS_ALWAYS,
    PERMISSIONS_FOR_CHECKS,
    InstallationFacts,
    downstream_shortfall,
    missing_permissions,
)
from crcr.decide.model import RepoName
from crcr.decide.views.overview import AllowlistState
from crcr.errors import OutsideFault
from crcr.github.client import GitHubClient
from crcr.join.findings.finding import (
    SetupFinding,
    State,
    format_age,
    join_words,
    ok,
    problem,
    unknown,
    warning,
)
from crcr.receive.allowlist_yaml import read_allowlist
from crcr.settings import UpstreamSetting
from crcr.wiring.services import allowlist_source

_CONCURRENCY = 8
_MAX_LISTED = 50
_MAX_NAMED = 3
_ACCEPT = (
    "ask its owners to accept the App's new permissions: Settings, GitHub Apps, Configure, Review request"
)


@dataclass(frozen=True, slots=True)
class SourceReading:
    """An upstream's allowlist as its source has it now; `checked` is None when it cannot be read."""

    upstream: UpstreamSetting
    source: str
    checked: CheckedAllowlist | None
    failure: str | None = None
    in_force: Allowlist | None = None
    """The last good version in the store."""

    @property
    def is_good(self) -> bool:
        return self.checked is not None and self.checked.allowlist is not None

    @property
    def allowlist(self) -> Allowlist:
        """The source's allowlist; when it is invalid, the version in force."""
        read = self.checked.allowlist if self.checked else None
        return read or self.in_force or Allowlist(())


async def read_source(upstream: UpstreamSetting, github: GitHubClient) -> SourceReading:
    try:
        reading = await allowlist_source(upstream, github).read(None)
    except OutsideFault as fault:
        return SourceReading(upstream, "GitHub", None, fault.detail)
    if reading is None:
        return SourceReading(upstream, "GitHub", None, "nothing was read")
    if reading.failure is not None and reading.failure.line:
        return SourceReading(upstream, reading.source, CheckedAllowlist(None, (reading.failure,)))
    if reading.failure is not None:
        return SourceReading(upstream, reading.source, None, reading.failure.message)
    return SourceReading(upstream, reading.source, read_allowlist(reading.text))


def allowlist_findings(
    read: SourceReading, state: AllowlistState | None, now: datetime, channels: Collection[str] = ()
) -> Iterator[SetupFinding]:
    """`channels` are the names of the settings' channels."""
    name = read.upstream.name
    if read.checked is None:
        yield problem(
            "allowlist",
            f"{name}: {read.source} cannot be read: {read.failure}",
            "check CRCR_ALLOWLIST and the App's installation there",
        )
    elif read.checked.allowlist is None:
        first = next(issue for issue in read.checked.problems if issue.severity == "error")
        yield problem(
            "allowlist",
            f"{name}: {read.source} has errors, {_describe(first)}",
            "`crcr allowlist check` shows all of them",
        )
    else:
        entries = len(read.allowlist.entries)
        # A list that had entries and lost them is worth a warning; one that begins without any is not.
        begins = not entries and (state is None or state.version in {None, 1})
        yield ok(
            "allowlist",
            f"{name}: {read.source} is valid, {entries:,} downstream{'s' if entries != 1 else ''}.",
            "list the first one; docs/upstream.md#levels has examples" if begins else None,
        )
        unknown_channels = tuple(check_channels(read.allowlist, channels))
        for issue in (*read.checked.problems, *unknown_channels)[: 0 if begins else 5]:
            yield warning(
                "allowlist", f"{name}: {_describe(issue)}", issue.hint or "`crcr allowlist check` explains it"
            )
    if state is not None:
        yield _in_force(name, state, now)
    if not read.is_good and read.in_force is not None:
        number = len(read.in_force.entries)
        downstreams = "1 downstream" if number == 1 else f"{number:,} downstreams"
        yield ok(
            "in_force", f"{name}: the relay continues with the {downstreams} of that version; see below."
        )


def _describe(issue: AllowlistProblem) -> str:
    return f"line {issue.line}: {issue.message}" if issue.line else issue.message


def _in_force(name: RepoName, state: AllowlistState, now: datetime) -> SetupFinding:
    if state.version is None or state.read_at is None:
        return problem(
            "in_force",
            f"{name}: no version was accepted yet, so nothing is dispatched.",
            "`crcr allowlist refresh`",
        )
    since = f"{name}: version {state.version}, read {format_age(state.read_at, now)}, is in force"
    if state.newest_is_bad:
        return problem(
            "in_force", f"{since}; a newer one was rejected.", "fix the file: `crcr allowlist check`"
        )
    return ok("in_force", f"{since}.")


async def installation_findings(
    reads: tuple[SourceReading, ...], github: GitHubClient, *, shown: bool
) -> tuple[SetupFinding, ...]:
    """Check every upstream and downstream, a few at a time."""
    repositories: dict[RepoName, AllowlistEntry | None] = {read.upstream.name: None for read in reads}
    repositories |= {entry.name: entry for read in reads for entry in read.allowlist.entries}
    slots, done = asyncio.Semaphore(_CONCURRENCY), 0
    has_checks = any(read.allowlist.has_checks for read in reads)
    with ProgressLine(shown=shown) as progress:

        async def ask(repo: RepoName, entry: AllowlistEntry | None) -> SetupFinding:
            nonlocal done
            async with slots:
                finding = await _installation(repo, entry, github, has_checks=has_checks)
            done += 1
            progress.show(
                f"installations: {done:,} of {len(repositories):,}", final=done == len(repositories)
            )
            return finding

        findings = await asyncio.gather(*(ask(repo, entry) for repo, entry in repositories.items()))
    return _summarize(dict(zip(repositories, findings, strict=True)))


def _summarize(findings: dict[RepoName, SetupFinding]) -> tuple[SetupFinding, ...]:
    """Summarize the good ones in one line, followed by a limited number of the others."""
    bad = {repo: finding for repo, finding in findings.items() if finding.state is not State.OK}
    more = len(bad) - _MAX_LISTED
    rest = (warning("installations", f"{more:,} more have problems.", "fix these first"),) if more > 0 else ()
    return (_total(findings, tuple(bad)), *tuple(bad.values())[:_MAX_LISTED], *rest)


def _total(findings: dict[RepoName, SetupFinding], bad: tuple[RepoName, ...]) -> SetupFinding:
    name = "installations"
    text = f"{len(findings) - len(bad):,} of {len(findings):,} repositories have the App with the permissions it needs"
    if not bad:
        return ok(name, f"{text}.")
    rest = [f"{len(bad) - _MAX_NAMED:,} more"] if len(bad) > _MAX_NAMED else []
    names = join_words([*map(str, bad[:_MAX_NAMED]), *rest])
    return warning(name, f"{text}; not: {names}.", "see the lines below")


async def _installation(
    repo: RepoName, entry: AllowlistEntry | None, github: GitHubClient, *, has_checks: bool
) -> SetupFinding:
    try:
        installation = await github.repositories.read_installation(repo)
    except OutsideFault as fault:
        return unknown("installation", f"{repo}: GitHub did not answer: {fault.detail}", "try again")
    role = "upstream" if entry is None else f"downstream, {entry.level.name}"
    if installation is None:
        return problem(
            "installation",
            f"{repo} ({role}): the App is not installed.",
            "ask its owners to install the App, or remove it from the allowlist",
        )
    if installation.suspended:
        return problem(
            "installation",
            f"{repo} ({role}): the installation is suspended.",
            "ask its owners to unsuspend it",
        )
    return _rights(repo, role, entry, installation, has_checks=has_checks)


def _rights(
    repo: RepoName,
    role: str,
    entry: AllowlistEntry | None,
    installation: InstallationFacts,
    *,
    has_checks: bool,
) -> SetupFinding:
    if entry is None:
        missing = missing_permissions(
            installation.permissions, {**PERMISSIONS_ALWAYS, **(PERMISSIONS_FOR_CHECKS if has_checks else {})}
        )
        make = problem
    else:
        lack = downstream_shortfall(installation.permissions, entry)
        missing = lack.missing if lack else ()
        make = problem if lack and lack.is_fatal else warning
    if not missing:
        return ok("installation", f"{repo}: installed.")
    return make("installation", f"{repo} ({role}): lacks {', '.join(missing)}.", _ACCEPT)
