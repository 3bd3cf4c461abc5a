"""What replicas tell each other about issuers' keys, so that many of them read like one.

All of it may be lost, and nobody to ask is the same as nothing known: then each replica reads for itself.
"""

from datetime import timedelta
from typing import Protocol

from crcr.decide.report.identity import KeySetText


class KeySets(Protocol):
    """None of these fails; who answers them proves that a text is one that a replica kept for that issuer."""

    async def recall(self, issuer: str) -> KeySetText | None:
        """Return what a replica read last, if that is still known."""
        ...

    async def claim(self, issuer: str, for_: timedelta) -> bool:
        """Say whether to read now; False where another replica reads, or has just failed to."""
        ...

    async def await_other(self, issuer: str) -> KeySetText | None:
        """Wait a little for what the other replica reads."""
        ...

    async def keep(self, issuer: str, found: KeySetText, for_: timedelta) -> None:
        """Tell the others, and end the claim."""
        ...


class Unshared:
    """A replica that is alone."""

    async def recall(self, issuer: str) -> KeySetText | None:  # noqa: ARG002
        return None

    async def claim(self, issuer: str, for_: timedelta) -> bool:  # noqa: ARG002
        return True

    async def await_other(self, issuer: str) -> KeySetText | None:  # noqa: ARG002
        return None

    async def keep(self, issuer: str, found: KeySetText, for_: timedelta) -> None: ...
