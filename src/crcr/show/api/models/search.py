"""The JSON API's models of search results and suggestions."""

from crcr.decide.views import search
from crcr.show.api.models.derive import Cursor, Model, Next, derive_model
from crcr.show.render.status import Status

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
