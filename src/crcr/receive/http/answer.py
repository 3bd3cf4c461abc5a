"""What an intake answers: a status and a JSON body. The web layer turns it into bytes."""

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class Answer:
    status: int
    body: dict[str, Any] = field(default_factory=dict)
