"""Where a page's history came from."""

from enum import StrEnum


class HistoryState(StrEnum):
    """Whether ClickHouse answers for the main store, and why not."""

    OWN = "own"
    """It is not used, or does not hold everything yet: the main store answers, as ever."""
    TOLD = "told"
    """It answered; the main store did for whom it has not been told everything yet."""
    UNREACHABLE = "unreachable"
    BEHIND = "behind"
    """It has not been told the newest results for a while."""

    @property
    def source(self) -> str:
        """What a reader is told: which store the numbers came from."""
        return "clickhouse" if self is HistoryState.TOLD else "database"
