"""The sweeper: silent jobs time out, gates that time alone changes are refreshed, issues are read, quiet in-tree commits are
packed, bisections go on and begin, pull requests that others depend on are read again, levels are evaluated, backends that need a notice are found, old rows are deleted, and outdated
fingerprints are computed again.
"""

import structlog

from crcr.ports import Clock
from crcr.record.bisection.bisections import Bisections
from crcr.record.checks.check_runs import CommitChecks
from crcr.record.failures.known_failures import KnownFailures
from crcr.record.failures.recompute import FingerprintUpdate
from crcr.record.in_tree.upkeep import InTreeUpkeep
from crcr.record.levels.evaluations import Levels
from crcr.record.notices.watch import NoticeWatch
from crcr.record.pairs.pairs import Pairs
from crcr.record.upkeep.retention import Retention
from crcr.record.upkeep.timeouts import Sweeps

log = structlog.get_logger(__name__)

SWEEP_EVERY_S = 30.0
FORGET_EVERY_S = 3600.0
REFRESH_EVERY_S = 300.0
BISECT_EVERY_S = 120.0
LOOK_AT_BASE_EVERY_S = 60.0
LOOK_AT_REPORTING_EVERY_S = 300.0
EVALUATE_LEVELS_EVERY_S = 900.0
"""Each backend is evaluated once a day; this is how often the leader looks which are due."""
UPDATE_FINGERPRINTS_EVERY_S = 3600.0
"""Processes of an older release may still write failures by the old rules."""


class Sweeper:
    def __init__(
        self,
        sweeps: Sweeps,
        retention: Retention,
        checks: CommitChecks,
        known_failures: KnownFailures,
        fingerprints: FingerprintUpdate,
        *,
        in_tree: InTreeUpkeep,
        bisections: Bisections,
        pairs: Pairs,
        notices: NoticeWatch,
        levels: Levels,
        clock: Clock,
    ) -> None:
        self._sweeps = sweeps
        self._retention = retention
        self._checks = checks
        self._known_failures = known_failures
        self._fingerprints = fingerprints
        self._in_tree = in_tree
        self._bisections = bisections
        self._pairs = pairs
        self._notices = notices
        self._levels = levels
        self._clock = clock

    async def sweep(self) -> None:
        await self._checks.refresh_due(self._clock.now())
        timed_out = await self._sweeps.time_out_silent(self._clock.now())
        if timed_out:
            log.warning("jobs_timed_out", jobs=timed_out)
        await self._sweeps.ask_about_commits(self._clock.now())
        await self._known_failures.request_reads(self._clock.now())
        await self._in_tree.run(self._clock.now())
        await self._bisections.advance_running(self._clock.now())
        await self._pairs.look_at_due(self._clock.now())

    async def begin_bisections(self) -> None:
        """Begin the bisections that backends with `bisect: auto` need."""
        for bisection_id in await self._bisections.start_automatic(self._clock.now()):
            log.info("bisection_begun", bisection=bisection_id)

    async def look_at_base(self) -> None:
        """Find backends that turned red on the base branch, or recovered."""
        await self._notices.look_at_base(self._clock.now())

    async def look_at_reporting(self) -> None:
        """Find backends that went silent or are refused, and credentials that GitHub refuses."""
        await self._notices.look_at_reporting(self._clock.now())

    async def evaluate_levels(self) -> None:
        """Evaluate the backends whose last evaluation is a day old."""
        evaluated = await self._levels.evaluate_due(self._clock.now())
        if evaluated:
            log.info("levels_evaluated", backends=evaluated)

    async def forget(self) -> None:
        await self._retention.forget(self._clock.now())

    async def update_fingerprints(self) -> None:
        await self._fingerprints.run()
