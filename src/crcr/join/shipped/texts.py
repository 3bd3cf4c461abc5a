"""The reporter's text, as it is put into a downstream's repository.

`report.py` beside this module is a link to `action/report.py`: one file that runs alone on Python 3.8. It is read
here as text and never imported.
"""

from functools import cache
from importlib.resources import files


@cache
def reporter_text() -> str:
    return files("crcr.join.shipped").joinpath("report.py").read_text(encoding="utf-8")


@cache
def bridge_text() -> str:
    """Return the script of the bridge, which is vendored beside the reporter where another CI runs the build."""
    return files("crcr.join.shipped").joinpath("bridge.py").read_text(encoding="utf-8")
