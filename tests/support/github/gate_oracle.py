"""`GateOracle`: a second implementation of the gate's rule, to compare the relay's gate with.

It is written from the specification and not from the relay's code, as a few set operations over the simulator's state and
the reports that were sent. It says only whether a gate may pass, and whether a gate that does not may still wait.
"""

import json
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from github_sim.github import Comment, GitHub, PullRequest, WebhookDelivery, WorkflowRun
from support.running_relay import UPSTREAM

OPENING = frozenset({"opened", "reopened", "synchronize"})
HARMLESS = frozenset({"success", "skipped", "neutral"})
MAY_WAIVE = frozenset({"maintainer"})
LATE = timedelta(hours=8)


@dataclass(frozen=True)
class GatingEntry:
    """An L4 entry of the allowlist: the fields that the gate depends on."""

    name: str
    jobs: tuple[str, ...] | None
    concerned: bool = True
    """Whether its `paths` are among the files that every pull request here changes."""


@dataclass(frozen=True)
class PullEvent:
    """A webhook that opened, updated or closed a pull request; `place` is its true order."""

    place: int
    guid: str
    number: int
    head: str
    is_open: bool


@dataclass
class ReportedJob:
    """The reports of one attempt of a job that the relay accepted."""

    conclusion: str | None = None


