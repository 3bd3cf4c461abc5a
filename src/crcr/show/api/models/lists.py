"""The JSON API's models of the lists of pull requests and of commits, and of search results and suggestions."""

from crcr.decide.views import grids, search
from crcr.show.api.models import examples
from crcr.show.api.models.derive import Cursor, Model, Next, derive_model
from crcr.show.render.status import Status

BACKEND_CELL = derive_model(
    grids.BackendCell,
    "BackendCell",
    "One backend's results for a commit, by the jobs that count.",
    described={
        "level": "When the event was recorded.",
        "state": "As on the page of the pull request or commit.",
        "failed": "Jobs that failed, timed out or went silent.",
        "other": "Jobs that were cancelled, skipped or neutral.",
    },
)
PULL_LINE = derive_model(
    grids.PullLine,
    "PullListItem",
    described={
        "opened_at": "Null until a webhook names it.",
        "delivery": "The GUID of the delivery whose results these are; null where nothing was dispatched.",
        "gate": "As it was last judged; null before that.",
        "verdict": "The worst verdict on its failed jobs; null where none failed.",
        "waits_for": "What an open pull request waits for; null where nothing is known.",
        "backends": "Those at L2 and above that the event was dispatched to, by name.",
    },
)
PULL_LIST = derive_model(
    grids.PullList,
    "PullList",
    without=("cursor", "columns", "has_gate"),
    types={"next": Next},
    example=examples.PULL_LIST,
)
IN_TREE_CELL = derive_model(
    grids.InTreeCell, "InTreeCounts", "How many of the upstream's own checks passed, failed and run."
)
COMMIT_LINE = derive_model(
    grids.CommitLine,
    "CommitListItem",
    described={
        "number": "The pull request that its message says it merges.",
        "author": "Of that pull request.",
        "delivery": "The GUID of the delivery that tested it; null where none did: of a push, its last commit is tested.",
        "in_tree": "Null where no check of the upstream's own CI was recorded.",
    },
)
COMMIT_LIST = derive_model(
    grids.CommitList,
    "CommitList",
    without=("cursor", "columns", "opened"),
    types={"next": Next},
    described={"branch": "Null while the default branch is not known."},
    example=examples.COMMIT_LIST,
)


HIT = derive_model(
    search.Hit,
    "Hit",
    "A search result; which fields are set depends on its kind.",
    described={"at": "When it last changed, arrived, began or failed."},
)
FURTHER_HITS = derive_model(
    search.FurtherHits,
    "FurtherHits",
    "More results of one kind: pass `kind` on as `type` and `next` as `cursor`.",
    types={"next": Next},
)
SEARCH = derive_model(
    search.SearchView,
    "Search",
    "`exact` is set when exactly one thing matches; `more` lists the kinds with more results. With `type`, `next` is"
    " the cursor of that kind; without it, of an author's further pull requests.",
    types={"next": (Cursor, None)},
)
CHIP = derive_model(Status, "Chip", "A status as pages show it.")


class Suggestion(Model):
    """A likely result of a text that is still being typed."""

    kind: search.HitKind
    title: str
    detail: str | None
    url: str
    chips: list[CHIP]  # type: ignore[valid-type]


class SuggestionList(Model):
    """At most ten, the likeliest first."""

    text: str
    suggestions: list[Suggestion]
