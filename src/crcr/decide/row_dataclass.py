"""Dataclasses of which a page, or a second of callbacks, makes thousands: frozen for the type checker, and not at run time.

Each field of a frozen dataclass is set through a call, so that making one takes three times as long. Nothing may change a
value after it was made: mypy refuses an assignment.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dataclasses import dataclass as row_dataclass
else:
    from dataclasses import dataclass

    def row_dataclass(**options: Any) -> Any:
        return dataclass(**{**options, "frozen": False, "unsafe_hash": True})


__all__ = ["row_dataclass"]
