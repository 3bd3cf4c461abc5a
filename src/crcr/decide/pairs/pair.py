"""The rules of a pair: whether the pull request that a change depends on counts, and what is to be dispatched for it.

A pair is an upstream pull request with one pull request of a backend. Its dispatch is an additional one: the backend's
plain dispatch stays, and alone decides the gate. The other pull request is honoured when its head is a branch of the
backend's own repository, or when a person with write access there approved exactly that head: otherwise a stranger could
bring a change that deletes the failing test.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum

from crcr.decide.model import DispatchState
from crcr.decide.pairs.depends_on import MOST_DEPENDENCIES, PullReference

READ_SOONEST = timedelta(minutes=2)
READ_LATEST = timedelta(hours=6)
_AGE_SHARE = 10
RETEST_FOR = timedelta(days=7)
"""How long after a merge the plain dispatch is sent again once it fails."""


class DependencyState(StrEnum):
    """A pull request that another one depends on, as it was read last."""

    UNREAD = "unread"
    OPEN = "open"
    MERGED = "merged"
    CLOSED = "closed"
    """Closed without being merged."""


class Refusal(StrEnum):
    """Why a dependency is not tested; each has its sentence."""

    TOO_MANY = "too_many"
    NOT_LISTED = "not_listed"
    NOT_RECORDED = "not_recorded"
    UNREADABLE = "unreadable"
    CYCLE = "cycle"
    NOT_APPROVED = "not_approved"
    HEAD_GONE = "head_gone"


_SENTENCES: Mapping[Refusal, str] = {
    Refusal.TOO_MANY: f"at most {MOST_DEPENDENCIES} dependencies of a pull request are tested",
    Refusal.NOT_LISTED: "only pull requests of backends on the allowlist are tested",
    Refusal.NOT_RECORDED: "the results of this backend are not recorded (L1)",
    Refusal.UNREADABLE: "there is no such pull request, or it is in a private repository without the relay's App",
    Refusal.CYCLE: "it depends on this pull request in turn, or its own dependencies form a cycle",
    Refusal.NOT_APPROVED: "its head is in a fork, and nobody with write access to {repository} has approved this head",
    Refusal.HEAD_GONE: "the repository of its head is gone",
}


def refusal_sentence(refusal: Refusal, reference: PullReference) -> str:
    return _SENTENCES[refusal].format(repository=reference.repository)


@dataclass(frozen=True, slots=True, kw_only=True)
class HeadReview:
    """A person's newest review of a pull request that approves or rejects."""

    who: str
    is_person: bool
    approves: bool
    commit: str | None
    """The commit that was reviewed; None where it is gone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkedPull:
    """A backend's pull request as GitHub describes it."""

    repository_id: int
    """Of the repository that it is to be merged into."""
    head_sha: str
    clone_url: str | None
    """Of the repository of its head; None where that is gone."""
    is_own_head: bool
    """Whether its head is a branch of the repository that it is to be merged into."""
    is_open: bool
    merged: bool
    author: str
    body: str

    @property
    def state(self) -> DependencyState:
        if self.is_open:
            return DependencyState.OPEN
        return DependencyState.MERGED if self.merged else DependencyState.CLOSED


