"""`tools/choose-python`: the system's Python is chosen only where it is a much faster build of the same version."""

import os
import subprocess
from pathlib import Path

import pytest

CHOOSE_PYTHON = Path(__file__).parents[3] / "tools" / "choose-python"


@pytest.mark.parametrize(
    ("first", "system", "chosen"),
    [
        ("3.11 4000", "3.11 3000", "system"),
        ("3.11 4000", "3.11 3900", "python3"),
        ("3.11 4000", "3.12 1000", "python3"),
        ("3.11 4000", "3.10 1000", "python3"),
        ("3.11 4000", None, "python3"),
        (None, "3.11 3000", "python3"),
    ],
    ids=["faster", "hardly faster", "newer", "older", "no system Python", "no first Python"],
)
def test_a_much_faster_build_of_the_same_version_is_chosen(
    tmp_path: Path, first: str | None, system: str | None, chosen: str
) -> None:
    for name, measured in (("python3", first), ("system", system)):
        command = tmp_path / name
        command.write_text(f"#!/bin/sh\necho {measured}\n" if measured else "#!/bin/sh\nexit 1\n")
        command.chmod(0o755)
    environment = {"PATH": f"{tmp_path}:{os.environ['PATH']}", "SYSTEM_PYTHON": str(tmp_path / "system")}
    finished = subprocess.run([CHOOSE_PYTHON], env=environment, capture_output=True, text=True, check=True)
    assert Path(finished.stdout.strip()).name == chosen
    assert ("using" in finished.stderr) == (chosen == "system")
