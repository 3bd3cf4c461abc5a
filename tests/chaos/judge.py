"""What was lost, doubled or shown wrongly, counted from two sides: GitHub's world and the load's ledger against the
relay's own rows. Nothing here asks the relay's code what should be.
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
    # Unfinished runs are looked up for minutes, less and less often; the gates here go by what their jobs said.
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
        """One for each webhook about the upstream, in true order: its first attempt."""
        upstream = self.github.repository(UPSTREAM).id
        first: dict[str, WebhookDelivery] = {}
        for each in sorted(self.github.world.deliveries, key=lambda line: line.id):
            if each.repository_id == upstream:
                first.setdefault(each.guid, each)
        return list(first.values())

    @cached_property
    def acknowledged(self) -> set[str]:
        return {each.guid for each in self.github.world.deliveries if each.ok}

    @cached_property
    def arrived(self) -> Counter[Sent]:
        names = {self.github.repository(name).id: name for name in DOWNSTREAMS}
        return Counter(
            (each.delivery_id or "", names[each.repository_id]) for each in self.github.world.dispatches
        )

    def events_lost(self) -> list[str]:
        """Acknowledged, and not recorded or not sent where it had to be."""
        recorded = {row["guid"] for row in self.rows["deliveries"]}
        lost = [
            f"{each.guid} {each.event} {each.action} is not recorded"
            for each in self.webhooks
            if each.guid in self.acknowledged and each.guid not in recorded and _is_used(each)
        ]
        return lost + [
            f"{guid} never reached {name}" for guid, name in self._deserved() if not self.arrived[guid, name]
        ]

    def events_missed(self) -> list[str]:
        """Not acknowledged, and not found in GitHub's log either."""
        known = {row["guid"] for row in (*self.rows["deliveries"], *self.rows["recovered"])}
        unusable = [row["guid"] for row in self.rows["recovered"] if row["outcome"] == "unusable"]
        used = [each.guid for each in self.webhooks if _is_used(each)]
        return [guid for guid in used if guid not in self.acknowledged and guid not in known] + unusable

    def _deserved(self) -> Iterator[Sent]:
        """Which downstreams each recorded webhook had to reach; an older state of a pull request need not."""
        recorded = {row["guid"] for row in self.rows["deliveries"]}
        newest: dict[int, str] = {}
        for each in self.webhooks:
            if each.event == "pull_request" and each.action in DISPATCHED:
                newest[json.loads(each.payload)["number"]] = each.guid
        reused = {row["delivery"] for row in self.rows["dispatches"] if row["reason"] == "reused"}
        gone = {group.head_sha for group, _ in self.load.groups if group.state != "queued"}
        for each in self.webhooks:
            if each.guid not in recorded:
                continue
            if each.event == "push" or each.guid in newest.values():
                yield from ((each.guid, name) for name in DOWNSTREAMS)
            elif each.event == "merge_group" and each.action == "checks_requested":
                head = json.loads(each.payload)["merge_group"]["head_sha"]
                if head not in gone and each.guid not in reused:
                    yield from ((each.guid, name) for name in GATING)

    def doubled_unknown(self) -> list[str]:
        """Sent twice, and the relay's own record does not say that it may have been."""
        unsure = {(row["delivery"], row["downstream"]) for row in self.rows["dispatches"] if row["unsure"]}
        return [
            f"{key} came {times} times"
            for key, times in self.arrived.items()
            if times > 1 and key not in unsure
        ]

    def made_up(self) -> list[str]:
        """Sent, and no record of it: not even that it was tried."""
        known = {
            (row["delivery"], row["downstream"]) for row in self.rows["dispatches"] if row["attempted_at"]
        }
        return [f"{key} came from nowhere" for key in self.arrived if key not in known]

    # Results

    def results_lost(self) -> list[str]:
        """Acknowledged, and not in the record with just that conclusion."""
        found = {_job_key(row): row for row in self.rows["jobs"]}
        lost = []
        for told in self.load.ledger:
            if told.acknowledged:
                row = found.get((told.delivery, told.downstream, str(told.run_id), told.attempt, told.job))
                if row is None or (told.status == "completed" and row["conclusion"] != told.conclusion):
                    lost.append(f"{told} is {row and (row['state'], row['conclusion'])}")
        return lost

    def results_doubled(self) -> list[str]:
        """Every sum is what the rows of jobs and dispatches add up to, and no job stands there that nobody told of."""
        jobs, dispatches = self.rows["jobs"], self.rows["dispatches"]
        hours = stored_sums(self.rows["hours"], "upstream", "downstream", "kind", "hour_at")
        found = differences(backend_sums(jobs, dispatches, HOUR_US), hours)
        found += differences(backend_sums(jobs, dispatches, DAY_US), stored_sums(self.rows["days"], *_DAYS))
        job_days = stored_sums(self.rows["job_days"], *_DAYS, "workflow", "job_name")
        found += differences(day_sums(jobs, dispatches), job_days)
        told = {
            (each.delivery, each.downstream, str(each.run_id), each.attempt, each.job)
            for each in self.load.ledger
        }
        return found + [f"nobody told of {_job_key(row)}" for row in jobs if _job_key(row) not in told]

    def refused(self) -> list[str]:
        return [f"{each}" for each in self.load.ledger if each.refused and not each.acknowledged]

    def untold(self) -> list[str]:
        return [f"{each}" for each in self.load.ledger if not each.acknowledged and not each.refused]

    # The gate

    def gates_wrong(self) -> list[str]:
        """The gate of each open head, as GitHub shows it, against what GitHub and the jobs know."""
        truth, now = self._truth(), datetime.now(UTC)
        found: list[str] = []
        for pull in self._open_pulls():
            passes = truth.passes(pull.head_sha, now, looked_up=True)
            found += self._differs(f"#{pull.number}", pull.head_sha, passes=passes)
        for group, pull in self.load.groups:
            if group.state == "queued":
                passes = self._group_passes(truth, group, pull, now)
                found += self._differs(f"group of #{pull.number}", group.head_sha, passes=passes)
        return found

    def _differs(self, name: str, head: str, *, passes: bool) -> Iterator[str]:
        check = self.github.latest_checks(UPSTREAM, head).get(GATE)
        shown = "absent" if check is None else str(check.conclusion or "pending")
        wanted = "success" if passes else "failure"
        if shown != wanted:
            title = check.output.get("title") if check else None
            yield f"{name} {head[:12]} shows {shown} ({title}), not {wanted}"

    def _open_pulls(self) -> list[PullRequest]:
        return [pull for pull in self.github.world.pulls.values() if pull.state == "open"]

    def _truth(self) -> GateOracle:
        truth = GateOracle(self.github, tuple(GatingEntry(name, JOBS) for name in GATING))
        truth.note_recorded({row["guid"] for row in self.rows["deliveries"]})
        for told in self.load.ledger:
            if told.acknowledged:
                truth.add_report(self.github.world.runs[told.run_id], told.attempt, told.job, told.conclusion)
        return truth

    def _group_passes(self, truth: GateOracle, group: MergeGroup, pull: PullRequest, now: datetime) -> bool:
        guid = self._group_guid(group)
        if not any(self.arrived[guid, name] for name in GATING):
            return truth.passes(pull.head_sha, now, looked_up=True)  # its content is that of the head
        event = PullEvent(0, guid, group.number, group.head_sha, is_open=True)
        return all(truth.backend_passes(each, event, now, looked_up=True) for each in truth.in_force)

    def _group_guid(self, group: MergeGroup) -> str:
        for each in self.webhooks:
            if (
                each.event == "merge_group"
                and json.loads(each.payload)["merge_group"]["head_sha"] == group.head_sha
            ):
                return each.guid
        raise LookupError(group.head_sha)

    def opened_wrongly(self) -> list[str]:
        """Greens that were published before every gating job had said that it passed."""
        passed: dict[tuple[str, str, str], datetime] = {}
        for told in self.load.ledger:
            if told.conclusion == "success":
                key = told.delivery, told.downstream, told.job
                passed[key] = min(told.first_sent_at, passed.get(key, told.first_sent_at))
        guids = self._guids_by_head()
        return [
            f"the gate of {head[:12]} was opened at {at}"
            for head, at in self._greens()
            if not any(self._had_passed(passed, guid, at) for guid in guids[head])
        ]

    def _had_passed(self, passed: dict[tuple[str, str, str], datetime], guid: str, at: datetime) -> bool:
        times = [passed.get((guid, name, job)) for name in GATING for job in JOBS]
        return all(each is not None and each <= at for each in times)

    def _guids_by_head(self) -> dict[str, set[str]]:
        found: dict[str, set[str]] = defaultdict(set)
        for each in self.webhooks:
            if each.event == "pull_request":
                found[json.loads(each.payload)["pull_request"]["head"]["sha"]].add(each.guid)
        for group, pull in self.load.groups:
            found[group.head_sha] |= {self._group_guid(group), *found[pull.head_sha]}
        return found

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


def _is_used(each: WebhookDelivery) -> bool:
    if each.event == "pull_request":
        return each.action in DISPATCHED
    return each.event == "push" or (each.event == "merge_group" and each.action == "checks_requested")


def _job_key(row: dict[str, Any]) -> tuple[str, str, str, int, str]:
    return row["delivery"], row["downstream"], row["run_id"], row["attempt"], row["reported_name"]
