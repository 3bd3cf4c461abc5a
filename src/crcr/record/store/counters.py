"""Where a database counts what it does. It knows nothing of who adds that up."""

from typing import Protocol


class StoreTally(Protocol):
    def committed(self, units: int, seconds: float) -> None:
        """So many units of work shared a commit, which took so long from its beginning to its end."""
        ...

    def failed(self) -> None:
        """The store did not take a write."""
        ...

    def connections(self, *, pool: str, used: int, most: int) -> None:
        """How many connections of the pool, writing or reading, are in use now, and how many there may be."""
        ...


class Uncounted:
    """For a database that nobody watches."""

    def committed(self, units: int, seconds: float) -> None: ...
    def failed(self) -> None: ...
    def connections(self, *, pool: str, used: int, most: int) -> None: ...
