"""Which allowlist entries an event is dispatched to, which are held, and which are left out.

An entry that does not list the event is not selected at all, unless it gates: then the gate must be able to give the
reason. `closed` goes to the same downstreams as the pull request's other events (same labels and authors) and is never
held for a draft, because downstreams cancel on it. `ignore_refs` and `refs` apply to pushes: a pull request is not a
ref. The files of a pull request are not in its webhook: an entry with `paths` is held until GitHub has listed them. A
backend that was dispatched for the same head and base before stays selected, whatever its `labels` and `paths` say
today: removing a label must not remove its result.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

from crcr.decide.allowlist.entries import Allowlist, AllowlistEntry, Authors
from crcr.decide.events import MergeGroupEvent, PullRequestEvent, PushEvent
from crcr.decide.globs import name_glob, path_glob
from crcr.decide.model import Level

DISPATCHED_ACTIONS = frozenset({"opened", "reopened", "synchronize", "closed"})
RELEASING_ACTIONS = frozenset({"labeled", "unlabeled", "edited"})
"""After these, entries that `labels` or `paths` left out are selected again."""
TRUSTED_ASSOCIATIONS = frozenset({"OWNER", "MEMBER", "COLLABORATOR", "CONTRIBUTOR"})
_SHORT_REF_ROOTS = ("refs/heads/", "refs/tags/")
_MERGING = frozenset({"pull_request", "merge_group"})

APPROVAL = "approval"
AUTHORS = "authors"
DRAFT = "draft"
LABELS = "labels"
PATHS = "paths"
TREE = "tree"
"""A merge group's tree is compared with heads that have passed before it is dispatched."""


class SelectionVerdict(StrEnum):
    DISPATCH = "dispatch"
    HOLD = "hold"
    """Later, once the reason is gone: `approval`, `draft`, `paths` or `tree`."""
    NOT_CONCERNED = "not_concerned"
    """Left out by its own options: `events`, `refs`, `paths`, `labels` or `authors`."""


@dataclass(frozen=True, slots=True)
class SelectedEntry:
    entry: AllowlistEntry
    verdict: SelectionVerdict
    reason: str | None


def select_entries(
    event: PullRequestEvent | PushEvent | MergeGroupEvent,
    allowlist: Allowlist,
    *,
    ignore_refs: tuple[str, ...],
    approved: bool = False,
    dispatched: frozenset[str] = frozenset(),
) -> tuple[SelectedEntry, ...]:
    """Select or leave out every entry that the event may concern.

    `approved` and `dispatched` (keys of downstreams) refer to the pull request's head on its base.
    """
    if isinstance(event, PushEvent):
        if matches_ref(ignore_refs, event.ref):
            return ()
        return tuple(_choose_push(entry, event) for entry in allowlist.taking("push"))
    if isinstance(event, MergeGroupEvent):
        return tuple(choice for entry in allowlist.entries if (choice := _choose_group(entry)))
    if event.action not in DISPATCHED_ACTIONS:
        return ()
    chosen = [
        _choose_pull(entry, event, approved=approved, dispatched=entry.name.key in dispatched)
        for entry in allowlist.taking("pull_request")
    ]
    gating = [entry for entry in allowlist.gating if "pull_request" not in entry.events]
    return (*chosen, *(SelectedEntry(entry, SelectionVerdict.NOT_CONCERNED, "events") for entry in gating))


def hold_reason(
    entry: AllowlistEntry, *, closed: bool, draft: bool, trusted: bool, approved: bool, concerned: bool | None
) -> str | None:
    """Return why a selected entry is held; `concerned` is the result of its `paths`, None before the files are known.

    Approval comes first, because a person must approve whatever happens to the draft. A gate that ran for trusted
    authors only would be open to everybody else: at L4, an untrusted author's head waits for approval as well.
    """
    if not approved and _needs_approval(entry, trusted=trusted):
        return APPROVAL
    if draft and not entry.drafts and not closed:
        return DRAFT
    return PATHS if entry.paths is not None and concerned is None else None


