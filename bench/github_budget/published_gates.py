"""Records every gate state that the simulated GitHub received and every call that it refused by a rate limit.

It listens to calls, because the simulator drops old records.
"""

import json
from collections import Counter
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from github_sim.github import Call, GitHub

GATE = "crcr/gate"
_CHECK_RUNS = "/repos/{owner}/{repo}/check-runs"


@dataclass(frozen=True, slots=True)
class PublishedGate:
    """A gate's state from the moment that GitHub shows it: passed, failed, pending, or over (cancelled)."""

    at: datetime
    head_sha: str
    state: str


class CallListener:
    def __init__(self, github: GitHub) -> None:
        self._github = github
        self.gates: list[PublishedGate] = []
        self.refused: Counter[int] = Counter()
        """Calls that GitHub refused by one of its limits, by installation."""
        github.on_call.append(self._record)

    def _record(self, call: Call) -> None:
        if call.status in {403, 429} and call.installation_id is not None:
            self.refused[call.installation_id] += 1
        if not 200 <= call.status < 300 or call.route is None or not call.route.startswith(_CHECK_RUNS):
            return
        if call.method == "POST":
            body = json.loads(call.body)
            self._record_gate(call.at, body["name"], body["head_sha"], body)
        elif call.method == "PATCH":
            check = self._github.world.check_runs[int(call.path.rsplit("/", 1)[1])]
            self._record_gate(call.at, check.name, check.head_sha, json.loads(call.body))

    def _record_gate(self, at: datetime, name: str, head_sha: str, body: dict[str, Any]) -> None:
        if name == GATE:
            self.gates.append(PublishedGate(at, head_sha, _state(body)))


def _state(body: dict[str, Any]) -> str:
    if body.get("status") != "completed":
        return "pending"
    return {"success": "passed", "failure": "failed"}.get(body.get("conclusion", ""), "over")
