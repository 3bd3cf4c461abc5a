"""Count what was lost, doubled or shown wrongly: compare the simulated GitHub and the load's ledger with the relay's rows.

The expectations do not use the relay's code.
"""

import json
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cached_property
from typing import Any

from chaos.installation import DOWNSTREAMS, GATE, GATING, JOBS, Installation
from chaos.load import Load
from github_sim.github import MergeGroup, PullRequest, WebhookDelivery
from support.data.sums_oracle import DAY_US, HOUR_US, backend_sums, day_sums, differences, stored_sums
from support.github.gate_oracle import GateOracle, GatingEntry, PullEvent
from support.running_relay import UPSTREAM

TABLES = ("deliveries", "dispatches", "recovered", "jobs", "hours", "days", "job_days")
DISPATCHED = frozenset({"opened", "reopened", "synchronize", "closed"})
CRASHES = (
    "request_crashed",
    "effect_crashed",
    "recovery_crashed",
    "loop_died",
    "Traceback",
    "Task exception",
    "never retrieved",
)
_DAYS = ("upstream", "downstream", "kind", "day_at")

Rows = dict[str, list[dict[str, Any]]]
Sent = tuple[str, str]
"""A delivery and a downstream."""


async def read_tables(installation: Installation) -> Rows:
    rows = {table: await installation.rows(f"SELECT * FROM {table}") for table in TABLES}  # noqa: S608 - our own names
    # Unfinished runs are looked up for minutes, with growing pauses; the gates here depend on the reports of their jobs.
    rows["open"] = await installation.rows(
        "SELECT kind, target, state, attempts, last_error FROM effects WHERE state IN ('waiting', 'claimed')"
        " AND kind <> 'look_up' AND due_at < (extract(epoch FROM now()) + 60) * 1000000"
    )
    rows["parked"] = await installation.rows(
        "SELECT kind, target, last_error FROM effects WHERE state = 'parked'"
    )
    return rows


