"""`add_base`: the courses of in-tree checks along the commits of the base branch, a letter for each commit."""

from crcr.decide.in_tree.checks import InTreeCheck
from support.data.base_history import sha_of
from support.data.store_rows import StoreRows

_CONCLUSIONS = {"+": "success", "x": "failure", "c": "cancelled", "s": "skipped", "r": None}


def a_check(name: str, letter: str, app_id: int = 15_368) -> InTreeCheck:
    conclusion = _CONCLUSIONS[letter]
    return InTreeCheck(app_id, name, 7, None if conclusion is None else 9, conclusion, "https://ci.test/1")


def add_base(store: StoreRows, *, packed: bool = True, **courses: str) -> None:
    """Add the checks of the commits from position 1 on; a dot is a commit on which a check did not run."""
    for position in range(1, max(map(len, courses.values())) + 1):
        letters = {name: course[position - 1 : position] for name, course in courses.items()}
        checks = [a_check(name, letter) for name, letter in letters.items() if letter.strip(".")]
        if checks:
            store.in_tree(sha_of(position), *checks, packed=packed)
