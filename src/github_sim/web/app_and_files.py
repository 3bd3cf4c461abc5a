"""The simulator's pages that the relay's own pages lead to: the App, and a file as it stands on a branch."""

from typing import TYPE_CHECKING

from github_sim.bodies.repositories import APP_NAME, APP_SLUG
from github_sim.web.html import Html, joined, link, tag
from github_sim.world.records import Installation, Repository

if TYPE_CHECKING:
    from github_sim.simulation import Simulation

APP_PATH = f"/apps/{APP_SLUG}"
MOST_CHARACTERS = 200_000


def app_page(sim: "Simulation") -> Html:
    """Where somebody would install it."""
    rows = [_installation(sim, each) for each in sim.world.installations.values()]
    joining = tag("p", "In the demo, ", tag("code", "crcr demo-join owner/name"), " installs it.")
    return joined(
        tag("h1", APP_NAME),
        tag("p", "The GitHub App of the relay."),
        tag("div", joining, class_="card wait"),
        tag("h2", "Installed on"),
        tag("ul", *rows) if rows else tag("p", "No repository."),
    )


def _installation(sim: "Simulation", installation: Installation) -> Html:
    held = [sim.world.repositories.get(number) for number in sorted(installation.repository_ids)]
    names = [link(f"/{each.full_name}", each.full_name) for each in held if each is not None]
    spaced = [part for name in names for part in (", ", name)][1:]
    return tag("li", *spaced, " (suspended)" if installation.suspended_at else "")


def file_page(sim: "Simulation", repository: Repository, place: str) -> Html | None:
    """`place` is a branch or a commit, and a path. A branch's name may hold slashes, so all places are tried."""
    parts = place.split("/")
    for end in range(1, len(parts)):
        ref, path = "/".join(parts[:end]), "/".join(parts[end:])
        commit = sim.world.resolve(repository, ref)
        if commit is not None and path in commit.tree:
            return _file(repository, ref, path, commit.tree[path])
    return None


def _file(repository: Repository, ref: str, path: str, content: bytes) -> Html:
    words = content.decode("utf-8", "replace")
    cut = len(words) > MOST_CHARACTERS
    adding = tag("code", "crcr demo-join")
    return joined(
        tag("h1", path),
        tag("p", link(f"/{repository.full_name}", repository.full_name), " at ", tag("code", ref)),
        tag("pre", words[:MOST_CHARACTERS]),
        tag("p", "The rest is not shown.", class_="soft") if cut else "",
        tag("p", "Read only. In the demo, ", adding, " adds a repository to the allowlist.", class_="soft"),
    )
