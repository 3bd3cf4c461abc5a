"""Where the steps of a job stand, and how one of them ended."""

import asyncio
from dataclasses import dataclass, field

from github_sim.world.records import Json


@dataclass
class Frame:
    """Where steps stand: in the job itself, or inside a composite action."""

    inputs: Json
    env: Json
    steps: Json = field(default_factory=dict)
    action_path: str = ""
    failed: bool = False
    cancelled: asyncio.Event = field(default_factory=asyncio.Event)


@dataclass
class Outcome:
    failed: bool = False
    why: str = ""
    log: str = ""
    outputs: dict[str, str] = field(default_factory=dict)
