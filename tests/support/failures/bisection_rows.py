"""`BisectionRows`: bisections with their ranges and runs, inserted as the relay writes them."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from crcr.decide.bisection.search import RunResult
from crcr.record.schema.bisections import bisection_runs, bisections
from support.data.store_rows import UPSTREAM, StoreRows

PASSED, FAILED = RunResult.PASSED, RunResult.FAILED
Runs = Sequence[tuple[int, RunResult | None]]
"""The position and the result of each run, in order; None while it runs."""


def commit_sha(position: int) -> str:
    return f"{position:03x}" + "c0ffee" * 6 + "0"


def commit_title(position: int) -> str:
    return f"Change {position} of the operators (#{1000 + position})"


@dataclass
class BisectionRows:
    store: StoreRows

    def add(self, runs: Runs = (), *, commits: int = 12, **columns: Any) -> int:
        """Add a bisection of so many candidates; it runs unless `outcome` says how it ended."""
        titles: Mapping[int, str] = columns.pop("titles", {})
        listed = [
            [commit_sha(position), 1000 + position, titles.get(position, commit_title(position))]
            for position in range(commits + 1)
        ]
        bisection_id: int = columns.pop("bisection_id", None) or self.store.new_number()
        outcome = columns.get("outcome")
        row: dict[str, Any] = {
            "bisection_id": bisection_id,
            "upstream": UPSTREAM.key,
            "downstream": "good/backend",
            "workflow": ".github/workflows/ci.yml",
            "job_name": "build",
            "ref": "main",
            "commits": json.dumps(listed, ensure_ascii=False),
            "flake_rate": 0.01,
            "most_runs": 12,
            "who": "ada",
            "created_at": self.store.ago(hours=3),
            "ends_at": self.store.ago(hours=-21),
            "state": "finished" if outcome else "running",
            "left_good": 0,
            "left_bad": commits,
            "finished_at": self.store.ago(minutes=2) if outcome else None,
        }
        row |= columns
        if outcome == "found":
            row.setdefault("culprit", commit_sha(row["left_bad"]))
        self.store.add(bisections, row)
        for number, (position, result) in enumerate(runs, start=1):
            self._add_run(bisection_id, number, position, result)
        return bisection_id

    def _add_run(self, bisection_id: int, number: int, position: int, result: RunResult | None) -> None:
        failed = result in (RunResult.FAILED, RunResult.FAILED_OTHERWISE)
        row = {
            "bisection_id": bisection_id,
            "number": number,
            "upstream": UPSTREAM.key,
            "delivery": f"b-{bisection_id}-{number}",
            "position": position,
            "created_at": self.store.ago(minutes=180 - 12 * number),
            "result": result.value if result else None,
            "sample": "RuntimeError: aten::foo has no kernel for this device" if failed else None,
            "url": f"https://github.com/good/backend/actions/runs/{number}" if result else None,
            "finished_at": self.store.ago(minutes=171 - 12 * number) if result else None,
        }
        self.store.add(bisection_runs, row)
