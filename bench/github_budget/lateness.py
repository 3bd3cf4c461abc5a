"""Delays of a relay's gates and effects, from its store and from the gates that the simulated GitHub received.

Triggers record what the tables do not keep: every state of a gate, and when each effect was first due.
A gate is *late* for as long as GitHub shows another state than the one that the relay has committed. An effect's age
is the time from its first due moment to its end. A look-up that GitHub answered with "not over yet" is due again at its
next poll, and a second look-up of the same dispatch is due when the first has ended. A re-run whose run is not over
yet is due again at its next poll as well.
"""

import sqlite3
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from bench.github_budget.published_gates import PublishedGate

_DECIDED = ("passed", "failed", "pending")
_TRIGGERS = """
CREATE TABLE decided_gates (head_sha TEXT, state TEXT, at INTEGER);
CREATE TRIGGER gate_decided AFTER INSERT ON gates
  BEGIN INSERT INTO decided_gates VALUES (new.head_sha, new.state, new.judged_at); END;
CREATE TRIGGER gate_changed AFTER UPDATE ON gates WHEN new.state <> old.state
  BEGIN INSERT INTO decided_gates VALUES (new.head_sha, new.state, new.judged_at); END;
CREATE TABLE due_effects (effect_id INTEGER PRIMARY KEY, first_due INTEGER);
CREATE TRIGGER effect_added AFTER INSERT ON effects
  BEGIN INSERT INTO due_effects VALUES (new.effect_id, new.due_at); END;
CREATE TRIGGER effect_hastened AFTER UPDATE OF due_at ON effects WHEN new.due_at < old.due_at
  BEGIN UPDATE due_effects SET first_due = min(first_due, new.due_at) WHERE effect_id = new.effect_id; END;
CREATE TRIGGER effect_polls AFTER UPDATE OF due_at ON effects
  WHEN (new.kind = 'look_up' OR new.last_error = 'the run is not over yet')
  AND new.due_at > old.due_at AND old.state = 'claimed' AND new.held_by IS NULL
  BEGIN UPDATE due_effects SET first_due = new.due_at WHERE effect_id = new.effect_id; END;
"""
_EFFECTS = """
SELECT e.kind, e.target, e.lane, e.state, d.first_due, e.finished_at
FROM effects e JOIN due_effects d USING (effect_id) WHERE e.state <> 'cancelled' ORDER BY e.effect_id
"""


@dataclass(frozen=True, slots=True)
class EffectAge:
    kind: str
    target: str
    seconds: float
    """From its first due moment to its end, or to the end of the run when it never ended."""
    ended: bool


@dataclass(frozen=True, slots=True)
class GateDelay:
    head_sha: str
    state: str
    seconds: float
    published: bool


class StoreLog:
    """Adds triggers to a relay's new SQLite store, and reads what they recorded."""

    def __init__(self, path: Path) -> None:
        self._path = path
        with sqlite3.connect(path) as connection:
            connection.executescript(_TRIGGERS)
        connection.close()

    def effect_ages(self, now: datetime) -> list[EffectAge]:
        """The ages of all effects that were due by now."""
        ages: list[EffectAge] = []
        polled_until: dict[tuple[str, str], int] = {}
        for kind, target, lane, state, first_due, finished_at in self._rows(_EFFECTS):
            ended_at, due_at = finished_at or _to_us(now), first_due
            if kind == "look_up":
                due_at = max(due_at, polled_until.get((target, lane), 0))
                polled_until[target, lane] = ended_at
            if due_at > _to_us(now):
                continue
            seconds = (ended_at - due_at) / 1e6
            ages.append(EffectAge(kind, target, max(seconds, 0.0), ended=state == "done"))
        return ages

    def parked(self) -> Counter[str]:
        """Number of effects that were given up, by kind."""
        return Counter(row[0] for row in self._rows("SELECT kind FROM effects WHERE state = 'parked'"))

    def gate_delays(self, shown: Sequence[PublishedGate], now: datetime) -> list[GateDelay]:
        """Every time that a committed state of a gate differed from the one that GitHub showed."""
        decided: dict[str, list[tuple[datetime, str]]] = defaultdict(list)
        for head_sha, state, at in self._rows("SELECT head_sha, state, at FROM decided_gates ORDER BY rowid"):
            decided[head_sha].append((_from_us(at), state))
        on_github: dict[str, list[PublishedGate]] = defaultdict(list)
        for gate in shown:
            on_github[gate.head_sha].append(gate)
        return [
            delay
            for head_sha, states in decided.items()
            for delay in _delays(head_sha, states, on_github[head_sha], now)
        ]

    def count(self, sql: str) -> int:
        return int(self._rows(sql)[0][0])

    def _rows(self, sql: str) -> list[tuple[Any, ...]]:
        connection = sqlite3.connect(self._path)
        try:
            return connection.execute(sql).fetchall()
        finally:
            connection.close()


def _delays(
    head_sha: str, decided: list[tuple[datetime, str]], shown: list[PublishedGate], now: datetime
) -> list[GateDelay]:
    """Follow both histories of one gate. A decision that changes back before it was published costs no delay.

    A gate of a closed head ends without a decision: GitHub then shows it as over, or never had it.
    """
    moments = sorted(
        [(at, 0, state) for at, state in decided if state in _DECIDED]
        + [(gate.at, 1, gate.state) for gate in shown]
    )
    let_go = decided[-1][1] not in _DECIDED
    committed = visible = None
    since: datetime | None = None
    delays = []
    for at, is_shown, state in moments:
        if is_shown:
            visible = state
        else:
            committed = state
        differs = committed is not None and visible not in {committed, "over"}
        if differs and since is None:
            since = at
        elif not differs and since is not None:
            if is_shown:
                delays.append(GateDelay(head_sha, state, (at - since).total_seconds(), published=True))
            since = None
    if since is not None and not let_go:
        delays.append(GateDelay(head_sha, str(committed), (now - since).total_seconds(), published=False))
    return delays


def _to_us(at: datetime) -> int:
    return (at - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1)


def _from_us(at: int) -> datetime:
    return datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=at)