@dataclass
class Judge:
    installation: Installation
    load: Load
    rows: Rows = field(default_factory=dict)

    @property
    def github(self) -> Any:
        return self.installation.github

    # Events

    @cached_property
    def webhooks(self) -> list[WebhookDelivery]:
        """The first attempt of each webhook about the upstream, in the order of creation."""
        upstream = self.github.repository(UPSTREAM).id
        first_attempts: dict[str, WebhookDelivery] = {}
        for webhook in sorted(self.github.world.deliveries, key=lambda line: line.id):
            if webhook.repository_id == upstream:
                first_attempts.setdefault(webhook.guid, webhook)
        return list(first_attempts.values())

    @cached_property
    def acknowledged(self) -> set[str]:
        return {webhook.guid for webhook in self.github.world.deliveries if webhook.ok}

    @cached_property
    def arrived(self) -> Counter[Sent]:
        names = {self.github.repository(name).id: name for name in DOWNSTREAMS}
        return Counter(
            (dispatch.delivery_id or "", names[dispatch.repository_id])
            for dispatch in self.github.world.dispatches
        )

    def events_lost(self) -> list[str]:
        """Acknowledged events that were not recorded, or not dispatched to a required downstream."""
        recorded = {row["guid"] for row in self.rows["deliveries"]}
        lost = [
            f"{webhook.guid} {webhook.event} {webhook.action} is not recorded"
            for webhook in self.webhooks
            if webhook.guid in self.acknowledged and webhook.guid not in recorded and _is_processed(webhook)
        ]
        return lost + [
            f"{guid} never reached {name}"
            for guid, name in self._required_dispatches()
            if not self.arrived[guid, name]
        ]

    def events_missed(self) -> list[str]:
        """Events that were neither acknowledged nor recovered from GitHub's log."""
        known = {row["guid"] for row in (*self.rows["deliveries"], *self.rows["recovered"])}
        unusable = [row["guid"] for row in self.rows["recovered"] if row["outcome"] == "unusable"]
        processed = [webhook.guid for webhook in self.webhooks if _is_processed(webhook)]
        return [guid for guid in processed if guid not in self.acknowledged and guid not in known] + unusable

    def _required_dispatches(self) -> Iterator[Sent]:
        """The downstreams that each recorded webhook had to reach; older states of a pull request are not required."""
        recorded = {row["guid"] for row in self.rows["deliveries"]}
        newest: dict[int, str] = {}
        for webhook in self.webhooks:
            if webhook.event == "pull_request" and webhook.action in DISPATCHED:
                newest[json.loads(webhook.payload)["number"]] = webhook.guid
        reused = {row["delivery"] for row in self.rows["dispatches"] if row["reason"] == "reused"}
        ended_groups = {group.head_sha for group, _ in self.load.groups if group.state != "queued"}
        for webhook in self.webhooks:
            if webhook.guid not in recorded:
                continue
            if webhook.event == "push" or webhook.guid in newest.values():
                yield from ((webhook.guid, name) for name in DOWNSTREAMS)
            elif webhook.event == "merge_group" and webhook.action == "checks_requested":
                head = json.loads(webhook.payload)["merge_group"]["head_sha"]
                if head not in ended_groups and webhook.guid not in reused:
                    yield from ((webhook.guid, name) for name in GATING)

    def doubled_unmarked(self) -> list[str]:
        """Dispatches that arrived twice without being marked as unsure in the relay's record."""
        unsure = {(row["delivery"], row["downstream"]) for row in self.rows["dispatches"] if row["unsure"]}
        return [
            f"{key} came {times} times"
            for key, times in self.arrived.items()
            if times > 1 and key not in unsure
        ]

    def dispatched_unrecorded(self) -> list[str]:
        """Dispatches that arrived without a record of an attempt."""
        known = {
            (row["delivery"], row["downstream"]) for row in self.rows["dispatches"] if row["attempted_at"]
        }
        return [f"{key} came from nowhere" for key in self.arrived if key not in known]

    # Results

    def results_lost(self) -> list[str]:
        """Acknowledged reports that are not recorded with their conclusion."""
        rows_by_job = {_job_key(row): row for row in self.rows["jobs"]}
        lost = []
        for report in self.load.ledger:
            if report.acknowledged:
                row = rows_by_job.get(
                    (report.delivery, report.downstream, str(report.run_id), report.attempt, report.job)
                )
                if row is None or (report.status == "completed" and row["conclusion"] != report.conclusion):
                    lost.append(f"{report} is {row and (row['state'], row['conclusion'])}")
        return lost

    def results_doubled(self) -> list[str]:
        """Sums that differ from the rows of jobs and dispatches, and recorded jobs that were never reported."""
        jobs, dispatches = self.rows["jobs"], self.rows["dispatches"]
        hours = stored_sums(self.rows["hours"], "upstream", "downstream", "kind", "hour_at")
        errors = differences(backend_sums(jobs, dispatches, HOUR_US), hours)
        errors += differences(backend_sums(jobs, dispatches, DAY_US), stored_sums(self.rows["days"], *_DAYS))
        job_days = stored_sums(self.rows["job_days"], *_DAYS, "workflow", "job_name")
        errors += differences(day_sums(jobs, dispatches), job_days)
        reported = {
            (report.delivery, report.downstream, str(report.run_id), report.attempt, report.job)
            for report in self.load.ledger
        }
        return errors + [f"nobody told of {_job_key(row)}" for row in jobs if _job_key(row) not in reported]

    def refused(self) -> list[str]:
        return [f"{report}" for report in self.load.ledger if report.refused and not report.acknowledged]

    def never_taken(self) -> list[str]:
        return [f"{report}" for report in self.load.ledger if not report.acknowledged and not report.refused]

    # The gate

    def gates_wrong(self) -> list[str]:
        """Gates of open heads at GitHub that differ from the oracle of GitHub's state and the jobs' reports."""
        truth, now = self._truth(), datetime.now(UTC)
        errors: list[str] = []
        for pull in self._open_pulls():
            passes = truth.passes(pull.head_sha, now, looked_up=True)
            errors += self._gate_difference(f"#{pull.number}", pull.head_sha, passes=passes)
        for group, pull in self.load.groups:
            if group.state == "queued":
                passes = self._group_passes(truth, group, pull, now)
                errors += self._gate_difference(f"group of #{pull.number}", group.head_sha, passes=passes)
        return errors

    def _gate_difference(self, name: str, head: str, *, passes: bool) -> Iterator[str]:
        check = self.github.latest_checks(UPSTREAM, head).get(GATE)
        shown = "absent" if check is None else str(check.conclusion or "pending")
        expected = "success" if passes else "failure"
        if shown != expected:
            title = check.output.get("title") if check else None
            yield f"{name} {head[:12]} shows {shown} ({title}), not {expected}"

    def _open_pulls(self) -> list[PullRequest]:
        return [pull for pull in self.github.world.pulls.values() if pull.state == "open"]

    def _truth(self) -> GateOracle:
        truth = GateOracle(self.github, tuple(GatingEntry(name, JOBS) for name in GATING))
        truth.note_recorded({row["guid"] for row in self.rows["deliveries"]})
        for report in self.load.ledger:
            if report.acknowledged:
                truth.add_report(
                    self.github.world.runs[report.run_id], report.attempt, report.job, report.conclusion
                )
        return truth

    def _group_passes(self, truth: GateOracle, group: MergeGroup, pull: PullRequest, now: datetime) -> bool:
        guid = self._group_guid(group)
        if not any(self.arrived[guid, name] for name in GATING):
            return truth.passes(pull.head_sha, now, looked_up=True)  # its content equals the head's
        event = PullEvent(0, guid, group.number, group.head_sha, is_open=True)
        return all(truth.backend_passes(gating, event, now, looked_up=True) for gating in truth.in_force)

    def _group_guid(self, group: MergeGroup) -> str:
        for webhook in self.webhooks:
            if (
                webhook.event == "merge_group"
                and json.loads(webhook.payload)["merge_group"]["head_sha"] == group.head_sha
            ):
                return webhook.guid
        raise LookupError(group.head_sha)

    def opened_wrongly(self) -> list[str]:
        """Green gates that were published before every gating job had reported success."""
        passed: dict[tuple[str, str, str], datetime] = {}
        for report in self.load.ledger:
            if report.conclusion == "success":
                key = report.delivery, report.downstream, report.job
                passed[key] = min(report.first_sent_at, passed.get(key, report.first_sent_at))
        guids = self._guids_by_head()
        return [
            f"the gate of {head[:12]} was opened at {at}"
            for head, at in self._greens()
            if not any(self._had_passed(passed, guid, at) for guid in guids[head])
        ]

    def _had_passed(self, passed: dict[tuple[str, str, str], datetime], guid: str, at: datetime) -> bool:
        times = [passed.get((guid, name, job)) for name in GATING for job in JOBS]
        return all(passed_at is not None and passed_at <= at for passed_at in times)

    def _guids_by_head(self) -> dict[str, set[str]]:
        guids: dict[str, set[str]] = defaultdict(set)
        for webhook in self.webhooks:
            if webhook.event == "pull_request":
                guids[json.loads(webhook.payload)["pull_request"]["head"]["sha"]].add(webhook.guid)
        for group, pull in self.load.groups:
            guids[group.head_sha] |= {self._group_guid(group), *guids[pull.head_sha]}
        return guids

    def _greens(self) -> Iterator[tuple[str, datetime]]:
        checks = self.github.world.check_runs
        for call in self.github.calls:
            if call.route is None or "/check-runs" not in call.route or call.method not in {"POST", "PATCH"}:
                continue
            if call.status not in {0, 200, 201}:
                continue
            body = json.loads(call.body)
            check = checks.get(int(call.path.rpartition("/")[2])) if call.method == "PATCH" else None
            name, head = (check.name, check.head_sha) if check else (body["name"], body["head_sha"])
            if name == GATE and body.get("conclusion") == "success":
                yield head, call.at

    # The processes

    def crashes(self) -> list[str]:
        lines = self.installation.logged()
        crashed = [str(line) for line in lines if any(word in str(line["event"]) for word in CRASHES)]
        return crashed + [str(end) for end in self.installation.ends if not end.is_fine]


def _is_processed(webhook: WebhookDelivery) -> bool:
    if webhook.event == "pull_request":
        return webhook.action in DISPATCHED
    return webhook.event == "push" or (
        webhook.event == "merge_group" and webhook.action == "checks_requested"
    )


def _job_key(row: dict[str, Any]) -> tuple[str, str, str, int, str]:
    return row["delivery"], row["downstream"], row["run_id"], row["attempt"], row["reported_name"]
