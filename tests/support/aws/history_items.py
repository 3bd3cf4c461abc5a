"""Made-up history of the public relay, as items of its table; and what their numbers must be, counted another way.

`expected_sums` is written from the rules in docs, without the relay's code: results of the newest attempt, of the newest run,
of the newest head count; earlier and superseded ones are counted apart.
"""

import json
import random
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

Item = dict[str, Any]
BACKENDS = ("org/alpha", "org/Beta", "org/gamma")
JOBS = ("build", "test (cuda, 3.12)", "lint")
LISTED = "L2:\n" + "".join(f"  - {name}\n" for name in BACKENDS)
CONCLUSIONS = ("success",) * 6 + ("failure", "failure", "timed_out", "cancelled", "neutral")
_PASS, _OTHER = {"success"}, {"cancelled", "neutral", "skipped"}


@dataclass(frozen=True)
class MadeUpHistory:
    items: list[Item]
    not_taken: Counter[str]
    """How many of the items must not be taken, by a word of the reason."""


def make_history(
    count: int, upstream: str, until: datetime, *, days: int = 40, seed: int = 1
) -> MadeUpHistory:
    chance, not_taken = random.Random(seed), Counter[str]()
    items: list[Item] = []
    since, numbers = until - timedelta(days=days), iter(range(1, 10**9))
    while len(items) < count:
        backend, at = (
            chance.choice(BACKENDS),
            since + timedelta(seconds=chance.randrange(days * 86_400 - 40_000)),
        )
        kind = chance.choices(("pull_request", "push", "nightly"), (8, 2, 1))[0]
        number = chance.randrange(1, 1 + count // 12) if kind == "pull_request" else 0
        sha = f"{chance.getrandbits(160):040x}"
        delivery = sha if kind == "nightly" else f"{next(numbers):08d}-aaaa-bbbb-cccc-{seed:012d}"
        runs = [next(numbers)] if chance.random() < 0.95 else [next(numbers), next(numbers)]
        for run in runs:
            for job in JOBS:
                for attempt in range(1, 3 if chance.random() < 0.1 else 2):
                    legs = 2 if job == "lint" and chance.random() < 0.2 else 1
                    for _ in range(legs):
                        began = at + timedelta(seconds=chance.randrange(10, 600) + 7200 * (attempt - 1))
                        items.append(
                            _item(
                                chance,
                                upstream,
                                backend,
                                delivery,
                                kind,
                                number,
                                sha,
                                run,
                                attempt,
                                job,
                                next(numbers),
                                began,
                            )
                        )
    items = items[:count]
    for item, (word, change) in zip(
        chance.sample(items, min(len(items) // 20, 400)), _damages(until), strict=False
    ):
        # A self-report that has not ended is no report at all.
        is_unreadable = word == "ended" and item["event_type"] == "nightly"
        item.update(change)
        not_taken["can" if is_unreadable else word] += 1
    chance.shuffle(items)
    return MadeUpHistory(items, not_taken)


def _damages(until: datetime) -> Iterator[tuple[str, Item]]:
    old = (until - timedelta(days=500)).isoformat()
    while True:
        yield "upstream", {"upstream_repo": "someone/else"}
        yield "ended", {"status": "in_progress"}
        yield "can", {"job_name": ""}
        yield "can", {"conclusion": "exploded"}
        yield "counted", {"event_type": "workflow_dispatch"}
        yield "older", {"started_at": old, "completed_at": old}
        yield "neither", {"started_at": None, "completed_at": None}


def _item(
    chance: random.Random, upstream: str, backend: str, delivery: str, kind: str, number: int, sha: str,
    run: int, attempt: int, job: str, check_run: int, began: datetime,
) -> Item:  # fmt: skip
    took = chance.randrange(20, 5000)
    ended = began + timedelta(seconds=took)
    return {
        "dynamoKey": f"{backend}/{delivery}/CI/{job}/{check_run}",
        "status": "completed",
        "downstream_repo": backend,
        "upstream_repo": upstream,
        "pr_number": number,
        "pytorch_head_sha": sha,
        "delivery_id": delivery,
        "workflow_run_url": f"https://github.com/{backend}/actions/runs/{run}",
        "workflow_name": "CI",
        "job_name": job,
        "check_run_id": str(check_run),
        "run_id": str(run),
        "run_attempt": attempt,
        "conclusion": chance.choice(CONCLUSIONS),
        "started_at": began.isoformat().replace("+00:00", "Z"),
        "completed_at": ended.isoformat().replace("+00:00", "Z"),
        "event_type": kind,
        "downstream_repo_level": "L2",
        "execution_time": float(took),
        **({"queue_time": float(chance.randrange(1, 900))} if attempt == 1 else {}),
        **({"total_tests": 5, "passed_tests": 5} if chance.random() < 0.3 else {}),
    }


def attributes(item: Mapping[str, Any]) -> dict[str, dict[str, str]]:
    """The item in DynamoDB's own form."""
    return {
        name: {"S": value} if isinstance(value, str) else {"N": str(value)}
        for name, value in item.items()
        if value is not None
    }


Sums = dict[tuple[str, str, str], Counter[str]]
"""By backend, kind and day."""


def expected_sums(items: list[Item], upstream: str, now: datetime, keep_days: int = 400) -> Sums:
    taken = [item for item in items if _counts(item, upstream, now, keep_days)]
    newest_attempt: dict[tuple[str, ...], int] = {}
    newest_run: dict[tuple[str, ...], int] = {}
    heads: defaultdict[tuple[str, int], dict[str, tuple[float, str]]] = defaultdict(dict)
    names = _leg_names(taken)
    for item in taken:
        job = _job(item, names)
        newest_attempt[job] = max(newest_attempt.get(job, 0), item["run_attempt"])
        workflow = (item["downstream_repo"], item["delivery_id"])
        if item["event_type"] != "nightly":
            newest_run[workflow] = max(newest_run.get(workflow, 0), int(item["run_id"]))
        if item["event_type"] == "pull_request":
            sent = _began(item) - item.get("queue_time", 0.0)
            of_pull = heads[item["downstream_repo"], item["pr_number"]]
            known = of_pull.get(item["delivery_id"], (sent, ""))
            of_pull[item["delivery_id"]] = (min(known[0], sent), item["pytorch_head_sha"])
    sums: Sums = defaultdict(Counter)
    for item in taken:
        day = datetime.fromtimestamp(_began(item), now.tzinfo).strftime("%Y-%m-%d")
        place = sums[item["downstream_repo"].lower(), item["event_type"], day]
        old_run = int(item["run_id"]) < newest_run.get((item["downstream_repo"], item["delivery_id"]), 0)
        if old_run or _has_newer_head(item, heads):
            place["superseded"] += 1
        elif item["run_attempt"] < newest_attempt[_job(item, names)]:
            place["earlier"] += 1
        else:
            outcome = item["conclusion"]
            counted = "success" if outcome in _PASS else "other" if outcome in _OTHER else outcome
            place[counted] += 1
            if counted != "other":
                place["queue_sum_s"] += int(item.get("queue_time", 0))
                place["execution_sum_s"] += int(item["execution_time"])
    return {key: +counts for key, counts in sums.items()}


def _leg_names(items: list[Item]) -> dict[str, str]:
    """Legs of a matrix that share a name in one attempt are jobs of their own: each by its place, in the order of check runs."""
    legs: defaultdict[tuple[Any, ...], list[tuple[int, str]]] = defaultdict(list)
    for item in items:
        legs[(*_run(item), item["run_attempt"], item["job_name"])].append(
            (int(item["check_run_id"]), item["dynamoKey"])
        )
    return {key: str(index) for keys in legs.values() for index, (_, key) in enumerate(sorted(keys))}


def _run(item: Item) -> tuple[str, str, str]:
    return item["downstream_repo"], item["delivery_id"], item["run_id"]


def _job(item: Item, names: dict[str, str]) -> tuple[str, ...]:
    return (*_run(item), item["job_name"], names[item["dynamoKey"]])


def _began(item: Item) -> float:
    return datetime.fromisoformat(item["started_at"]).timestamp()


def _has_newer_head(item: Item, heads: Mapping[tuple[str, int], Mapping[str, tuple[float, str]]]) -> bool:
    if item["event_type"] != "pull_request":
        return False
    of_pull = heads[item["downstream_repo"], item["pr_number"]]
    at, sha = of_pull[item["delivery_id"]]
    return any((sent, sha) != (at, other) and sent > at and other != sha for sent, other in of_pull.values())


def _counts(item: Item, upstream: str, now: datetime, keep_days: int) -> bool:
    return (
        item["upstream_repo"] == upstream
        and item["status"] == "completed"
        and bool(item["job_name"])
        and item["conclusion"] != "exploded"
        and item["event_type"] != "workflow_dispatch"
        and item["started_at"] is not None
        and _began(item) >= (now - timedelta(days=keep_days)).timestamp()
    )


def write_lines(items: list[Item], form: str) -> str:
    """Items as the lines of a file: `export` of DynamoDB to S3, or `rows`."""
    shaped = ({"Item": attributes(item)} if form == "export" else item for item in items)
    return "".join(json.dumps(line) + "\n" for line in shaped)
