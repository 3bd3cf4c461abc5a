"""Begins bisections on the relay and reads them; nothing else here knows the relay's types."""

from dataclasses import dataclass
from datetime import timedelta

from bench.answers.relay import UPSTREAM, AnswersRelay
from crcr.decide.bisection.request import MOST_RUNS, BisectionRequest
from crcr.decide.model import RepoName
from crcr.decide.views.bisections import BisectionQuery, BisectionState
from crcr.errors import NotPossible
from crcr.record.views.sql_views import SqlViews

_UPSTREAM = RepoName(UPSTREAM)
_TIME = timedelta(days=7)


@dataclass(frozen=True, slots=True, kw_only=True)
class BisectionAnswer:
    """A bisection as the relay recorded it."""

    backend: str
    job: str
    commits: tuple[str, ...]
    """The good end first, the bad end last."""
    outcome: str
    culprit: str | None
    left: tuple[str, ...]
    """The candidates at its end."""
    runs: tuple[tuple[str, str], ...]
    """The tested commits with their results."""
    flake_rate: float
    reason: str | None


class RelayBisections:
    def __init__(self, relay: AnswersRelay) -> None:
        services = relay.services
        self._relay = relay
        self._views = SqlViews(services.database, services.allowlists, services.upstreams)

    async def begin(self, backend: str, job: str, *, good: str, bad: str) -> int | None:
        """Return its id; None where another one of the job is running."""
        request = BisectionRequest(
            downstream=RepoName(backend),
            job=job,
            who="bench",
            good=good,
            bad=bad,
            most_runs=MOST_RUNS,
            time=_TIME,
        )
        try:
            return await self._relay.services.bisections.start(_UPSTREAM, request, self._relay.clock.now())
        except NotPossible as refused:
            if "is running" not in str(refused):
                raise
            return None

    async def is_any_running(self) -> bool:
        query = BisectionQuery(upstream=_UPSTREAM, state=BisectionState.RUNNING, limit=1)
        return bool((await self._views.bisections(query)).items)

    async def read(self, bisection_id: int) -> BisectionAnswer:
        detail = await self._views.bisection(_UPSTREAM, bisection_id)
        found = detail.bisection
        return BisectionAnswer(
            backend=found.backend.key,
            job=found.job,
            commits=tuple(commit.sha for commit in detail.commits),
            outcome=found.outcome.value if found.outcome else "running",
            culprit=found.culprit.sha if found.culprit else None,
            left=tuple(commit.sha for commit in detail.commits if commit.is_candidate),
            runs=tuple((run.sha, run.result.value if run.result else "running") for run in detail.runs),
            flake_rate=found.flake_rate,
            reason=found.reason,
        )
