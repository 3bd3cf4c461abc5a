"""A `run` of a step: its shell, its folder, and the files by which it tells the runner things."""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from github_sim.runner.checkout import inside
from github_sim.runner.github.workflow_commands import read_pairs
from github_sim.runner.problems import Problem
from github_sim.runner.process import Ended, run_child
from github_sim.runner.workspace import Room

# As GitHub calls them; without a `shell`, bash is not told to fail in the middle of a pipe.
_SHELLS = {
    "": ("bash", "-e"),
    "bash": ("bash", "--noprofile", "--norc", "-eo", "pipefail"),
    "sh": ("sh", "-e"),
    "python": ("python3",),
}
_FILES = ("OUTPUT", "ENV", "PATH", "STEP_SUMMARY", "STATE")


@dataclass
class Script:
    text: str
    shell: str
    folder: str
    limit_s: float
    _told: dict[str, Path] = field(default_factory=dict)

    async def run(self, room: Room, env: Mapping[str, str], stop: asyncio.Event | None) -> Ended:
        if self.shell not in _SHELLS:
            raise Problem(f"the simulated runner has no shell {self.shell!r}")
        cwd = inside(room.workspace, self.folder or ".")
        if not cwd.is_dir():
            raise Problem(f"there is no folder {self.folder}")
        number = sum(1 for _ in room.temp.glob("step-*"))
        place = room.temp / f"step-{number}"
        place.mkdir()
        self._told = {name: place / name.lower() for name in _FILES}
        for path in self._told.values():
            path.touch()
        written = place / ("script.py" if self.shell == "python" else "script.sh")
        written.write_text(self.text.replace("\r\n", "\n"))
        told = {f"GITHUB_{name}": str(path) for name, path in self._told.items()}
        command = (*_SHELLS[self.shell], str(written))
        return await run_child(command, cwd=cwd, env={**env, **told}, limit_s=self.limit_s, cancelled=stop)

    def outputs(self) -> dict[str, str]:
        return read_pairs(self._told["OUTPUT"])

    def set_variables(self) -> dict[str, str]:
        return read_pairs(self._told["ENV"])

    def added_paths(self) -> list[str]:
        return [line for line in self._told["PATH"].read_text().splitlines() if line][::-1]
