"""The worker: claims effects, does them side by side, and records what became of each.

One target's trouble stays its own: a target has one effect under way at a time, and a breaker leaves it alone
after repeated faults. Nothing is polled for while nothing is due; a commit that adds an effect wakes us.
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Mapping
from datetime import datetime, timedelta
from functools import partial
from typing import Protocol

import structlog

from crcr.decide.model import EffectKind
from crcr.decide.outbox.effect import ClaimedEffect, EffectFault, FailedAttempt, effect_urgency
from crcr.decide.outbox.retry import CircuitBreaker, GiveUp, retry_after_fault, retry_after_limit
from crcr.decide.trace_steps import TraceStep
from crcr.deliver.leases import AlwaysPresent, HeldEffects, Presence
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
"""How long an outcome is tried to be recorded while the store is away."""

Handler = Callable[[ClaimedEffect], Awaitable[bool | None]]
"""Does one effect; False says that it was no longer wanted, and that nothing was done."""


class EffectClaims(Protocol):
    async def claim(self, most: int, now: datetime) -> list[ClaimedEffect]: ...
    async def finish(self, effect: ClaimedEffect, *, began_at: datetime | None, now: datetime) -> bool: ...
    async def fail(self, effect: ClaimedEffect, failure: FailedAttempt, now: datetime) -> None: ...
    async def postpone(self, effect: ClaimedEffect, until: datetime) -> None: ...
    async def release(self, effects: list[ClaimedEffect]) -> None: ...
    async def renew(self, effect_ids: list[int], now: datetime, *, alone: bool) -> dict[int, datetime]: ...
    async def next_due(self, now: datetime) -> datetime | None: ...


class EffectCounters(Protocol):
    """Where outcomes are counted."""

    def effect(self, kind: str, outcome: str) -> None: ...
    def dispatch_latency(self, seconds: float) -> None: ...


class Worker:
    def __init__(
        self,
        outbox: EffectClaims,
        handlers: Mapping[EffectKind, Handler],
        *,
        clock: Clock,
        chance: Callable[[], float],
        tally: EffectCounters,
        concurrency: int = 64,
        on_crash: Callable[[Exception], None] = lambda _: None,
        trace: Trace | None = None,
        on_round: Callable[[], None] = lambda: None,
        presence: Presence | None = None,
    ) -> None:
        self._outbox = outbox
        self._handlers = handlers
        self._clock = clock
        self._chance = chance
        self._tally = tally
        self._concurrency = concurrency
        self._on_crash = on_crash
        self._trace = trace or NoTrace()
        self._on_round = on_round
        self._holdings = HeldEffects(outbox, presence or AlwaysPresent(), clock)
        self._breakers: dict[tuple[str, str], CircuitBreaker] = {}
        self._claimed: deque[ClaimedEffect] = deque()
        self._under_way: set[asyncio.Task[None]] = set()

    async def run(self, wake: asyncio.Event, stopping: asyncio.Event) -> None:
        """Work until `stopping`; then give back what is not begun and finish what is under way.

        Who cannot wait for that cancels: then what is under way ends where it is, and nobody knows how far it came.
        """
        renewing = asyncio.create_task(self._holdings.renew_in_time())
        try:
            while not stopping.is_set():
                if renewing.done():
                    renewing.result()  # it ends only by a fault of ours
                wake.clear()
                self._on_round()
                try:
                    await self._step(wake, stopping)
                except StoreUnavailable as fault:
                    log.warning("worker_waits_for_store", error=str(fault))
                    await self._first_of(stopping.wait(), self._clock.sleep(_STORE_PAUSE_S))
            await self._give_back()
            if self._under_way:
                await asyncio.wait(self._under_way)
        finally:
            await self._break_off()
            renewing.cancel()
            await asyncio.gather(renewing, return_exceptions=True)

    async def _give_back(self) -> None:
        try:
            await self._outbox.release(list(self._claimed))
        except StoreUnavailable as fault:
            log.warning("claims_not_released", effects=len(self._claimed), error=str(fault))
        self._holdings.drop(self._claimed)
        self._claimed.clear()

    async def _break_off(self) -> None:
        late = list(self._under_way)
        for each in late:
            each.cancel()
        await asyncio.gather(*late, return_exceptions=True)

    async def drain(self) -> int:
        """Do everything that is due now, and return how much that was; for tests and for one-shot commands."""
        done = 0
        while effects := await self._outbox.claim(_AHEAD, self._clock.now()):
            for effect in effects:
                self._holdings.add(effect)
            await asyncio.gather(*(self._do(effect) for effect in effects))
            done += len(effects)
        return done

    async def _step(self, wake: asyncio.Event, stopping: asyncio.Event) -> None:
        await self._holdings.ensure_present()
        if not self._claimed and len(self._under_way) < self._concurrency:
            await self._claim()
        while self._claimed and len(self._under_way) < self._concurrency and not stopping.is_set():
            await self._begin_or_give_back(self._claimed.popleft())
        if not self._claimed:
            idle_s = await self._idle_s()
            await self._first_of(wake.wait(), stopping.wait(), self._clock.sleep(idle_s), *self._under_way)
        else:
            await self._first_of(stopping.wait(), *self._under_way)

    async def _claim(self) -> None:
        for effect in await self._outbox.claim(_AHEAD, self._clock.now()):
            # One whose lease ran out while its outcome could not be recorded is not begun a second time.
            if self._holdings.add(effect):
                self._claimed.append(effect)

    async def _begin_or_give_back(self, effect: ClaimedEffect) -> None:
        # What waited through a pause may be another worker's, or soon be: it is not begun any more.
        if not self._holdings.may_start(effect):
            self._holdings.drop([effect])
            await self._outbox.release([effect])
            return
        task = asyncio.create_task(self._do(effect))
        self._under_way.add(task)
        task.add_done_callback(self._under_way.discard)

    async def _idle_s(self) -> float:
        """How long there is nothing to do, unless somebody wakes us."""
        now = self._clock.now()
        due = await self._outbox.next_due(now)
        wait = _IDLE_S if due is None else (due - now).total_seconds()
        return min(max(wait, 0.0), _IDLE_S)

    async def _first_of(self, *waits: Awaitable[object]) -> None:
        tasks = {asyncio.ensure_future(wait) for wait in waits}
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks - self._under_way:
                task.cancel()

    async def _do(self, effect: ClaimedEffect) -> None:
        """Do one effect. The guard keeps one broken effect from ending the worker."""
        began_at = self._clock.now()
        queue = (effect.upstream.key, effect.target)
        breaker = self._breakers.get(queue, CircuitBreaker())
        try:
            if breaker.open_until is not None and breaker.blocks(began_at):
                await self._outbox.postpone(effect, breaker.open_until)
                return
            self._breakers[queue] = breaker.probing(began_at)
            result = await self._attempt(effect)
            self._holdings.require(effect)
            now = self._clock.now()
            if isinstance(result, FailedAttempt):
                self._note_failure(queue, breaker, result, now)
                await self._record(lambda: self._outbox.fail(effect, result, now))
            else:
                if not result:
                    self._breakers[queue] = (
                        breaker  # nobody was asked, so nothing was learned about the target
                    )
                done_at = began_at if result else None
                await self._record(lambda: self._finish(effect, began_at=done_at, now=now))
            self._count(effect, result=result, began_at=began_at, now=now)
        except StoreUnavailable as fault:
            log.warning("outcome_not_recorded", effect=effect.effect_id, error=str(fault))
        except LeaseLost:
            self._breakers[queue] = breaker
            log.warning("lease_lost", effect=effect.effect_id, kind=effect.kind)
        finally:
            self._holdings.drop([effect])

    async def _record(self, write: Callable[[], Awaitable[None]]) -> None:
        """Write an outcome down, and try again while the store is away: what is not written is done twice.

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
        self, effect: ClaimedEffect, *, result: FailedAttempt | bool, began_at: datetime, now: datetime
    ) -> None:
        if isinstance(result, FailedAttempt):
            outcome = "parked" if isinstance(result.decision, GiveUp) else "retried"
        else:
            outcome = "done" if result else "pointless"
        self._tally.effect(effect.kind.value, outcome)
        if outcome == "done" and effect.kind is EffectKind.SEND_DISPATCH:
            self._tally.dispatch_latency((now - effect.created_at).total_seconds())
        self._follow(effect, outcome, began_at, now)

    def _follow(self, effect: ClaimedEffect, outcome: str, began_at: datetime, now: datetime) -> None:
        if effect.delivery is None:
            return
        sent = outcome == "done" and effect.kind is EffectKind.SEND_DISPATCH
        self._trace.note(
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

    async def _finish(self, effect: ClaimedEffect, *, began_at: datetime | None, now: datetime) -> None:
        if began_at is not None:
            self._breakers.pop((effect.upstream.key, effect.target), None)
        if not await self._outbox.finish(effect, began_at=began_at, now=now):
            log.warning("lease_lost", effect=effect.effect_id, kind=effect.kind)

    async def _carry_out(self, effect: ClaimedEffect) -> bool:
        """Call its handler, with the lease checked around each call to the outside; False when nothing was left to do."""
        before = check_lease.set(partial(self._holdings.confirm, effect))
        try:
            return await self._handlers[effect.kind](effect) is not False
        finally:
            check_lease.reset(before)

    async def _attempt(self, effect: ClaimedEffect) -> FailedAttempt | bool:
        """Carry it out; False when there was nothing left to do."""
        who = {
            "effect": effect.effect_id,
            "kind": effect.kind.value,
            "target": effect.target,
            "delivery": effect.delivery,
        }
        try:
            wanted = await self._carry_out(effect)
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
        event = "effect_done" if wanted else "effect_pointless"
        log.info(event, attempts=effect.attempts, unsure=effect.unsure, **who)
        return wanted

    def _judge(self, effect: ClaimedEffect, error: Exception) -> FailedAttempt:
        now, text = self._clock.now(), str(error)[:500]
        if isinstance(error, OutsideLimited | StoreUnavailable):
            wait = retry_after_limit(
                retry_after_s=error.retry_after_s,
                first_attempt_at=effect.first_attempt_at,
                now=now,
                chance=self._chance(),
            )
            # How far it had come when the store went away nobody knows.
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
            self._on_crash(error)
        again = retry_after_fault(
            attempts=effect.attempts, first_attempt_at=effect.first_attempt_at, now=now, chance=self._chance()
        )
        return FailedAttempt(
            decision=again,
            error=text,
            unsure=not isinstance(error, OutsideRefused | OutsideUnreachable | Unavailable),
            counts=True,
            fault=_fault_of(error),
        )

    def _note_failure(
        self, queue: tuple[str, str], breaker: CircuitBreaker, failure: FailedAttempt, now: datetime
    ) -> None:
        if failure.answered:
            self._breakers.pop(queue, None)
            return
        if not failure.counts:
            self._breakers[queue] = breaker  # nothing was tried, so nothing was learned about the target
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


def _fault_of(error: Exception) -> EffectFault | None:
    """What is wrong outside; None for a fault of our own."""
    if isinstance(error, OutsideRefused):
        return EffectFault.CREDENTIALS
    return EffectFault.UNANSWERED if isinstance(error, OutsideUnsure | OutsideUnreachable) else None


def _holds_queue(effect: ClaimedEffect, limit: OutsideLimited) -> bool:
    """Whether the effects behind it would be held back as well.

    Not by a call that is less urgent than theirs may be: a look-up that a gate waits for does not wait with one of
    L3. And not by the limit on comments, which an effect meets after its other work.
    """
    if limit.held_by in {None, HeldBy.CONTENT} or limit.urgency is None:
        return False
    return limit.urgency <= effect_urgency(effect.kind, effect.target)
