"""Join requests and the files that are generated from them: one for a test, or every combination for the linters."""

from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Any

from crcr.decide.model import Level, RepoName
from crcr.join.files import generate
from crcr.join.request import Ci, JoinRequest

RELAY = "https://relay.example.org"
ACTION = f"pytorch/crcr/action@{'a' * 40}"
CI_PROJECTS: dict[Ci, dict[str, str]] = {
    Ci.GITHUB: {},
    Ci.BUILDKITE: {"organization": "acme", "pipeline": "crcr"},
    Ci.GITLAB: {"project_id": "42"},
    Ci.CIRCLECI: {"project": "gh/org/backend"},
}


def join_request(ci: Ci = Ci.GITHUB, **changes: Any) -> JoinRequest:
    level = changes.get("level", Level.L2)
    fields: dict[str, Any] = {
        "ci": ci,
        "upstream": RepoName("pytorch/pytorch"),
        "repository": RepoName("org/backend"),
        "relay_url": RELAY,
        "audience": "crcr",
        "device": "npu" if level is Level.L3 else None,
        "oncalls": ("ada",) if level >= Level.L3 else (),
        "place": CI_PROJECTS[ci],
    }
    return JoinRequest(**{**fields, **changes})


def all_join_requests() -> Iterator[JoinRequest]:
    """Every CI, level, way to report, with and without nightly and test results."""
    for ci, level, nightly, junit in product(Ci, Level, (False, True), (None, "out/**/*.xml")):
        for action in (None, ACTION) if ci is Ci.GITHUB else (None,):
            yield join_request(ci, level=level, nightly=nightly, junit=junit, action=action)


def generated_text(path: str, request: JoinRequest) -> str:
    return next(file.text for file in generate(request) if file.path == path)


def write_all_files(folder: Path) -> list[Path]:
    """Write the files of every join request, each in its own sub-folder; return their paths."""
    written = []
    for number, request in enumerate(all_join_requests()):
        for file in generate(request):
            path = folder / f"{number}-{request.ci.value}" / file.path
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(file.text, encoding="utf-8")
            written.append(path)
    return written