def approvers(pull: LinkedPull, reviews: tuple[HeadReview, ...]) -> tuple[str, ...]:
    """Return the people whose review approves the present head; whether they may is for GitHub to say.

    `reviews` are in GitHub's order, the oldest first: of each person the newest counts.
    """
    newest = {review.who.casefold(): review for review in reviews}
    return tuple(
        review.who
        for review in newest.values()
        if review.approves
        and review.is_person
        and review.commit == pull.head_sha
        and review.who.casefold() != pull.author.casefold()
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadDependency:
    """The outcome of reading a dependency."""

    state: DependencyState
    refusal: Refusal | None = None
    head_sha: str | None = None
    clone_url: str | None = None
    approved_by: str | None = None
    """Who approved the head; None for a branch of the repository itself, which needs no approval."""


def judge_dependency(pull: LinkedPull | None, *, approved_by: str | None, in_cycle: bool) -> ReadDependency:
    """Judge what was read; `pull` is None where GitHub shows no such pull request."""
    if pull is None:
        return ReadDependency(state=DependencyState.UNREAD, refusal=Refusal.UNREADABLE)
    refusal = None
    if in_cycle:
        refusal = Refusal.CYCLE
    elif pull.clone_url is None and pull.is_open:
        refusal = Refusal.HEAD_GONE
    elif pull.is_open and not pull.is_own_head and approved_by is None:
        refusal = Refusal.NOT_APPROVED
    return ReadDependency(
        state=pull.state,
        refusal=refusal,
        head_sha=pull.head_sha,
        clone_url=pull.clone_url,
        approved_by=None if pull.is_own_head else approved_by,
    )


def next_read_after(changed_at: datetime, now: datetime) -> timedelta:
    """Return how long to wait before a dependency is read again: the longer, the longer nothing has changed.

    Webhooks bring its pushes and its end at once where the App is installed; this finds approvals and what was missed.
    """
    return min(max((now - changed_at) / _AGE_SHARE, READ_SOONEST), READ_LATEST)


@dataclass(frozen=True, slots=True, kw_only=True)
class PlainDispatch:
    """The backend's dispatch of the delivery that counts for the upstream pull request's head."""

    delivery: str
    state: DispatchState
    sent_at: datetime | None = None
    has_failed: bool = False
    """Whether one of its jobs that count did not pass."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PairFacts:
    is_open: bool
    """Whether the upstream pull request is open."""
    state: DependencyState
    refusal: Refusal | None
    head_sha: str | None
    """The dependency's head."""
    plain: PlainDispatch | None
    sent_with: tuple[str, str, int] | None = None
    """The newest dispatch of the pair: the plain delivery and the dependency's head that it is for, and its round."""
    round: int = 0
    """How often a person has requested it again."""
    merged_seen_at: datetime | None = None
    """When the relay first read that the dependency is merged, by its own clock."""
    retested: str | None = None
    """The plain delivery that was dispatched again after the merge."""

    @property
    def is_honoured(self) -> bool:
        return self.is_open and self.state is DependencyState.OPEN and self.refusal is None

    @property
    def wanted(self) -> tuple[str, str, int] | None:
        """The dispatch that the pair should have now; None where it should have none."""
        if not self.is_honoured or self.plain is None or self.head_sha is None:
            return None
        # A plain dispatch that is held for an approval or a draft, or left out, must not be sent by way of a pair.
        if self.plain.state not in {DispatchState.WAITING, DispatchState.SENT}:
            return None
        return self.plain.delivery, self.head_sha, self.round


class PairStep(StrEnum):
    NOTHING = "nothing"
    SEND = "send"
    """Dispatch the pair, in place of an older dispatch of it."""
    DROP = "drop"
    """Cancel its dispatch where that is not sent yet."""
    SEND_PLAIN_AGAIN = "send plain again"
    """The dependency is merged: dispatch without it, which is what the gate waits for."""


def next_step(facts: PairFacts, now: datetime) -> PairStep:
    wanted = facts.wanted
    if wanted is not None:
        return PairStep.NOTHING if wanted == facts.sent_with else PairStep.SEND
    if _must_retest(facts, now):
        return PairStep.SEND_PLAIN_AGAIN
    return PairStep.NOTHING if facts.sent_with is None else PairStep.DROP


def _must_retest(facts: PairFacts, now: datetime) -> bool:
    """Whether the plain dispatch failed before the merge; once for each delivery, whatever the clocks say."""
    plain, merged_at = facts.plain, facts.merged_seen_at
    return (
        facts.is_open
        and facts.state is DependencyState.MERGED
        and plain is not None
        and merged_at is not None
        and now < merged_at + RETEST_FOR
        and plain.state is DispatchState.SENT
        and plain.sent_at is not None
        and plain.sent_at <= merged_at
        and plain.has_failed
        and facts.retested != plain.delivery
    )


def pair_sentence(
    reference: PullReference, state: DependencyState, refusal: Refusal | None, status: str | None
) -> str:
    """Say what a pair shows; `status` is the backend's status in it, None while there is no dispatch for its heads."""
    if refusal is not None and state is not DependencyState.MERGED:
        return f"not tested with {reference}: {refusal_sentence(refusal, reference)}"
    match state:
        case DependencyState.UNREAD:
            return f"{reference}, which it depends on, has not been read yet"
        case DependencyState.MERGED:
            return f"{reference} is merged: the result without it counts"
        case DependencyState.CLOSED:
            return f"{reference}, which it depends on, was closed without being merged"
    return _STATUS_SENTENCES.get(status or "", "{status} with {reference}").format(
        status=status or "", reference=reference
    )


_STATUS_SENTENCES = {
    "": "waits to be tested with {reference}",
    "passed": "passes with {reference}, which is not merged",
    "waiting": "is being tested with {reference}",
    "failed": "fails with {reference} too",
}