def may_need_approval(allowlist: Allowlist, association: str) -> bool:
    """Whether any entry waits for an approval of this author's pull requests."""
    trusted = is_trusted(association)
    return any(_needs_approval(entry, trusted=trusted) for entry in allowlist.entries)


def _needs_approval(entry: AllowlistEntry, *, trusted: bool) -> bool:
    if entry.authors is Authors.TRUSTED:
        return entry.level is Level.L4 and not trusted
    return entry.authors is Authors.APPROVED


def is_trusted(association: str) -> bool:
    return association.upper() in TRUSTED_ASSOCIATIONS


def matches_paths(entry: AllowlistEntry, paths: Iterable[str]) -> bool:
    """Whether any changed file matches the entry's `paths`; an entry without `paths` matches every file."""
    if entry.paths is None:
        return True
    globs = [path_glob(glob) for glob in entry.paths]
    return any(glob.matches(path) for path in paths for glob in globs)


def matches_ref(globs: tuple[str, ...], ref: str) -> bool:
    """Match the full ref; a glob that does not begin with `refs/` also matches a branch's or tag's short name."""
    return any(
        path_glob(glob).matches(ref)
        or (not glob.startswith("refs/") and path_glob(glob).matches(_short_name(ref)))
        for glob in globs
    )


def _short_name(ref: str) -> str:
    for root in _SHORT_REF_ROOTS:
        if ref.startswith(root):
            return ref[len(root) :]
    return ref


def _choose_push(entry: AllowlistEntry, push: PushEvent) -> SelectedEntry:
    if entry.refs is not None and not matches_ref(entry.refs, push.ref):
        return SelectedEntry(entry, SelectionVerdict.NOT_CONCERNED, "refs")
    # A push without a file list (a new branch, a tag, a deletion) matches.
    if entry.paths is not None and push.changed_paths and not matches_paths(entry, push.changed_paths):
        return SelectedEntry(entry, SelectionVerdict.NOT_CONCERNED, "paths")
    return SelectedEntry(entry, SelectionVerdict.DISPATCH, None)


def _choose_group(entry: AllowlistEntry) -> SelectedEntry | None:
    """Merge groups go to entries that gate pull requests, and to entries that list `merge_group`."""
    if "merge_group" in entry.events or (entry.level is Level.L4 and entry.events & _MERGING):
        return SelectedEntry(entry, SelectionVerdict.HOLD, TREE)
    return SelectedEntry(entry, SelectionVerdict.NOT_CONCERNED, "events") if entry.level is Level.L4 else None


def _choose_pull(
    entry: AllowlistEntry, pull: PullRequestEvent, *, approved: bool, dispatched: bool
) -> SelectedEntry:
    # Leaving out is checked before holding: an entry that will be left out need not wait.
    option = left_out_by(entry, labels=pull.labels, association=pull.author_association)
    if option is not None and not (option == LABELS and dispatched):
        return SelectedEntry(entry, SelectionVerdict.NOT_CONCERNED, option)
    closed = pull.action == "closed"
    reason = hold_reason(
        entry,
        closed=closed,
        draft=pull.draft,
        trusted=is_trusted(pull.author_association),
        approved=approved,
        concerned=True if dispatched else None,
    )
    if closed and reason == APPROVAL:
        return SelectedEntry(
            entry, SelectionVerdict.NOT_CONCERNED, APPROVAL
        )  # nothing was sent that it could cancel
    return SelectedEntry(entry, SelectionVerdict.HOLD if reason else SelectionVerdict.DISPATCH, reason)


def left_out_by(entry: AllowlistEntry, *, labels: Iterable[str], association: str) -> str | None:
    """Return the entry's option that leaves out a pull request with these labels and this author; None when none does."""
    if not _matches_labels(entry, labels):
        return LABELS
    strangers = entry.authors is not Authors.TRUSTED or entry.level is Level.L4
    return None if strangers or is_trusted(association) else AUTHORS


def _matches_labels(entry: AllowlistEntry, labels: Iterable[str]) -> bool:
    if entry.labels is None:
        return True
    globs = [name_glob(glob.casefold()) for glob in entry.labels]
    return any(glob.matches(label.casefold()) for label in labels for glob in globs)
