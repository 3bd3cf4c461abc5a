"""The worker: claims effects, runs them concurrently, and records the outcome of each.

Faults stay with their target: a target has one effect in progress at a time, and a circuit breaker pauses it after
repeated faults. The worker does not poll while nothing is due; a commit that adds an effect wakes it.
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import partial
from typing import Protocol

import structlog

from crcr.decide.model import EffectKind
from crcr.decide.outbox.effect import (
    READ_ONLY_KINDS,
    AttemptOutcome,
    ClaimedEffect,
    EffectFault,
    FailedAttempt,
    effect_urgency,
)
from crcr.decide.outbox.retry import CircuitBreaker, GiveUp, retry_after_fault, retry_after_limit
from crcr.decide.trace_steps import TraceStep
from crcr.deliver.held_effects import AlwaysPresent, HeldEffects, Presence
from crcr.deliver.waiting import first_completed
from crcr.errors import (
    HeldBy,
    LeaseLost,
    NotFound,
    OutsideLimited,
    OutsideRefused,
    OutsideUnreachable,
    OutsideUnsure,
    StoreUnavailable,
    Unavailable,
)
from crcr.ports import Clock, NoTrace, Trace, check_lease

log = structlog.get_logger(__name__)

_AHEAD = 256
_IDLE_S = 5.0
_STORE_PAUSE_S = 1.0
_RECORD_FOR = timedelta(seconds=90)
"""How long recording an outcome is retried while the store is unavailable."""

Handler = Callable[[ClaimedEffect], Awaitable[bool | None]]
"""Runs one effect; False when it was no longer wanted and nothing was done."""


class EffectClaims(Protocol):
    async def claim(self, most: int, now: datetime) -> list[ClaimedEffect]: ...
    async def finish(
        self, effect: ClaimedEffect, *, began_at: datetime | None, now: datetime, shadowed: bool = False
    ) -> bool: ...
    async def fail(self, effect: ClaimedEffect, failure: FailedAttempt, now: datetime) -> None: ...
    async def postpone(self, effect: ClaimedEffect, until: datetime) -> None: ...
    async def release(self, effects: list[ClaimedEffect]) -> None: ...
    async def renew(self, effect_ids: list[int], now: datetime, *, alone: bool) -> dict[int, datetime]: ...
    async def next_due(self, now: datetime) -> datetime | None: ...


class EffectCounters(Protocol):
    """Where outcomes are counted."""

    def effect(self, kind: str, outcome: str) -> None: ...
    def dispatch_latency(self, seconds: float) -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerMonitoring:
    """Where a worker's outcomes, attempts, crashes and cycles are reported."""

    counters: EffectCounters
    trace: Trace = field(default_factory=NoTrace)
    on_crash: Callable[[Exception], None] = lambda _: None
    on_cycle: Callable[[], None] = lambda: None


