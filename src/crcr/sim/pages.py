"""The little of GitHub's web site that links of the demo lead to: one plain page per repository, pull
request, run or commit. Served only to a browser (it asks for HTML); the API never sees it.
"""

import html
import re
from typing import TYPE_CHECKING

from crcr.sim.exchange import Reply
from crcr.sim.records import Repository

if TYPE_CHECKING:
    from crcr.sim.simulation import Simulation

_PAGE = re.compile(r"/(?P<name>[^/]+/[^/]+?)(?:/(?P<rest>.+))?/?")
_PULL = re.compile(r"pull/(\d+)")
_RUN = re.compile(r"actions/runs/(\d+).*")


def page_for(sim: "Simulation", method: str, path: str, accept: str) -> Reply | None:
    """The page of a path, or None when this is no browser's request for a known repository."""
    found = _PAGE.fullmatch(path)
    if method != "GET" or "text/html" not in accept or found is None:
        return None
    repository = sim.world.find(found["name"])
    if repository is None:
        return None
    return _page(found["name"], _facts(sim, repository, found["rest"] or ""))


def _facts(sim: "Simulation", repository: Repository, rest: str) -> list[str]:
    if shown := _PULL.fullmatch(rest):
        pull = sim.world.pulls.get((repository.id, int(shown[1])))
        if pull is not None:
            state = "merged" if pull.merged else pull.state
            return [
                f"#{pull.number} {pull.title}",
                f"by {pull.author.login}, {state}",
                f"head {pull.head_sha}",
            ]
    if shown := _RUN.fullmatch(rest):
        run = sim.world.runs.get(int(shown[1]))
        if run is not None:
            jobs = [f"{job.name}: {job.conclusion or job.status}" for job in run.jobs]
            return [f"{run.workflow.name} run {run.run_number}, attempt {run.attempt}", *jobs]
    return [repository.description or "No description.", rest]


def _page(title: str, facts: list[str]) -> Reply:
    lines = "".join(f"<p>{html.escape(fact)}</p>" for fact in facts if fact)
    name = html.escape(title)
    text = (
        f"<!doctype html><html lang=en><meta charset=utf-8><title>{name}</title>"
        f"<h1>{name}</h1>{lines}<p><small>A page of the simulated GitHub.</small></p>"
    )
    return Reply(200, raw=text.encode(), media="text/html; charset=utf-8")
