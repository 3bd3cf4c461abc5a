"""GitHub's words about runs and jobs, read one way wherever they come from: webhooks or answers.

GitHub has conclusions that a report cannot have; each counts as the nearest one that we know, and one that we have
never heard of counts as a failure, so that nothing passes by being unknown.
"""

import re
from collections.abc import Collection

from crcr.decide.model import Conclusion

_CONCLUSIONS = {known.value: known for known in Conclusion if known is not Conclusion.NONE} | {
    "startup_failure": Conclusion.FAILURE,
    "stale": Conclusion.CANCELLED,
}
# GitHub adds the ref to the path of some runs (`.github/workflows/ci.yml@main`); ours are told apart without it.
_PATH_WITH_REF = re.compile(r"(?P<path>.*?\.ya?ml)@.*", re.DOTALL)
_CHECK_RUN_URL = re.compile(r".*/check-runs/([0-9]{1,20})/?", re.DOTALL)
_GUID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}", re.IGNORECASE)
_MOST_NAMED = 20
_MOST_TITLE = 4_096
"""Characters of a run's name that are looked at."""


def parse_conclusion(word: str | None) -> Conclusion | None:
    return None if word is None else _CONCLUSIONS.get(word, Conclusion.FAILURE)


def path_without_ref(path: str) -> str:
    found = _PATH_WITH_REF.fullmatch(path)
    return found["path"] if found else path


def parse_check_run_id(url: str | None) -> str | None:
    """The id at the end of a job's `check_run_url`, which is the one that its token signs."""
    found = _CHECK_RUN_URL.fullmatch(url or "")
    return found[1] if found else None


def delivery_ids_in(display_title: str) -> tuple[str, ...]:
    """What looks like a delivery's id in a run's name, as far as anybody would look."""
    title = display_title[:_MOST_TITLE]
    return tuple(dict.fromkeys(each.lower() for each in _GUID.findall(title)))[:_MOST_NAMED]


def other_delivery_named(display_title: str, claimed: str, sent: Collection[str]) -> str | None:
    """The delivery that a run's name holds instead of the claimed one: just one of those sent to its repository.

    None where the name holds the claimed one as well: it may hold what anybody wrote beside it.
    """
    if claimed.lower() in display_title.lower():
        return None
    named = {guid for guid in delivery_ids_in(display_title) if guid in sent}
    return named.pop() if len(named) == 1 else None
