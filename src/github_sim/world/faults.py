"""Faults that a test switches on: for API calls (the JWKS included), for webhooks, and for callbacks.

A fault matches by method, path glob and repository, and ends by itself after `times` uses. Nothing here sleeps: latency
awaits the injected sleep, and a hanging call waits until the test releases it.
"""

import asyncio
import enum
from dataclasses import dataclass, field
from fnmatch import fnmatchcase

JWKS_PATH = "*/.well-known/jwks"


class FaultKind(enum.Enum):
    ANSWER = "answer without acting"
    LATENCY = "act after a while"
    HANG = "act once released"
    HANG_AFTER = "act, then answer once released"
    LOSE_ANSWER = "act, then drop the connection"
    LOSE_REQUEST = "drop the connection without acting"
    MALFORMED = "act, then answer something that is not JSON"


@dataclass(frozen=True)
class Match:
    """The calls that a fault applies to; None matches any. `path` is a glob over the path below the API's root."""

    method: str | None = None
    path: str | None = None
    repository: str | None = None

    def matches(self, method: str, path: str, repository: str | None) -> bool:
        return (
            (self.method is None or self.method == method)
            and (self.path is None or fnmatchcase(path, self.path))
            and (self.repository is None or self.repository.lower() == (repository or "").lower())
        )


@dataclass(eq=False)
class HeldCalls:
    """Holds calls back. `reached` is set when the first one waits, `release()` lets all of them go."""

    reached: asyncio.Event = field(default_factory=asyncio.Event)
    released: asyncio.Event = field(default_factory=asyncio.Event)

    async def wait(self) -> None:
        self.reached.set()
        await self.released.wait()

    def release(self) -> None:
        self.released.set()


@dataclass(eq=False)
class Fault:
    kind: FaultKind
    match: Match
    times: int | None
    status: int = 0
    message: str = ""
    headers: dict[str, str] = field(default_factory=dict)
    reset_in_s: int | None = None
    latency_s: float = 0.0
    gate: HeldCalls | None = None
    used: int = 0

    @property
    def spent(self) -> bool:
        return self.times is not None and self.used >= self.times


