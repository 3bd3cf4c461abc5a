"""The texts of the reporter and the bridge, which are copied into a downstream's repository.

`report.py` in this folder is a link to `action/report.py`: a single file that runs on Python 3.8. It is read as text and
never imported.
"""

from functools import cache
from importlib.resources import files


@cache
def reporter_text() -> str:
    return files("crcr.join.shipped").joinpath("report.py").read_text(encoding="utf-8")


@cache
def bridge_text() -> str:
    """Return the bridge's script, for repositories whose builds run at another CI."""
    return files("crcr.join.shipped").joinpath("bridge.py").read_text(encoding="utf-8")
