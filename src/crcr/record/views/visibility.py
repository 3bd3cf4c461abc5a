"""Which backends are visible to the reader, by the allowlist in force, and the state of its versions.

A backend that was removed from the list is hidden: its visibility is no longer known.
"""

import json
from dataclasses import dataclass
from pathlib import PurePath
from typing import Protocol

from sqlalchemy import text

from crcr.decide.allowlist.entries import Allowlist, AllowlistEntry, AllowlistProblem, Visibility
from crcr.decide.model import Level, RepoName
from crcr.decide.views.overview import AllowlistState, AllowlistView, ListedBackend
from crcr.errors import NoAllowlist, NotFound
from crcr.record.store.database import Tx
from crcr.record.store.statement import Statement
from crcr.record.store.times import from_us

_NEWEST = Statement(
    text(
        "SELECT version, source, good, problems, read_at FROM allowlist_versions"
        " WHERE upstream = :upstream ORDER BY version DESC LIMIT 1"
    )
)
_IN_FORCE = Statement(
    text(
        "SELECT version, source, read_at FROM allowlist_versions"
        " WHERE upstream = :upstream AND good = 1 ORDER BY version DESC LIMIT 1"
    )
)


class AllowlistReader(Protocol):
    async def in_force(self, tx: Tx, upstream: RepoName) -> Allowlist: ...


@dataclass(frozen=True, slots=True)
class VisibleBackends:
    """The allowlist entries of one upstream by visibility, under their key names."""

    shown: dict[str, AllowlistEntry]
    """Shown on pages, at least by name."""
    public: dict[str, AllowlistEntry]
    """Shown with their dispatches."""
    reporting: dict[str, AllowlistEntry]
    """Shown with their results too: public, and at a level whose results are recorded."""
    everything: bool
    """Whether the reader is an administrator, who sees hidden backends and all details."""

    def full_name(self, downstream: str) -> str:
        return self.shown[downstream].name.full_name

    def entry(self, downstream: RepoName) -> AllowlistEntry:
        entry = self.shown.get(downstream.key)
        if entry is None:
            raise NotFound(f"{downstream} is not a backend of this upstream", hint="see /api/v1/allowlist")
        return entry


async def visible_backends(
    tx: Tx, lists: AllowlistReader, upstream: RepoName, *, everything: bool = False
) -> VisibleBackends:
    """Without an allowlist no backend is visible; with `everything` hidden ones are visible too."""
    try:
        entries = (await lists.in_force(tx, upstream)).entries
    except NoAllowlist:
        entries = ()
    shown = {
        entry.name.key: entry for entry in entries if everything or entry.visibility is not Visibility.HIDDEN
    }
    public = {
        key: entry for key, entry in shown.items() if everything or entry.visibility is Visibility.PUBLIC
    }
    reporting = {key: entry for key, entry in public.items() if entry.level >= Level.L2}
    return VisibleBackends(shown, public, reporting, everything)


async def allowlist_state(
    tx: Tx, upstream: RepoName, visible: VisibleBackends | None = None
) -> AllowlistState:
    """The state for readers; without `visible` for the operator, who sees every name."""
    newest = await tx.one(_NEWEST, upstream=upstream.key)
    in_force = await tx.one(_IN_FORCE, upstream=upstream.key)
    bad = newest is not None and not newest["good"]
    for_everybody = visible is not None and not visible.everything
    problems = json.loads(newest["problems"]) if newest else []
    return AllowlistState(
        version=in_force["version"] if in_force else None,
        source=_visible_source(in_force["source"], for_everybody=for_everybody) if in_force else None,
        read_at=from_us(in_force["read_at"]) if in_force else None,
        newest_is_bad=bad,
        problems=tuple(
            _for_everybody(AllowlistProblem(*problem)) if for_everybody else AllowlistProblem(*problem)
            for problem in problems
            if bad
        ),
    )


def _visible_source(source: str, *, for_everybody: bool) -> str:
    """The source of the text; readers get only the name of a file on the relay's own machine."""
    return PurePath(source).name if for_everybody and PurePath(source).is_absolute() else source


_KINDS = {
    "not YAML": "this is not YAML",
    "hidden character": "a character here cannot be seen",
    " twice": "something is named twice",
    "unknown ": "a word here is not known",
    "on-call": "on-calls are missing or wrong",
    " is not ": "something here has the wrong form",
    " must ": "something here has the wrong form",
}


def _for_everybody(problem: AllowlistProblem) -> AllowlistProblem:
    """The problem's line and kind in our own words: its text may quote a hidden entry."""
    kind = next(
        (text_shown for fragment, text_shown in _KINDS.items() if fragment in problem.message),
        "something is wrong here",
    )
    return AllowlistProblem(problem.line, problem.severity, kind, None)


async def allowlist_view(tx: Tx, upstream: RepoName, visible: VisibleBackends) -> AllowlistView:
    return AllowlistView(
        await allowlist_state(tx, upstream, visible),
        tuple(_listed_backend(entry, public=key in visible.public) for key, entry in visible.shown.items()),
    )


def _listed_backend(entry: AllowlistEntry, *, public: bool) -> ListedBackend:
    return ListedBackend(
        name=entry.name,
        level=entry.level,
        device=entry.device if public else None,
        oncalls=entry.oncalls if public else (),
        hardware=entry.hardware if public else None,
        events=tuple(sorted(entry.events)) if public else (),
        hidden=entry.visibility is Visibility.HIDDEN,
    )