@dataclass
class GateOracle:
    github: GitHub
    in_force: tuple[GatingEntry, ...]
    recorded: dict[str, tuple[GatingEntry, ...]] = field(default_factory=dict)
    """For each webhook that stands in the relay's inbox: who gated when it was recorded."""
    reported: dict[tuple[int, str], dict[int, ReportedJob]] = field(default_factory=lambda: defaultdict(dict))
    """By run and job name: the reports of each attempt."""
    head_at_comment: dict[int, str] = field(default_factory=dict)

    # Input of the relay

    def note_recorded(self, guids: set[str]) -> None:
        for guid in guids - self.recorded.keys():
            self.recorded[guid] = self.in_force

    def add_report(self, run: WorkflowRun, attempt: int, name: str, conclusion: str | None) -> None:
        job = self.reported[run.id, name].setdefault(attempt, ReportedJob())
        job.conclusion = job.conclusion or conclusion

    def has_ended(self, run: WorkflowRun, attempt: int, name: str) -> bool:
        """Whether this attempt of the job has reported its end."""
        job = self.reported.get((run.id, name), {}).get(attempt)
        return job is not None and job.conclusion is not None

    # The gate

    def passes(self, head: str, now: datetime, *, looked_up: bool) -> bool:
        """Whether the gate passes for every open pull request with this head.

        `looked_up`: the relay has read everything that GitHub knows.
        """
        events = self._open_events(head)
        return bool(events) and all(self._passes_for(event, now, looked_up=looked_up) for event in events)

    def newest_run_died_unreported(self, head: str) -> bool:
        """Whether a backend was dispatched again and that run ended badly without a report.

        Then the gate may say that the backend is missing, though an earlier run of the same delivery passed.
        """
        newest = [
            self._runs(entry.name, event.guid)[-1:]
            for event in self._open_events(head)
            for entry in self.recorded[event.guid]
        ]
        return any(
            not list(self._names(run)) and run.conclusion not in {None, "success"}
            for runs in newest
            for run in runs
        )

    def _open_events(self, head: str) -> list[PullEvent]:
        """The newest event of each open pull request whose head this is."""
        newest = {event.number: event for event in sorted(self._events(), key=lambda each: each.place)}
        return [event for event in newest.values() if event.head == head and event.is_open]

    def _events(self) -> Iterator[PullEvent]:
        seen: set[str] = set()
        for delivery in sorted(self.github.world.deliveries, key=lambda each: each.id):
            if delivery.guid in self.recorded and delivery.guid not in seen:
                seen.add(delivery.guid)
                if event := _event(delivery):
                    yield event

    def _passes_for(self, event: PullEvent, now: datetime, *, looked_up: bool) -> bool:
        gating = {each.name: each for each in self.in_force}
        members = [gating[each.name] for each in self.recorded[event.guid] if each.name in gating]
        left_out = {each.name for each in self.recorded[event.guid] if not each.concerned}
        return all(
            (each.name in left_out and not self._runs(each.name, event.guid))
            or self.backend_passes(each, event, now, looked_up=looked_up)
            for each in members
        )

    def backend_passes(self, entry: GatingEntry, event: PullEvent, now: datetime, *, looked_up: bool) -> bool:
        waived = set(self._waived(entry.name, event, now, obeyed=looked_up))
        if None in waived:
            return True
        runs = self._runs(entry.name, event.guid)
        late = bool(runs) and now >= runs[0].created_at + LATE
        run = self._newest_reported_run(runs)
        results = {name: self._result(run, name) for name in self._names(run)}
        for name, result in results.items():
            if result not in HARMLESS and not (name in waived and (result is not None or late)):
                return False
        missing = set(entry.jobs or ()) - results.keys()
        if missing - (waived if late else set()):
            return False
        if not missing and not (results and self._over(run)):
            return False
        return not results or any(result not in {"skipped", "neutral"} for result in results.values())

    def _runs(self, name: str, guid: str) -> list[WorkflowRun]:
        return [run for run in self.github.runs(name) if run.delivery_id == guid]

    def _newest_reported_run(self, runs: list[WorkflowRun]) -> WorkflowRun | None:
        """The newest run with a report."""
        return next((run for run in reversed(runs) if list(self._names(run))), None)

    def _names(self, run: WorkflowRun | None) -> Iterator[str]:
        return (name for run_id, name in list(self.reported) if run is not None and run_id == run.id)

    def _result(self, run: WorkflowRun | None, name: str) -> str | None:
        """The reported conclusion of the last attempt, or GitHub's when that is worse; None while the job is open.

        A passing report stays open until GitHub's own job has ended.
        """
        if run is None:
            return None
        attempts = self.reported[run.id, name]
        attempt = max(attempts)
        reported = attempts[attempt].conclusion
        on_github = next(job.conclusion for job in run.attempts[attempt] if job.name == name)
        if reported in HARMLESS and on_github not in HARMLESS:
            return on_github
        return reported

    def _over(self, run: WorkflowRun | None) -> bool:
        """Whether all jobs of the last reported attempt have ended on GitHub."""
        if run is None:
            return False
        attempt = max(attempt for name in self._names(run) for attempt in self.reported[run.id, name])
        return all(job.conclusion for job in run.attempts[attempt])

    # Waivers

    def _waived(self, name: str, event: PullEvent, now: datetime, *, obeyed: bool) -> Iterator[str | None]:
        """Jobs, or None for the whole backend, that a maintainer's comment covers on this head."""
        pull = self._pull(event.number)
        in_force: dict[str | None, list[Comment]] = defaultdict(list)
        for comment in self.github.comments(pull):
            words = comment.body.split()
            answers = {each.content for each in comment.reactions}
            if comment.author.login not in MAY_WAIVE or "-1" in answers or (obeyed and "+1" not in answers):
                continue
            if words[:2] == ["/crcr", "unwaive"] and "+1" in answers:
                in_force.pop(_job(words[2], name), None)
            elif words[:2] == ["/crcr", "waive"] and words[2].partition(":")[0] == name:
                in_force[_job(words[2], name)].append(comment)
        for job, comments in in_force.items():
            if any(self._holds(each, event.head, now) for each in comments):
                yield job

    def _holds(self, comment: Comment, head: str, now: datetime) -> bool:
        words = comment.body.split()
        if "until" not in words:
            return self.head_at_comment[comment.id] == head
        hours = int(words[words.index("until") + 1].removesuffix("h"))
        answered = max([comment.created_at, *(each.created_at for each in comment.reactions)])
        pending = not comment.reactions
        return pending or now < answered + timedelta(hours=hours)

    def _pull(self, number: int) -> PullRequest:
        return self.github.world.pulls[(self.github.repository(UPSTREAM).id, number)]


def _job(target: str, name: str) -> str | None:
    """The job of `owner/repo:job`, or None for the whole backend; the unchanged target for another backend."""
    backend, _, job = target.partition(":")
    return (job or None) if backend == name else target


def _event(delivery: WebhookDelivery) -> PullEvent | None:
    if delivery.event != "pull_request" or delivery.action not in OPENING | {"closed"}:
        return None
    body = json.loads(delivery.payload)
    pull = body["pull_request"]
    return PullEvent(
        delivery.id, delivery.guid, pull["number"], pull["head"]["sha"], delivery.action in OPENING
    )
