"""What an intake responds with: a status, a JSON body, and the outcome that metrics and traces count."""

from dataclasses import field
from enum import StrEnum
from typing import Any

from crcr.decide.row_dataclass import row_dataclass


class IntakeOutcome(StrEnum):
    """Values of the label `outcome`; a refused request is counted with its error's code instead."""

    TAKEN = "taken"
    REPEAT = "repeat"
    IGNORED = "ignored"
    PONG = "pong"
    IN_PROGRESS = "in_progress"
    COMPLETED = "completed"
    SANDBOX = "sandbox"


@row_dataclass(frozen=True, slots=True)
class IntakeResponse:
    status: int
    body: dict[str, Any] = field(default_factory=dict)
    outcome: IntakeOutcome = field(kw_only=True)
