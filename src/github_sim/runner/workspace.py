"""Where a simulated runner keeps things: a folder of its own with one room for each job, all gone at the end."""

import shutil
from dataclasses import dataclass
from pathlib import Path
from tempfile import mkdtemp

from github_sim.runner.github.environment import place_tools


@dataclass(frozen=True)
class Room:
    """The folders of one job."""

    root: Path

    @property
    def workspace(self) -> Path:
        return self.root / "work"

    @property
    def temp(self) -> Path:
        return self.root / "temp"

    @property
    def home(self) -> Path:
        return self.root / "home"

    def make(self) -> "Room":
        for folder in (self.workspace, self.temp, self.home):
            folder.mkdir(parents=True)
        return self

    def clear(self) -> None:
        shutil.rmtree(self.root, ignore_errors=True)


class Place:
    def __init__(self) -> None:
        self.root = Path(mkdtemp(prefix="crcr-runner-"))
        self.tools = self.root / "tools"
        place_tools(self.tools)
        self._made = 0

    def new(self, kind: str) -> Path:
        self._made += 1
        return self.root / f"{kind}-{self._made}"

    def room(self) -> Room:
        return Room(self.new("job")).make()

    def clear(self) -> None:
        shutil.rmtree(self.root, ignore_errors=True)
