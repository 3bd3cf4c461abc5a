"""`BaseHistory`: results of a job on the base branch and of its nights, inserted as the recorder writes them."""

from dataclasses import dataclass, field
from itertools import count
from typing import Any

from sqlalchemy import update

from crcr.decide.failures.fingerprint import RULES, fingerprint_failure
from crcr.decide.jobs.report import FailedTest
from crcr.record.schema import failures, main_tables
from support.data.store_rows import UPSTREAM, StoreRows

MESSAGE = "NotImplementedError: aten::foo"
_FAILED = frozenset({"failure", "timed_out", "silent", "cancelled"})


def sha_of(position: int, ref: str = "main") -> str:
    return (
        f"{position:040x}"
        if ref == "main"
        else f"{ref.encode().hex()}{position:040x}"[:20] + f"{position:020x}"
    )


def fingerprint_of(message: str = MESSAGE) -> str:
    mark = fingerprint_failure((FailedTest("test_lazy", None, message),)).fingerprint
    assert mark is not None
    return mark


@dataclass
class BaseHistory:
    """Commits have a position on their branch, and results arrive when the test says so."""

    store: StoreRows
    _runs: "count[int]" = field(default_factory=lambda: count(100))
    _placed: set[tuple[int, str]] = field(default_factory=set)

    def __post_init__(self) -> None:
        with self.store.engine.begin() as connection:
            table = main_tables.upstreams
            named = table.c.upstream == UPSTREAM.key
            connection.execute(update(table).where(named).values(default_branch="main"))

    def place(self, position: int, ref: str = "main", sha: str | None = None, **columns: Any) -> str:
        """Put a commit on a branch; `columns` are what its push says about it."""
        sha = sha or sha_of(position, ref)
        if (position, ref) not in self._placed:
            self._placed.add((position, ref))
            row = {"sha": sha, "upstream": UPSTREAM.key, "ref": ref, "position": position, "before": None}
            self.store.add(failures.base_commits, {**row, "pushed_at": self.store.ago(hours=999), **columns})
        return sha

    def push(self, position: int, ended: str = "failure", **more: Any) -> None:
        """A result on a commit of the branch; `hours_ago` is when it arrived."""
        ref, on_base = more.pop("ref", "main"), more.pop("on_base", True)
        sha = self.place(position, ref) if on_base else sha_of(position, ref)
        self._add(ended, **{"event": "push", "kind": "push", "head_sha": sha, "delivery": f"d-{sha}", **more})

    def night(self, ended: str = "failure", **more: Any) -> None:
        sha = more.pop("head_sha", "a" * 40)
        self._add(ended, **{"event": "nightly", "kind": "nightly", "head_sha": sha, "delivery": sha, **more})

    def _add(self, ended: str, **more: Any) -> None:
        more = {"downstream": "good/backend", "job_name": "build", "attempt": 1, **more}
        more = {"workflow": ".github/workflows/ci.yml", "run_id": str(next(self._runs)), **more}
        hours_ago, kind = more.pop("hours_ago", 1.0), more.pop("kind")
        told = {
            name: more.pop(name, None)
            for name in ("message", "verdict", "passed_at", "ended_as", "test_verdicts")
        }
        is_pass = ended == "success"
        ended_as = told["ended_as"] or ("other" if ended == "cancelled" else ended)
        conclusion = None if ended == "silent" else ended
        at = {
            "in_progress_at": self.store.ago(hours=hours_ago + 0.1),
            "completed_at": self.store.ago(hours=hours_ago),
        }
        self.store.job(
            more["delivery"],
            conclusion,
            **{name: value for name, value in more.items() if name != "delivery"},
            **at,
            number=None,
            ended_as=ended_as,
        )
        if not is_pass:
            self._fail(ended, kind, {**more, **told, "at": at["completed_at"]})

    def _fail(self, ended: str, kind: str, row: dict[str, Any]) -> None:
        assert ended in _FAILED
        message = row["message"] or MESSAGE
        mark = fingerprint_of(message) if ended == "failure" else None
        names = (
            "delivery",
            "downstream",
            "workflow",
            "run_id",
            "attempt",
            "job_name",
            "event",
            "head_sha",
            "at",
        )
        failure_id = self.store.new_number()
        self.store.add(
            failures.failures,
            {
                "failure_id": failure_id,
                "upstream": UPSTREAM.key,
                **{name: row[name] for name in (*names, "passed_at", "test_verdicts")},
                "kind": kind,
                "ended": ended,
                "base_ref": "main",
                "built_on": row["head_sha"],
                "built_on_exact": 1,
                "fingerprint": mark,
                "fingerprints": mark,
                "rules": RULES,
                "sample": message if mark else None,
                "verdict": row["verdict"] or "new",
                "confidence": "medium",
                "sentence": "It is not known.",
            },
        )
        if mark is not None:
            group = {"fingerprint": mark, "upstream": UPSTREAM.key, "failure_id": failure_id}
            self.store.add(failures.failure_fingerprints, group)

    def know(self, message: str = MESSAGE, **more: Any) -> None:
        """Link the failures with this message to an issue."""
        row = {
            "fingerprint": fingerprint_of(message),
            "upstream": UPSTREAM.key,
            "state": "open",
            "who": "grace",
        }
        link = {"url": "https://github.com/good/backend/issues/12", "created_at": self.store.ago(hours=1)}
        self.store.add(
            failures.known_failures, {**row, **link, "until_at": self.store.ago(hours=-24), **more}
        )
