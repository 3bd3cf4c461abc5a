"""What ClickHouse keeps: its three tables by column, and how a fact of the main store becomes a row of one.

Each row's sorting key is what tells the fact apart and when it counts, so that a question about a window reads just
that. A fact that moves in time leaves a row behind that counts no more (`ended_as` empty, `sent` 0). The largest
`version` of a key is the one that holds.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from crcr.decide.statistics.window import ResultKind, result_kind
from crcr.record.store.database import Row

_TEXT, _WORD, _NUMBER, _FLAG = "String", "LowCardinality(String)", "Nullable(Int64)", "UInt8"
_MOMENT, _SECONDS = "DateTime64(6, 'UTC')", "Nullable(Float64)"
_PERHAPS = f"Nullable({_MOMENT})"
_TESTS = {f"tests_{each}": _NUMBER for each in ("passed", "failed", "skipped", "total")}
_MARKS = ("late", "disputed", "superseded", "unsigned")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class HistoryTable:
    """One table: `at` is the column of its time, `order` its sorting key, `gone` what a row has that counts no more."""

    name: str
    columns: Mapping[str, str]
    order: tuple[str, ...]
    at: str
    gone: Mapping[str, Any]
    make: Callable[[Row], dict[str, Any] | None] = field(repr=False)

    def rows(self, fact: Row, version: int, was_us: int = 0) -> list[list[Any]]:
        """The fact as it is, and as it no longer is where it stood before."""
        found = self.make(fact)
        if found is None:
            return []
        stands = found[self.at]
        made = [found] if stands is not None else []
        if was_us and was_us != stands:
            made.append({**found, self.at: was_us, **self.gone})
        return [[{**each, "version": version}[name] for name in self.columns] for each in made]


def _job(fact: Row) -> dict[str, Any] | None:
    kind = result_kind(fact["event"])
    if kind is None:
        return None
    return {
        **_result(fact),
        "kind": kind.value,
        "workflow": fact["workflow"],
        "began_at": fact["in_progress_at"],
        "first_conclusion": fact["first_conclusion"] or "",
        "verification": fact["verification"],
        **{name: fact[name] for name in _MARKS},
    }


def _dispatch(fact: Row) -> dict[str, Any] | None:
    kind = result_kind(fact["event"])
    if kind is None or fact["test"]:
        return None
    same = ("upstream", "downstream", "delivery", "event", "number", "level", "created_at", "sent_at")
    return {
        **{name: fact[name] for name in same},
        "kind": kind.value,
        "head_sha": fact["head_sha"] or "",
        "delay_s": fact["delay_s"] or 0.0,
        "sent": 1,
    }


def _ingested(fact: Row) -> dict[str, Any]:
    return {
        **_result(fact),
        "kind": ResultKind.INGESTED.value,
        "workflow": fact["workflow_name"],
        "check_run": fact["check_run"],
        "began_at": fact["seen_at"] if fact["started_at"] is None else fact["started_at"],
        "origin": fact["origin"],
    }


def _result(fact: Row) -> dict[str, Any]:
    """What our own jobs and other relays' have in common."""
    words = ("conclusion", "disputed_conclusion", "expected", "ended_as", "head_sha", "url")
    same = ("upstream", "downstream", "delivery", "workflow_name", "run_id", "attempt", "job_name", "event")
    more = ("number", "level", "state", "completed_at", "queue_s", "execution_s", *_TESTS)
    return {name: fact[name] for name in (*same, *more)} | {name: fact[name] or "" for name in words}


_OF_RESULT = {
    "event": _WORD,
    "number": _NUMBER,
    "head_sha": _TEXT,
    "level": "Nullable(Int8)",
    "state": _WORD,
    **dict.fromkeys(("conclusion", "disputed_conclusion", "expected", "ended_as"), _WORD),
    "completed_at": _PERHAPS,
    "queue_s": _SECONDS,
    "execution_s": _SECONDS,
    **_TESTS,
    "url": _TEXT,
}
_WHOSE = {"upstream": _WORD, "downstream": _WORD, "kind": _WORD}
_RUN = {"delivery": _TEXT, "workflow": _TEXT, "run_id": _TEXT, "attempt": "Int32", "job_name": _TEXT}

JOBS = HistoryTable(
    name="crcr_jobs",
    columns={
        **_WHOSE,
        "began_at": _MOMENT,
        **_RUN,
        "workflow_name": _TEXT,
        **_OF_RESULT,
        "first_conclusion": _WORD,
        "verification": _WORD,
        **dict.fromkeys(_MARKS, _FLAG),
        "version": "UInt64",
    },
    order=(*_WHOSE, "began_at", *_RUN),
    at="began_at",
    gone={"ended_as": ""},
    make=_job,
)
INGESTED = HistoryTable(
    name="crcr_ingested",
    columns={
        **_WHOSE,
        "began_at": _MOMENT,
        "delivery": _TEXT,
        "workflow": _TEXT,
        "job_name": _TEXT,
        "check_run": _TEXT,
        "workflow_name": _TEXT,
        "run_id": _TEXT,
        "attempt": "Int32",
        **_OF_RESULT,
        "origin": _WORD,
        "version": "UInt64",
    },
    order=(*_WHOSE, "began_at", "delivery", "workflow", "job_name", "check_run"),
    at="began_at",
    gone={"ended_as": ""},
    make=_ingested,
)
DISPATCHES = HistoryTable(
    name="crcr_dispatches",
    columns={
        **_WHOSE,
        "sent_at": _MOMENT,
        "delivery": _TEXT,
        "event": _WORD,
        "number": _NUMBER,
        "head_sha": _TEXT,
        "level": "Int8",
        "created_at": _MOMENT,
        "delay_s": "Float64",
        "sent": _FLAG,
        "version": "UInt64",
    },
    order=(*_WHOSE, "sent_at", "delivery"),
    at="sent_at",
    gone={"sent": 0},
    make=_dispatch,
)
TABLES = (JOBS, DISPATCHES, INGESTED)
