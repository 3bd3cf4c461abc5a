"""How long news take from being recorded until open pages are told: the newest thousand of this process."""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

_KEPT = 1_000


@dataclass(slots=True)
class LiveDelay:
    """Measured only while a page is open: without one nobody waits for news."""

    on_told: Callable[[float], None] = lambda _: None
    _newest: deque[float] = field(default_factory=lambda: deque(maxlen=_KEPT))

    def note(self, seconds: float) -> None:
        told_after = max(0.0, seconds)
        self._newest.append(told_after)
        self.on_told(told_after)

    @property
    def known(self) -> int:
        return len(self._newest)

    def quantile(self, share: float) -> float | None:
        """The delay that this share of the newest stays within."""
        if not self._newest:
            return None
        ordered = sorted(self._newest)
        return ordered[min(len(ordered) - 1, int(share * len(ordered)))]