class Worker:
    def __init__(
        self,
        outbox: EffectClaims,
        handlers: Mapping[EffectKind, Handler],
        *,
        clock: Clock,
        chance: Callable[[], float],
        monitoring: WorkerMonitoring,
        concurrency: int = 64,
        presence: Presence | None = None,
        shadow_plans: Mapping[EffectKind, Handler] | None = None,
    ) -> None:
        """`shadow_plans` are the handlers of shadow mode, None outside of it.

        An effect of a kind that writes outside is then not carried out. Its plan decides and records what would be
        sent, and calls nobody; a kind without a plan has nothing to decide.
        """
        self._shadow_plans = shadow_plans
        self._outbox = outbox
        self._handlers = handlers
        self._clock = clock
        self._chance = chance
        self._monitoring = monitoring
        self._concurrency = concurrency
        self._held = HeldEffects(outbox, presence or AlwaysPresent(), clock)
        self._breakers: dict[tuple[str, str], CircuitBreaker] = {}
        self._claimed: deque[ClaimedEffect] = deque()
        self._running: set[asyncio.Task[None]] = set()

    async def run(
        self, wake: asyncio.Event, stopping: asyncio.Event, *, idle_within_s: float | None = None
    ) -> None:
        """Work until `stopping`; then release claims that were not started and finish the effects in progress.

        With `idle_within_s`, also end when nothing is in progress and nothing is due within so many seconds.
        Cancelling this ends the effects in progress where they are; how far they came is then unknown.
        """
        renewing = asyncio.create_task(self._held.renew_in_time())
        try:
            while not stopping.is_set():
                if renewing.done():
                    renewing.result()  # it ends only because of a bug
                wake.clear()
                self._monitoring.on_cycle()
                try:
                    if await self._step(wake, stopping, idle_within_s):
                        break
                except StoreUnavailable as fault:
                    if idle_within_s is not None and not self._running:
                        raise
                    log.warning("worker_waits_for_store", error=str(fault))
                    await first_completed(stopping.wait(), self._clock.sleep(_STORE_PAUSE_S))
            await self._release_claims()
            if self._running:
                await asyncio.wait(self._running)
        finally:
            await self._cancel_running()
            renewing.cancel()
            await asyncio.gather(renewing, return_exceptions=True)

    async def _release_claims(self) -> None:
        try:
            await self._outbox.release(list(self._claimed))
        except StoreUnavailable as fault:
            log.warning("claims_not_released", effects=len(self._claimed), error=str(fault))
        self._held.drop(self._claimed)
        self._claimed.clear()

    async def _cancel_running(self) -> None:
        running = list(self._running)
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)

    async def drain(self) -> int:
        """Run every effect that is due now, and return how many; for tests and one-shot commands."""
        done = 0
        while effects := await self._outbox.claim(_AHEAD, self._clock.now()):
            for effect in effects:
                self._held.add(effect)
            await asyncio.gather(*(self._do(effect) for effect in effects))
            done += len(effects)
        return done

    async def _step(self, wake: asyncio.Event, stopping: asyncio.Event, idle_within_s: float | None) -> bool:
        """Start what may start, then wait; return whether there is nothing to do for `idle_within_s`."""
        await self._held.ensure_present()
        if not self._claimed and len(self._running) < self._concurrency:
            await self._claim()
        while self._claimed and len(self._running) < self._concurrency and not stopping.is_set():
            await self._start_or_release(self._claimed.popleft())
        if not self._claimed:
            idle_s = await self._idle_s()
            if idle_within_s is not None and not self._running and idle_s > idle_within_s:
                return True
            await first_completed(wake.wait(), stopping.wait(), self._clock.sleep(idle_s), *self._running)
        else:
            await first_completed(stopping.wait(), *self._running)
        return False

    async def _claim(self) -> None:
        for effect in await self._outbox.claim(_AHEAD, self._clock.now()):
            # An effect whose lease expired while its outcome could not be recorded is not started twice.
            if self._held.add(effect):
                self._claimed.append(effect)

    async def _start_or_release(self, effect: ClaimedEffect) -> None:
        # After a pause the claim may belong to another worker, or soon will: it is not started.
        if not self._held.may_start(effect):
            self._held.drop([effect])
            await self._outbox.release([effect])
            return
        task = asyncio.create_task(self._do(effect))
        self._running.add(task)
        task.add_done_callback(self._running.discard)

    async def next_due(self) -> datetime | None:
        """Return when the next effect becomes due that is not due now."""
        return await self._outbox.next_due(self._clock.now())

    async def _idle_s(self) -> float:
        """Return how long nothing is due, unless a commit wakes the worker."""
        now = self._clock.now()
        due = await self._outbox.next_due(now)
        wait = _IDLE_S if due is None else (due - now).total_seconds()
        return min(max(wait, 0.0), _IDLE_S)

    async def _do(self, effect: ClaimedEffect) -> None:
        """Run one effect. The guard keeps a broken effect from ending the worker."""
        began_at = self._clock.now()
        queue = (effect.upstream.key, effect.target)
        breaker = self._breakers.get(queue, CircuitBreaker())
        try:
            if breaker.open_until is not None and breaker.blocks(began_at):
                await self._outbox.postpone(effect, breaker.open_until)
                return
            self._breakers[queue] = breaker.probing(began_at)
            result = await self._attempt(effect)
            self._held.require(effect)
            now = self._clock.now()
            if isinstance(result, FailedAttempt):
                self._note_failure(queue, breaker, result, now)
                await self._record(lambda: self._outbox.fail(effect, result, now))
            else:
                if result is not AttemptOutcome.DONE:
                    self._breakers[queue] = (
                        breaker  # no call was made, so nothing was learned about the target
                    )
                await self._record(lambda: self._finish(effect, result, began_at=began_at, now=now))
            self._count(effect, result=result, began_at=began_at, now=now)
        except StoreUnavailable as fault:
            log.warning("outcome_not_recorded", effect=effect.effect_id, error=str(fault))
        except LeaseLost:
            self._breakers[queue] = breaker
            log.warning("lease_lost", effect=effect.effect_id, kind=effect.kind)
        finally:
            self._held.drop([effect])

    async def _record(self, write: Callable[[], Awaitable[None]]) -> None:
        """Record an outcome, with retries while the store is unavailable: an unrecorded effect runs twice.

        The write changes nothing when another worker has taken the effect over, so it may also come late.
        """
        until = self._clock.now() + _RECORD_FOR
        while True:
            try:
                return await write()
            except StoreUnavailable:
                if self._clock.now() >= until:
                    raise
            await self._clock.sleep(_STORE_PAUSE_S)

    def _count(
        self,
        effect: ClaimedEffect,
        *,
        result: FailedAttempt | AttemptOutcome,
        began_at: datetime,
        now: datetime,
    ) -> None:
        if isinstance(result, FailedAttempt):
            outcome = "parked" if isinstance(result.decision, GiveUp) else "retried"
        else:
            outcome = result.value
        self._monitoring.counters.effect(effect.kind.value, outcome)
        if outcome == "done" and effect.kind is EffectKind.SEND_DISPATCH:
            self._monitoring.counters.dispatch_latency((now - effect.created_at).total_seconds())
        self._trace_attempt(effect, outcome, began_at, now)

    def _trace_attempt(self, effect: ClaimedEffect, outcome: str, began_at: datetime, now: datetime) -> None:
        if effect.delivery is None:
            return
        sent = outcome == "done" and effect.kind is EffectKind.SEND_DISPATCH
        self._monitoring.trace.note(
            TraceStep.DISPATCH if sent else TraceStep.EFFECT,
            effect.delivery,
            began_at,
            now,
            downstream=effect.target if effect.kind is EffectKind.SEND_DISPATCH else None,
            upstream=effect.upstream.key,
            effect=effect.effect_id,
            kind=effect.kind.value,
            attempt=effect.attempts,
            outcome=outcome,
        )

    async def _finish(
        self, effect: ClaimedEffect, outcome: AttemptOutcome, *, began_at: datetime, now: datetime
    ) -> None:
        if outcome is AttemptOutcome.DONE:
            self._breakers.pop((effect.upstream.key, effect.target), None)
        done_at = None if outcome is AttemptOutcome.POINTLESS else began_at
        shadowed = outcome is AttemptOutcome.SHADOWED
        if not await self._outbox.finish(effect, began_at=done_at, now=now, shadowed=shadowed):
            log.warning("lease_lost", effect=effect.effect_id, kind=effect.kind)

    async def _carry_out(self, effect: ClaimedEffect) -> AttemptOutcome:
        """Call its handler, with the lease checked around each outgoing call.

        The one place that enforces shadow mode: no handler of a kind that writes outside is called in it.
        """
        handler: Handler | None = self._handlers[effect.kind]
        outcome = AttemptOutcome.DONE
        if self._shadow_plans is not None and effect.kind not in READ_ONLY_KINDS:
            handler, outcome = self._shadow_plans.get(effect.kind), AttemptOutcome.SHADOWED
        before = check_lease.set(partial(self._held.confirm, effect))
        try:
            is_wanted = handler is None or await handler(effect) is not False
        finally:
            check_lease.reset(before)
        return outcome if is_wanted else AttemptOutcome.POINTLESS

    async def _attempt(self, effect: ClaimedEffect) -> FailedAttempt | AttemptOutcome:
        """Run it and log the result."""
        who = {
            "effect": effect.effect_id,
            "kind": effect.kind.value,
            "target": effect.target,
            "delivery": effect.delivery,
        }
        try:
            result = await self._carry_out(effect)
        except LeaseLost:
            raise
        except Exception as error:  # noqa: BLE001  the worker's guard, one of the two places that catch all
            failure = self._judge(effect, error)
            if isinstance(failure.decision, GiveUp):
                log.warning("effect_parked", error=failure.error, attempts=effect.attempts, **who)
            else:
                log.info(
                    "effect_retried",
                    error=failure.error,
                    due_at=failure.decision.due_at,
                    attempts=effect.attempts,
                    **who,
                )
            return failure
        if result is AttemptOutcome.SHADOWED:
            log.info("effect_shadowed", **who)
            return result
        event = "effect_done" if result is AttemptOutcome.DONE else "effect_pointless"
        log.info(event, attempts=effect.attempts, unsure=effect.unsure, **who)
        return result

    def _judge(self, effect: ClaimedEffect, error: Exception) -> FailedAttempt:
        now, text = self._clock.now(), str(error)[:500]
        if isinstance(error, OutsideLimited | StoreUnavailable):
            wait = retry_after_limit(
                retry_after_s=error.retry_after_s,
                first_attempt_at=effect.first_attempt_at,
                now=now,
                chance=self._chance(),
            )
            # How far it had come when the store became unavailable is unknown.
            unsure = isinstance(error, StoreUnavailable)
            limit = error if isinstance(error, OutsideLimited) else None
            return FailedAttempt(
                decision=wait,
                error=text,
                unsure=unsure,
                counts=False,
                held_by=limit.held_by if limit else None,
                holds_queue=limit is not None and _holds_queue(effect, limit),
            )
        if isinstance(error, NotFound) or (isinstance(error, OutsideRefused) and error.status != 401):
            return FailedAttempt(decision=GiveUp(text), error=text, unsure=False, counts=True, answered=True)
        if not isinstance(error, OutsideRefused | OutsideUnsure | OutsideUnreachable | Unavailable):
            log.error("effect_crashed", effect=effect.effect_id, kind=effect.kind.value, exc_info=error)
            self._monitoring.on_crash(error)
        again = retry_after_fault(
            attempts=effect.attempts, first_attempt_at=effect.first_attempt_at, now=now, chance=self._chance()
        )
        return FailedAttempt(
            decision=again,
            error=text,
            unsure=not isinstance(error, OutsideRefused | OutsideUnreachable | Unavailable),
            counts=True,
            fault=_external_fault(error),
        )

    def _note_failure(
        self, queue: tuple[str, str], breaker: CircuitBreaker, failure: FailedAttempt, now: datetime
    ) -> None:
        if failure.answered:
            self._breakers.pop(queue, None)
            return
        if not failure.counts:
            self._breakers[queue] = breaker  # no call was made, so nothing was learned about the target
            return
        after = breaker.failed(now)
        self._breakers[queue] = after
        if after.open_until is not None:
            log.warning(
                "target_left_alone",
                upstream=queue[0],
                target=queue[1],
                until=after.open_until,
                failures=after.failures,
            )


def _external_fault(error: Exception) -> EffectFault | None:
    """The fault of an external service; None for a fault of our own."""
    if isinstance(error, OutsideRefused):
        return EffectFault.CREDENTIALS
    return EffectFault.UNANSWERED if isinstance(error, OutsideUnsure | OutsideUnreachable) else None


def _holds_queue(effect: ClaimedEffect, limit: OutsideLimited) -> bool:
    """Whether the limit would hold back the effects behind it as well.

    Not after a call that is less urgent than theirs may be: a look-up that a gate needs does not wait with one of L3. And
    not for the limit on comments, which an effect reaches after its other work.
    """
    if limit.held_by in {None, HeldBy.CONTENT} or limit.urgency is None:
        return False
    return limit.urgency <= effect_urgency(effect.kind, effect.target)