class Faults:
    """`github.faults`: each method adds one fault and returns it; `remove` and `clear` remove them."""

    def __init__(self) -> None:
        self._active: list[Fault] = []
        self._gates: list[HeldCalls] = []
        self.webhooks = WebhookFaults()
        self._early_callbacks = 0

    def answer(
        self,
        status: int,
        *,
        on: Match | None = None,
        times: int | None = None,
        message: str = "Server Error",
        retry_after_s: int | None = None,
    ) -> Fault:
        """Refuse without acting: 500, 502, 503, 404, 403 or 429 with or without Retry-After."""
        headers = {} if retry_after_s is None else {"retry-after": str(retry_after_s)}
        made = Fault(FaultKind.ANSWER, on or Match(), times, status=status, message=message, headers=headers)
        return self._set(made)

    def secondary_limit(
        self,
        *,
        status: int = 403,
        retry_after_s: int | None = 60,
        on: Match | None = None,
        times: int | None = None,
    ) -> Fault:
        message = "You have exceeded a secondary rate limit. Please wait a few minutes before you try again."
        return self.answer(status, on=on, times=times, message=message, retry_after_s=retry_after_s)

    def primary_limit(
        self, *, reset_in_s: int = 600, status: int = 403, on: Match | None = None, times: int | None = None
    ) -> Fault:
        """The hourly limit is used up: remaining 0 and a reset time, no Retry-After."""
        made = Fault(
            FaultKind.ANSWER,
            on or Match(),
            times,
            status=status,
            message="API rate limit exceeded for installation.",
            headers={"x-ratelimit-remaining": "0"},
            reset_in_s=reset_in_s,
        )
        return self._set(made)

    def latency(self, seconds: float, *, on: Match | None = None, times: int | None = None) -> Fault:
        return self._set(Fault(FaultKind.LATENCY, on or Match(), times, latency_s=seconds))

    def hang(
        self, *, on: Match | None = None, times: int | None = None, after_acting: bool = False
    ) -> HeldCalls:
        """Hold calls until the returned gate is released; `after_acting`: the act is done, the answer waits."""
        kind = FaultKind.HANG_AFTER if after_acting else FaultKind.HANG
        gate = HeldCalls()
        self._gates.append(gate)
        self._set(Fault(kind, on or Match(), times, gate=gate))
        return gate

    def lose_answer(self, *, on: Match | None = None, times: int | None = None) -> Fault:
        """Act, and drop the answer: the caller sees a read time-out or a broken connection."""
        return self._set(Fault(FaultKind.LOSE_ANSWER, on or Match(), times))

    def lose_request(self, *, on: Match | None = None, times: int | None = None) -> Fault:
        """Do not act; the caller sees the same as with `lose_answer`."""
        return self._set(Fault(FaultKind.LOSE_REQUEST, on or Match(), times))

    def malformed(self, *, on: Match | None = None, times: int | None = None) -> Fault:
        return self._set(Fault(FaultKind.MALFORMED, on or Match(), times))

    def jwks(self, status: int = 503, *, times: int | None = None) -> Fault:
        """The issuer's keys cannot be read. For slow keys: `hang(on=Match(path=JWKS_PATH))`."""
        return self.answer(status, on=Match(path=JWKS_PATH), times=times)

    def early_callback(self, *, times: int = 1) -> None:
        """The next dispatched runs report in_progress before their dispatch call is answered."""
        self._early_callbacks += times

    def take_early_callback(self) -> bool:
        if self._early_callbacks == 0:
            return False
        self._early_callbacks -= 1
        return True

    def claim(self, method: str, path: str, repository: str | None) -> list[Fault]:
        """The faults that apply to this call, each counted as used once: all latencies and the first other fault."""
        taken: list[Fault] = []
        for fault in [fault for fault in self._active if fault.match.matches(method, path, repository)]:
            if fault.kind is not FaultKind.LATENCY and any(
                other.kind is not FaultKind.LATENCY for other in taken
            ):
                continue
            fault.used += 1
            taken.append(fault)
        self._active = [fault for fault in self._active if not fault.spent]
        return taken

    def remove(self, fault: Fault) -> None:
        self._active = [active for active in self._active if active is not fault]

    def clear(self) -> None:
        """Remove all faults and release every hanging call."""
        for gate in self._gates:
            gate.release()
        self._gates.clear()
        self._active.clear()
        self.webhooks.clear()
        self._early_callbacks = 0

    def _set(self, fault: Fault) -> Fault:
        self._active.append(fault)
        return fault


class WebhookFate(enum.Enum):
    SEND = "send"
    DUPLICATE = "duplicate"
    HOLD = "hold"
    LOSE = "lose"


@dataclass(eq=False)
class WebhookFault:
    fate: WebhookFate
    event: str | None
    times: int | None


class WebhookFaults:
    """What happens to webhooks: sent twice, held (late, or reordered at release), or lost on the way.

    A lost one stands in the delivery log as failed, so recovery can find it.
    """

    def __init__(self) -> None:
        self._active: list[WebhookFault] = []

    def duplicate(self, *, event: str | None = None, times: int | None = 1) -> WebhookFault:
        return self._set(WebhookFault(WebhookFate.DUPLICATE, event, times))

    def hold(self, *, event: str | None = None, times: int | None = None) -> WebhookFault:
        """Keep webhooks back until `github.release_webhooks(order=…)`."""
        return self._set(WebhookFault(WebhookFate.HOLD, event, times))

    def lose(self, *, event: str | None = None, times: int | None = None) -> WebhookFault:
        return self._set(WebhookFault(WebhookFate.LOSE, event, times))

    def remove(self, fault: WebhookFault) -> None:
        self._active = [active for active in self._active if active is not fault]

    def clear(self) -> None:
        self._active.clear()

    def fate(self, event: str) -> WebhookFate:
        for fault in self._active:
            if fault.event not in {None, event}:
                continue
            if fault.times is not None:
                fault.times -= 1
                if fault.times == 0:
                    self.remove(fault)
            return fault.fate
        return WebhookFate.SEND

    def _set(self, fault: WebhookFault) -> WebhookFault:
        self._active.append(fault)
        return fault
