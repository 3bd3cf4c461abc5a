"""Events of a generated upstream: pull requests with their heads, merges, merge groups, pushes, nightly runs.

Working hours are busy, nights and weekends are not. Events come in time order; a head knows when a newer one superseded
it, so that writing rows needs no look-ahead.
"""

import heapq
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from crcr.demo.history.backends import DAY_US, HOUR_US, Spell
from crcr.demo.world import AUTHORS

EVENTS_PER_PULL = 3.4
"""Average number of events with jobs per pull request."""

_AREAS = (
    "autograd",
    "nn",
    "inductor",
    "distributed",
    "quantization",
    "sparse",
    "optim",
    "dataloader",
    "export",
)
_VERBS = ("Fix", "Speed up", "Support", "Remove", "Refactor", "Add a test for", "Document", "Vectorise")
_THINGS = (
    "dtype promotion in addmm", "reduction over the last dimension", "bf16 in scatter_add", "the alias of flatten",
    "the meta kernel of histc", "a copy in contiguous()", "a race in the work queue", "strides before fusing",
    "the error of broadcast", "guards in the hot loop", "negative padding", "the allocator of pinned memory",
)  # fmt: skip
_LABELS = (
    "module: nn",
    "topic: performance",
    "topic: bug fix",
    "open source",
    "triaged",
    "release notes: skip",
)
_LATE_AT_NIGHT, _WEEKEND = 0.15, 0.2
_WORKING = range(7, 20)
_BREAKS = 0.07
_MERGED, _QUEUED, _FORGOTTEN = 0.75, 0.6, 0.06


@dataclass(slots=True)
class GeneratedPull:
    number: int
    title: str
    author: str
    association: str
    labels: tuple[str, ...]
    heads: list[tuple[int, str]] = field(default_factory=list)
    """Time and commit of each head, future ones included."""
    ended_at: int | None = None
    merged: bool = False

    def head(self, now: int) -> tuple[int, str]:
        return max(head for head in self.heads if head[0] <= now)


@dataclass(frozen=True, slots=True)
class GeneratedEvent:
    at: int
    guid: str
    event: str
    action: str | None
    head_sha: str
    pull: GeneratedPull | None = None
    ref: str | None = None
    superseded_at: int | None = None
    breaks: bool = False
    """The change itself is broken: it fails at many backends."""
    numbers: tuple[int, ...] = ()
    destroyed_at: int | None = None
    """Of a merge group."""

    @property
    def has_jobs(self) -> bool:
        return self.action in ("opened", "synchronize", "checks_requested", None)


def guid(chance: random.Random) -> str:
    digits = f"{chance.getrandbits(128):032x}"
    return f"{digits[:8]}-{digits[8:12]}-{digits[12:16]}-{digits[16:20]}-{digits[20:]}"


def commit(chance: random.Random) -> str:
    return f"{chance.getrandbits(160):040x}"


def busyness(at: int) -> float:
    """Return the activity at that time; 1 is a working hour."""
    hour, weekday = at // HOUR_US % 24, (at // DAY_US + 3) % 7
    return (1.0 if hour in _WORKING else _LATE_AT_NIGHT) * (_WEEKEND if weekday >= 5 else 1.0)


