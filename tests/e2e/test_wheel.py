"""The package as it is installed: what is read as data is in it."""

import subprocess
import sys
from pathlib import Path
from zipfile import ZipFile

ROOT = Path(__file__).resolve().parent.parent.parent


def test_the_wheel_holds_the_reporter_and_all_templates(tmp_path: Path) -> None:
    words = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)]
    subprocess.run(words, cwd=ROOT, check=True, capture_output=True, timeout=100)
    [wheel] = tmp_path.glob("*.whl")
    with ZipFile(wheel) as packed:
        names = set(packed.namelist())
        assert packed.read("crcr/join/report.py") == (ROOT / "action" / "report.py").read_bytes()
    source = ROOT / "src"
    data = [path for path in source.glob("crcr/*/templates/*") if path.is_file()]
    assert {str(path.relative_to(source)) for path in data} <= names
