"""The little of GitHub's web site that a demo leads to: open pull requests, one of them with its checks and
merge box, the merge queue, a run, a check, a file, the App. Served only to a browser (it asks for HTML); the API never sees it.
"""

import re
from collections.abc import Callable
from typing import TYPE_CHECKING

from github_sim.rest.exchange import Reply
from github_sim.web.html import Html, joined, page, tag
from github_sim.web.pages import (
    APP_PATH,
    app_page,
    file_page,
    index_page,
    queue_page,
    repository_page,
    run_page,
)
from github_sim.web.pull_request import check_page, pull_page
from github_sim.world.records import Repository

if TYPE_CHECKING:
    from github_sim.simulation import Simulation

Page = Callable[["Simulation", Repository, int], Html | None]
_REPOSITORY = re.compile(r"/(?P<name>[^/]+/[^/]+?)(?:/(?P<rest>.+))?/?")
_BLOB = "blob/"
_PAGES: tuple[tuple[re.Pattern[str], Page], ...] = (
    (re.compile(r"pull/(\d+)(?:/.*)?"), pull_page),
    (re.compile(r"actions/runs/(\d+)(?:/.*)?"), run_page),
    (re.compile(r"runs/(\d+)"), check_page),
)


def is_for_people(method: str, accept: str) -> bool:
    """Whether a browser asks; what it asks for in vain is a wrong address, and no surprise."""
    return method == "GET" and "text/html" in accept


def page_for(sim: "Simulation", method: str, path: str, accept: str) -> Reply | None:
    """The page of a path, or None when this is no browser's request for something known."""
    if method == "GET" and path == "/favicon.ico":
        return Reply(204)
    if not is_for_people(method, accept):
        return None
    if path == "/":
        return page("Pull requests", index_page(sim))
    if path == APP_PATH or path.startswith(f"{APP_PATH}/"):
        return page("App", app_page(sim))
    found = _REPOSITORY.fullmatch(path)
    repository = sim.world.find(found["name"]) if found else None
    if found is None or repository is None:
        return None
    return page(repository.full_name, _body(sim, repository, found["rest"] or ""))


def _body(sim: "Simulation", repository: Repository, rest: str) -> Html:
    if rest == "queue":
        return queue_page(sim, repository)
    if rest.startswith(_BLOB):
        shown = file_page(sim, repository, rest.removeprefix(_BLOB))
        return shown or joined(tag("h1", "No such file"), tag("p", rest.removeprefix(_BLOB)))
    for pattern, made in _PAGES:
        if (found := pattern.fullmatch(rest)) and (body := made(sim, repository, int(found[1]))) is not None:
            return body
    return repository_page(sim, repository)
