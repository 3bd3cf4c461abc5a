"""A search result as it is shown: the address that it leads to, and its status chips."""

from crcr.decide.statistics.figures import CountedAs
from crcr.decide.views.search import Hit, HitKind
from crcr.show.render import status
from crcr.show.render.status import Status
from crcr.show.urls.location import PageLocation

_LONGEST = 200
_RESULTS = {
    CountedAs.SUCCESS: status.SUCCESS,
    CountedAs.FAILURE: Status("X", "failure", "bad"),
    CountedAs.RUNNING: status.RUNNING,
    CountedAs.OTHER: Status("N", "inconclusive", "off"),
}
_KNOWN = Status("~", "known", "off")


def hit_url(location: PageLocation, hit: Hit) -> str | None:
    if hit.kind is HitKind.COMMIT and hit.head_sha:
        return location.commit(hit.head_sha, hit.delivery)
    if hit.fingerprint:
        return location.url(f"/crcr/failures/{hit.fingerprint}")
    if hit.kind is HitKind.JOB and hit.backend and hit.job:
        return location.url(f"/crcr/{hit.backend}", jobs=hit.job[:_LONGEST])
    if hit.backend:
        return location.backend(hit.backend)
    return location.pull(hit.number) if hit.number else None


def hit_chips(hit: Hit) -> list[Status]:
    """The state of a pull request and its gate, or the newest result of a backend or job."""
    chips = []
    if hit.state is not None:
        chips.append(status.PULLS[hit.state])
    if hit.gate is not None:
        gate = status.GATES[hit.gate]
        chips.append(Status(gate.letter, f"gate {gate.word}", gate.tone))
    if hit.result is not None:
        chips.append(_RESULTS[hit.result])
    if hit.known:
        chips.append(_KNOWN)
    return chips
