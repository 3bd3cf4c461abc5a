"""The relay's answers about culprits, read from its JSON API."""

from dataclasses import dataclass

import httpx


@dataclass(frozen=True, slots=True)
class CulpritAnswer:
    """One breakage of a job, as the relay sees it."""

    backend: str
    job: str
    good: str | None
    bad: str
    candidates: tuple[str, ...]
    """Commits, the likeliest first."""
    reasons: tuple[tuple[str, ...], ...]


async def read_culprits(http: httpx.AsyncClient) -> tuple[CulpritAnswer, ...]:
    response = await http.get("/api/v1/culprits", params={"limit": 200})
    response.raise_for_status()
    return tuple(
        CulpritAnswer(
            backend=str(found["backend"]).lower(),
            job=str(found["job"]),
            good=found["range"]["good"],
            bad=found["range"]["bad"],
            candidates=tuple(str(candidate["sha"]) for candidate in found["candidates"]),
            reasons=tuple(tuple(candidate["reasons"]) for candidate in found["candidates"]),
        )
        for found in response.json()
    )
