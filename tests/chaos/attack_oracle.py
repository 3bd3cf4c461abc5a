"""Decide whether a green gate is right from GitHub's own records only: dispatches, runs, comments, branches and names.

It uses neither the relay's code nor its tables, except which webhooks the relay has recorded and which runs it knows.
It checks necessary conditions of a green gate only: a result that was never reported to the relay is no contradiction.
"""

import json
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from fnmatch import fnmatchcase

from github_sim.github import Comment, GitHub, MergeGroup, PullRequest, WorkflowRun
from github_sim.world.git_content import diff_trees
from github_sim.world.records import RepositoryDispatch
from github_sim.world.world import merge_base
from support.running_relay import UPSTREAM

HARMLESS = frozenset({"success", "skipped", "neutral"})
WAIVING = frozenset({"maintainer"})


@dataclass(frozen=True)
class Gating:
    """An L4 entry: the repository behind its name, and the options that exclude it."""

    repository_id: int
    paths: tuple[str, ...] = ()
    labels: tuple[str, ...] = ()
    names_jobs: bool = True
    """Whether its `jobs` are literal names; others are never excused."""


@dataclass(frozen=True)
class Head:
    """The state of a pull request in a webhook."""

    guid: str
    number: int
    sha: str
    base: str
    labels: frozenset[str]
    is_open: bool


