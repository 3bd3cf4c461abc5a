"""Which entries of an allowlist an event goes to, which must wait, and which leave it out.

An entry that does not list the event gets no choice at all. `closed` goes where the pull request's other events
would have gone (same labels and authors) and is never held for being a draft, because downstreams cancel on it.
`ignore_refs` and `refs` are about pushes: a pull request is not a ref. `paths` is not looked at here.
"""

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum

from crcr.decide.allowlist import Allowlist, Authors, Entry
from crcr.decide.events import PullRequest, Push
from crcr.decide.globs import name_glob, path_glob

DISPATCHED_ACTIONS = frozenset({"opened", "reopened", "synchronize", "closed"})
TRUSTED_ASSOCIATIONS = frozenset({"OWNER", "MEMBER", "COLLABORATOR", "CONTRIBUTOR"})
_SHORT_REF_ROOTS = ("refs/heads/", "refs/tags/")


class Verdict(StrEnum):
    DISPATCH = "dispatch"
    HOLD = "hold"
    """Later, once what the reason names is gone: `draft` or `approval`."""
    NOT_CONCERNED = "not_concerned"
    """Left out by its own options: `refs`, `labels` or `authors`."""


@dataclass(frozen=True, slots=True)
class Choice:
    entry: Entry
    verdict: Verdict
    reason: str | None


_Objection = tuple[Verdict, str]


def select(
    event: PullRequest | Push, allowlist: Allowlist, *, ignore_refs: tuple[str, ...]
) -> tuple[Choice, ...]:
    if isinstance(event, Push):
        if matches_ref(ignore_refs, event.ref):
            return ()
        return tuple(_choose_push(entry, event.ref) for entry in allowlist.taking("push"))
    if event.action not in DISPATCHED_ACTIONS:
        return ()
    return tuple(_choose_pull(entry, event) for entry in allowlist.taking("pull_request"))


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


def _choose_push(entry: Entry, ref: str) -> Choice:
    if entry.refs is not None and not matches_ref(entry.refs, ref):
        return Choice(entry, Verdict.NOT_CONCERNED, "refs")
    return Choice(entry, Verdict.DISPATCH, None)


def _choose_pull(entry: Entry, pull: PullRequest) -> Choice:
    for rule in _PULL_RULES:
        objection = rule(entry, pull)
        if objection is not None:
            return Choice(entry, *objection)
    return Choice(entry, Verdict.DISPATCH, None)


def _by_labels(entry: Entry, pull: PullRequest) -> _Objection | None:
    if entry.labels is None:
        return None
    globs = [name_glob(glob.casefold()) for glob in entry.labels]
    if any(glob.matches(label.casefold()) for label in pull.labels for glob in globs):
        return None
    return Verdict.NOT_CONCERNED, "labels"


def _by_trust(entry: Entry, pull: PullRequest) -> _Objection | None:
    if entry.authors is not Authors.TRUSTED or pull.author_association.upper() in TRUSTED_ASSOCIATIONS:
        return None
    return Verdict.NOT_CONCERNED, "authors"


def _by_draft(entry: Entry, pull: PullRequest) -> _Objection | None:
    if entry.drafts or not pull.draft or pull.action == "closed":
        return None
    return Verdict.HOLD, "draft"


def _by_approval(entry: Entry, _pull: PullRequest) -> _Objection | None:
    """Hold every head; who knows the approvals of this head releases it, its `closed` too."""
    return (Verdict.HOLD, "approval") if entry.authors is Authors.APPROVED else None


# What leaves an entry out comes before what makes it wait: nobody should wait for nothing. Approval comes before
# the draft, because a person's word is needed whatever becomes of the draft.
_PULL_RULES: tuple[Callable[[Entry, PullRequest], _Objection | None], ...] = (
    _by_labels,
    _by_trust,
    _by_approval,
    _by_draft,
)
