"""The checks of a commit in one small value, for a commit whose checks have been quiet for a while.

Names are sorted and numbers are kept as differences, so that a compressed list of hundreds of checks has a few kilobytes. Links
are kept for failed checks only: no page shows the others.
"""

import json
import zlib
from collections.abc import Iterable, Iterator

from crcr.decide.in_tree.checks import CheckKey, InTreeCheck, Outcome


def pack_checks(checks: Iterable[InTreeCheck]) -> bytes:
    """Return the checks as bytes; of each key there must be one."""
    ordered = sorted(checks, key=lambda check: check.key)
    first_id = min((check.check_id for check in ordered), default=0)
    first_end = min((check.ended_at for check in ordered if check.ended_at is not None), default=0)
    columns = {
        "first_id": first_id,
        "first_end": first_end,
        "apps": [check.app_id for check in ordered],
        "names": [check.name for check in ordered],
        "ids": [check.check_id - first_id for check in ordered],
        "ends": [None if check.ended_at is None else check.ended_at - first_end for check in ordered],
        "conclusions": [check.conclusion for check in ordered],
        "urls": [check.url if check.outcome is Outcome.FAILED else None for check in ordered],
    }
    return zlib.compress(json.dumps(columns, separators=(",", ":")).encode(), 6)


def unpack_checks(packed: bytes | None) -> Iterator[InTreeCheck]:
    if packed is None:
        return
    columns = json.loads(zlib.decompress(packed))
    first_id, first_end = columns["first_id"], columns["first_end"]
    names = ("apps", "names", "ids", "ends", "conclusions", "urls")
    for app_id, name, check_id, end, conclusion, url in zip(*(columns[name] for name in names), strict=True):
        ended_at = None if end is None else end + first_end
        yield InTreeCheck(app_id, name, check_id + first_id, ended_at, conclusion, url)


def unpack_conclusions(packed: bytes | None) -> Iterator[tuple[CheckKey, str | None]]:
    """Only the conclusion of each check, which takes half of the time."""
    if packed is None:
        return
    columns = json.loads(zlib.decompress(packed))
    keys = zip(columns["apps"], columns["names"], strict=True)
    yield from zip(keys, columns["conclusions"], strict=True)


def find_packed(packed: bytes | None, key: CheckKey) -> InTreeCheck | None:
    return next((check for check in unpack_checks(packed) if check.key == key), None)
