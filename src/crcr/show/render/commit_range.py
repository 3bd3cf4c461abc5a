"""The range of a bisection as a picture: a cell for each commit, from the good end to the bad end.

A cell has the letter and the tone of its finding. The ends and the culprit are emphasised, and a bracket holds the commits that
may still be the one. Titles name the commit; the list below the picture says the same to readers without a mouse.
"""

from collections import Counter

from markupsafe import Markup

from crcr.decide.bisection.search import CommitFinding
from crcr.decide.views.bisections import BisectionCommit, BisectionDetail, name_commit
from crcr.show.render.markup import escape_text
from crcr.show.render.status import FINDINGS, Status

_MANY = 100
"""More commits than this are drawn with small cells."""
_MOST_TITLE = 120
UNDECIDED = Status("~", "undecided", "warn")
"""A commit that needed another run when the bisection ended."""


def find_status(detail: BisectionDetail, commit: BisectionCommit) -> Status:
    is_over = detail.bisection.outcome is not None
    return UNDECIDED if is_over and commit.finding is CommitFinding.OPEN else FINDINGS[commit.finding]


def list_statuses(detail: BisectionDetail) -> tuple[tuple[Status, int], ...]:
    """The findings that the range has, with the number of their commits."""
    counted = Counter(find_status(detail, commit) for commit in detail.commits)
    return tuple((status, counted[status]) for status in (*FINDINGS.values(), UNDECIDED) if counted[status])


def describe_place(detail: BisectionDetail, position: int) -> str:
    """What a commit is in its range, beside its finding."""
    commit, culprit = detail.commits[position], detail.bisection.culprit
    if culprit is not None and commit.sha == culprit.sha:
        return "the culprit"
    if position == 0:
        return "the good end"
    if position == len(detail.commits) - 1:
        return "the bad end, may be the culprit" if commit.is_candidate else "the bad end"
    return "may be the culprit" if commit.is_candidate else ""


def draw_range(detail: BisectionDetail) -> Markup:
    size = " many" if len(detail.commits) > _MANY else ""
    cells = "".join(_draw_cell(detail, position) for position in range(len(detail.commits)))
    label = escape_text(_describe_picture(detail))
    return Markup(f'<div class="range{size}" role="img" aria-label="{label}">{cells}</div>')  # noqa: S704


def _describe_picture(detail: BisectionDetail) -> str:
    parts = ", ".join(f"{number} {status.word}" for status, number in list_statuses(detail))
    left = sum(commit.is_candidate for commit in detail.commits)
    return f"{len(detail.commits):,} commits from the good end to the bad end: {parts}; {left} may be the culprit"


def _draw_cell(detail: BisectionDetail, position: int) -> str:
    commit, status = detail.commits[position], find_status(detail, detail.commits[position])
    place = describe_place(detail, position)
    name = f"{name_commit(commit.sha, commit.number)} {commit.title}"
    title = f"{escape_text(name, _MOST_TITLE)}: {', '.join(filter(None, (status.word, place)))}"
    classes = " ".join((status.tone, *_find_classes(detail, position)))
    return f'<span class="{classes}" title="{title}">{status.letter}</span>'


def _find_classes(detail: BisectionDetail, position: int) -> list[str]:
    """Classes of the ends, of the culprit, and of the bracket around the candidates."""
    commits, culprit = detail.commits, detail.bisection.culprit
    last = len(commits) - 1
    is_left = commits[position].is_candidate
    begins = is_left and (position == 0 or not commits[position - 1].is_candidate)
    ends = is_left and (position == last or not commits[position + 1].is_candidate)
    marks = {
        "end": position in (0, last),
        "culprit": culprit is not None and commits[position].sha == culprit.sha,
        "left": is_left,
        "from": begins,
        "until": ends,
    }
    return [name for name, applies in marks.items() if applies]