@dataclass(slots=True)
class UpstreamHistory:
    """The upstream's events over a period; `pulls` fills while they are read."""

    chance: random.Random
    spell: Spell
    pulls_a_day: float
    device_labels: Sequence[str] = ()
    all_end: bool = False
    """Whether every pull request has ended at the end of the period."""
    first_number: int = 1
    pulls: list[GeneratedPull] = field(default_factory=list)
    _coming: list[tuple[int, int, GeneratedEvent]] = field(default_factory=list)
    _order: int = 0

    def happens(self) -> Iterator[GeneratedEvent]:
        since, until = self.spell
        mean = self._mean_busyness()
        for hour in range(since, until, HOUR_US):
            for at in self._openings(hour, self.pulls_a_day / 24 * busyness(hour) / mean):
                self._plan(at)
            if hour // HOUR_US % 24 == 2:
                self._add(GeneratedEvent(hour, commit(self.chance), "nightly", None, ""))
            yield from self._until(min(hour + HOUR_US, until))

    def _until(self, end: int) -> Iterator[GeneratedEvent]:
        while self._coming and self._coming[0][0] < end:
            yield heapq.heappop(self._coming)[2]

    def _mean_busyness(self) -> float:
        since, until = self.spell
        hours = range(since, until, HOUR_US)
        return sum(map(busyness, hours)) / max(1, len(hours))

    def _openings(self, hour: int, mean: float) -> list[int]:
        """Return random times within an hour."""
        times: list[int] = []
        at = 0.0
        while True:
            at += self.chance.expovariate(mean) if mean > 0 else 1.0
            if at >= 1.0:
                return times
            times.append(hour + int(at * HOUR_US))

    def _add(self, event: GeneratedEvent) -> None:
        self._order += 1
        heapq.heappush(self._coming, (event.at, self._order, event))

    def _plan(self, at: int) -> None:
        """Generate a pull request from opening to end, within the period."""
        pull, chance, until = self._opened(), self.chance, self.spell[1]
        times = [at]
        while chance.random() < 0.52:
            times.append(times[-1] + int(chance.lognormvariate(1.1, 1.3) * HOUR_US))
        end = times[-1] + int(chance.lognormvariate(3.2, 1.2) * HOUR_US)
        if chance.random() < _FORGOTTEN:
            end = until
        if self.all_end and end >= until:
            # At any time after its last head: otherwise all that are open would end in the same hour.
            times = [time for time in times if time < until - HOUR_US] or [at]
            end = min(times[-1] + HOUR_US // 4 + int((until - times[-1]) * chance.random()), until - 1)
        times = [time for time in times if time < until]
        pull.heads = [(time, commit(chance)) for time in times]
        for index, (moment, sha) in enumerate(pull.heads):
            later = pull.heads[index + 1][0] if index + 1 < len(pull.heads) else None
            self._add(
                GeneratedEvent(
                    moment,
                    guid(chance),
                    "pull_request",
                    "synchronize" if index else "opened",
                    sha,
                    pull=pull,
                    superseded_at=later,
                    breaks=chance.random() < _BREAKS,
                )
            )
        if end < until:
            self._end(pull, end)

    def _opened(self) -> GeneratedPull:
        chance = self.chance
        author, association = chance.choice(AUTHORS)
        login = author if chance.random() < 0.5 else f"{author}-{chance.randrange(1, 60)}"
        title = f"[{chance.choice(_AREAS)}] {chance.choice(_VERBS)} {chance.choice(_THINGS)}"
        labels = tuple(sorted(chance.sample(_LABELS, chance.randrange(3))))
        if self.device_labels and chance.random() < 0.3:
            labels += (chance.choice(self.device_labels),)
        pull = GeneratedPull(self.first_number + len(self.pulls), title, login, association, labels)
        self.pulls.append(pull)
        return pull

    def _end(self, pull: GeneratedPull, at: int) -> None:
        chance, sha = self.chance, pull.heads[-1][1]
        pull.ended_at, pull.merged = at, chance.random() < _MERGED
        merged_as = commit(chance)
        if pull.merged and chance.random() < _QUEUED and at - HOUR_US // 2 > pull.heads[-1][0]:
            ref = f"refs/heads/gh-readonly-queue/main/pr-{pull.number}-{commit(chance)}"
            began = at - HOUR_US // 2
            group = GeneratedEvent(
                began, guid(chance), "merge_group", "checks_requested", merged_as, ref=ref,
                numbers=(pull.number,), destroyed_at=at,
            )  # fmt: skip
            self._add(group)
        self._add(GeneratedEvent(at, guid(chance), "pull_request", "closed", sha, pull=pull))
        if pull.merged:
            pushed = at + chance.randrange(1_000_000, 9_000_000)
            if pushed < self.spell[1]:
                self._add(
                    GeneratedEvent(pushed, guid(chance), "push", None, merged_as, ref="refs/heads/main")
                )