@dataclass
class Oracle:
    github: GitHub
    in_force: tuple[Gating, ...]
    members: dict[str, tuple[Gating, ...]] = field(default_factory=dict)
    """For each recorded webhook: the gating entries when it was recorded."""
    seen_runs: set[int] = field(default_factory=set)
    reported_attempts: dict[int, int] = field(default_factory=lambda: defaultdict(int))
    """By run: the highest attempt that was reported to the relay."""
    state_at_comment: dict[int, tuple[str, str]] = field(default_factory=dict)
    """By comment: head and base of the pull request when the comment was written."""
    former_names: dict[str, int] = field(default_factory=dict)
    pre_existing: set[tuple[int, int, str]] = field(default_factory=set)
    """Run, attempt and name of each failed job that reported only what fails on the base; empty without excuses."""

    def note_recorded(self, guids: set[str]) -> None:
        for guid in guids - self.members.keys():
            self.members[guid] = self.in_force

    # A pull request

    def is_recorded(self, pull: PullRequest) -> bool:
        """Whether any webhook of the pull request is recorded; before that, GitHub shows the gate of the commit."""
        return any(head.guid in self.members for head in self.heads(pull.number))

    def wrong_for_pull(self, pull: PullRequest, now: datetime) -> str | None:
        """The reason why the gate on the pull request's head must not be green, judged by the recorded webhooks."""
        heads = [head for head in self.heads(pull.number) if head.guid in self.members]
        if not heads or heads[-1].sha != pull.head_sha:
            return "its head was never recorded"
        return self._wrong_for_head(pull, heads, now)

    def _wrong_for_head(self, pull: PullRequest, heads: list[Head], now: datetime) -> str | None:
        current = heads[-1]
        same = list(self._since_last_change(heads))
        for gating in self._members(same):
            if self._is_waived(gating, pull, current, now) or self._passed(
                gating, current.sha, pull, current.base
            ):
                continue
            dispatched = self._dispatches(gating, current.sha, current.base, pull.number)
            if dispatched or self._is_affected(gating, pull, same):
                return f"{self._name(gating)} has not passed {current.sha[:7]} on {current.base}"
        return None

    def _since_last_change(self, heads: list[Head]) -> Iterator[Head]:
        """The newest webhooks that all show the same head and base."""
        current = heads[-1]
        for head in reversed(heads):
            if (head.sha, head.base) != (current.sha, current.base):
                return
            yield head

    def _members(self, heads: list[Head]) -> list[Gating]:
        """Entries that gated when the newest of these webhooks was recorded and still gate, with their current options."""
        recorded_ids = {gating.repository_id for head in heads[:1] for gating in self.members[head.guid]}
        return [gating for gating in self.in_force if gating.repository_id in recorded_ids]

    def _is_affected(self, gating: Gating, pull: PullRequest, heads: list[Head]) -> bool:
        # A label that was added and removed without a recorded webhook excludes no backend: current labels decide.
        if gating.labels and not heads[0].labels & set(gating.labels):
            return False
        return self._touches(gating, pull.number, pull.head_sha, heads[0].base)

    def _changed(self, sha: str, base: str) -> set[str]:
        """Files that differ between the head and its merge base with the base branch or the default branch."""
        repository = self.github.repository(UPSTREAM)
        paths: set[str] = set()
        for branch in {base, repository.default_branch} & repository.branches.keys():
            common = merge_base(repository, repository.branches[branch], sha)
            before = repository.commits[common].tree if common else {}
            paths |= set(diff_trees(before, repository.commits[sha].tree))
        return paths

    def heads(self, number: int) -> list[Head]:
        """Every webhook about the pull request, in the order in which GitHub created them."""
        seen: set[str] = set()
        found = []
        for delivery in sorted(self.github.world.deliveries, key=lambda webhook: webhook.id):
            if delivery.event == "pull_request" and delivery.guid not in seen:
                seen.add(delivery.guid)
                body = json.loads(delivery.payload)["pull_request"]
                if body["number"] == number:
                    labels = frozenset(label["name"] for label in body["labels"])
                    is_open = body["state"] == "open"
                    found.append(
                        Head(delivery.guid, number, body["head"]["sha"], body["base"]["ref"], labels, is_open)
                    )
        return found

    # Results

    def _passed(self, gating: Gating, sha: str, pull: PullRequest, base: str) -> bool:
        """Whether the runs of the newest dispatch for this head and base have passed."""
        dispatched = self._dispatches(gating, sha, base, pull.number)
        return bool(dispatched) and self._runs_passed(gating, dispatched[-1].delivery_id)

    def _dispatches(self, gating: Gating, sha: str, base: str, number: int) -> list[RepositoryDispatch]:
        matching = []
        for dispatch in self.github.world.dispatches:
            payload = dispatch.client_payload.get("payload", {})
            # A pair is another dispatch of the same event; it never counts.
            pull = payload.get("pull_request") if dispatch.event_type == "pull_request" else None
            if dispatch.repository_id == gating.repository_id and pull and payload.get("action") != "closed":
                subject = (pull["number"], pull["head"]["sha"], pull["base"]["ref"])
                matching += [dispatch] if subject == (number, sha, base) else []
        return matching

    def _runs_passed(self, gating: Gating, delivery: str | None, *, by_excuse: bool = True) -> bool:
        runs = [run for run in self._runs(gating) if run.delivery_id == delivery and run.id in self.seen_runs]
        newest = {run.workflow.path: run for run in sorted(runs, key=lambda run: run.id)}
        excusable = gating.names_jobs and by_excuse
        ends = [list(self._harmless_ends(run, excusable=excusable)) for run in newest.values()]
        return bool(ends) and all(ends) and any("success" in end for run in ends for end in run)

    def _harmless_ends(self, run: WorkflowRun, *, excusable: bool) -> Iterator[set[str | None]]:
        """The conclusions of each passed attempt at GitHub that is at least as new as the reported one.

        A failure that is known from the base may be excused and counts as a success here.
        """
        for attempt, jobs in run.attempts.items():
            excused = {
                job.name
                for job in jobs
                if excusable
                and job.conclusion == "failure"
                and (run.id, attempt, job.name) in self.pre_existing
            }
            ends = {"success" if job.name in excused else job.conclusion for job in jobs}
            if attempt >= self.reported_attempts[run.id] and ends <= HARMLESS:
                yield ends

    def _runs(self, gating: Gating) -> list[WorkflowRun]:
        return [run for run in self.github.world.runs.values() if run.repository_id == gating.repository_id]

    # People

    def _is_waived(self, gating: Gating, pull: PullRequest, head: Head, now: datetime) -> bool:
        """Whether a maintainer's comment that the relay accepted covers the backend on this head and base."""
        return any(
            self._holds(comment, head, now)
            for comment in self.github.comments(pull)
            if comment.author.login in WAIVING
            and "+1" in {reaction.content for reaction in comment.reactions}
            and comment.body.split()[:2] == ["/crcr", "waive"]
            and self._named(comment.body.split()[2]) == gating.repository_id
        )

    def _holds(self, comment: Comment, head: Head, now: datetime) -> bool:
        sha, base = self.state_at_comment[comment.id]
        words = comment.body.split()
        if "until" not in words:
            return (sha, base) == (head.sha, head.base)
        hours = int(words[words.index("until") + 1].removesuffix("h"))
        answered = max(reaction.created_at for reaction in comment.reactions)
        return base == head.base and now < answered + timedelta(hours=hours)

    def _named(self, name: str) -> int | None:
        """The repository that has, or ever had, this name."""
        return self.names.get(name)

    @property
    def names(self) -> dict[str, int]:
        present = {
            repository.full_name: repository.id for repository in self.github.world.repositories.values()
        }
        return {**self.former_names, **present}

    def _name(self, gating: Gating) -> str:
        return self.github.world.repositories[gating.repository_id].full_name

    # Merge groups

    def wrong_for_group(
        self, group: MergeGroup, pulls: dict[int, str], guid: str, now: datetime
    ) -> str | None:
        """The reason why the gate on the group's commit must not be green; `pulls` are the heads in the group."""
        if guid not in self.members:
            return "the group was never recorded"
        recorded = {entry.repository_id for entry in self.members[guid]}
        if len(pulls) == 1 and self._is_reused(group):
            return None
        for gating in (entry for entry in self.in_force if entry.repository_id in recorded):
            if not (self._group_passed(gating, group) or self._group_is_waived(gating, pulls, now)):
                concerned = any(
                    self._touches(gating, number, sha, group.base_ref) for number, sha in pulls.items()
                )
                if concerned or self._group_dispatches(gating, group):
                    return f"{self._name(gating)} has not passed the group {group.head_sha[:7]}"
        return None

    def _is_reused(self, group: MergeGroup) -> bool:
        """Whether the pull request's own head has the group's content and its gate has been green."""
        repository = self.github.repository(UPSTREAM)
        greens = [
            check
            for check in self.github.checks(UPSTREAM, group.pull_sha)
            if check.name == "crcr/gate" and check.conclusion == "success"
        ]
        same = repository.commits[group.pull_sha].tree == repository.commits[group.head_sha].tree
        return bool(greens) and same and not self._is_excused(group.pull_sha)

    def _is_excused(self, sha: str) -> bool:
        """Whether a backend passed this head only by an excuse, which does not count for a group."""
        return any(
            self._runs_passed(gating, dispatch.delivery_id)
            and not self._runs_passed(gating, dispatch.delivery_id, by_excuse=False)
            for gating in self.in_force
            for dispatch in self.github.world.dispatches
            if dispatch.repository_id == gating.repository_id
            and dispatch.event_type == "pull_request"
            and dispatch.client_payload.get("payload", {}).get("pull_request", {}).get("head", {}).get("sha")
            == sha
        )

    def _group_passed(self, gating: Gating, group: MergeGroup) -> bool:
        dispatched = self._group_dispatches(gating, group)
        return bool(dispatched) and self._runs_passed(gating, dispatched[-1].delivery_id)

    def _group_dispatches(self, gating: Gating, group: MergeGroup) -> list[RepositoryDispatch]:
        return [
            dispatch
            for dispatch in self.github.world.dispatches
            if dispatch.repository_id == gating.repository_id
            and dispatch.client_payload.get("payload", {}).get("merge_group", {}).get("head_sha")
            == group.head_sha
            and dispatch.client_payload["payload"]["action"] == "checks_requested"
        ]

    def _group_is_waived(self, gating: Gating, pulls: dict[int, str], now: datetime) -> bool:
        """Whether each pull request of the group passed the backend, or has it waived, at its own head."""
        for number, sha in pulls.items():
            pull = self._pull(number)
            heads = [head for head in self.heads(number) if head.guid in self.members]
            if not heads or heads[-1].sha != sha:
                return False
            if not self._is_waived(gating, pull, heads[-1], now) and not self._passed(
                gating, sha, pull, heads[-1].base
            ):
                return False
        return True

    def _touches(self, gating: Gating, number: int, sha: str, base: str) -> bool:
        changed = self._changed(sha, base)
        return not gating.paths or any(fnmatchcase(path, glob) for path in changed for glob in gating.paths)

    def _pull(self, number: int) -> PullRequest:
        return self.github.world.pulls[(self.github.repository(UPSTREAM).id, number)]


__all__ = ["Gating", "Oracle"]
