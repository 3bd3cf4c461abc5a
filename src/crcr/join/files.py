"""Generates the files that make a repository a downstream, from a join request.

Templates hold everything that a person reads and edits. Values are checked first, and inserted between quotes or where a
shell reads them. The delimiters are `{=` and `=}`, because `{{` is GitHub's.
"""

import json
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache

from jinja2 import Environment, PackageLoader, StrictUndefined

from crcr.decide.model import Level
from crcr.join.allowlist_entry import allowlist_entry, registration
from crcr.join.help_links import doctor_command
from crcr.join.request import Ci, JoinRequest, check_request, chosen_programs, unusual_secret_targets
from crcr.join.shipped.texts import bridge_text, reporter_text

__all__ = ["NewFile", "allowlist_entry", "generate", "registration"]

REPORTER = ".crcr/report.py"
BRIDGE = ".crcr/bridge.py"
WORKFLOW = ".github/workflows/crcr.yml"
BRIDGE_WORKFLOW = ".github/workflows/crcr-bridge.yml"
NIGHTLY_WORKFLOW = ".github/workflows/crcr-nightly.yml"
CI_FILES = {
    Ci.BUILDKITE: ".buildkite/crcr.yml",
    Ci.GITLAB: ".gitlab/crcr.yml",
    Ci.CIRCLECI: ".circleci/crcr.yml",
}

_BRIDGES = frozenset({"bridge.yml", "bridge-nightly.yml"})
_NIGHTLY_FIRST_HOUR, _NIGHTLY_HOURS = 2, 4


@dataclass(frozen=True, slots=True)
class NewFile:
    path: str
    text: str
    why: str


def generate(request: JoinRequest) -> tuple[NewFile, ...]:
    """Return the files of a valid request, those that a person edits first."""
    if problems := check_request(request):
        raise ValueError("; ".join(problems))
    return tuple(
        _generate_for_github(request) if request.ci is Ci.GITHUB else _generate_for_other_ci(request)
    )


def _generate_for_github(request: JoinRequest) -> Iterator[NewFile]:
    yield NewFile(
        WORKFLOW, _render("github.yml", request), "runs your build for each dispatch and reports it"
    )
    if request.nightly:
        text = _render("github-nightly.yml", request)
        yield NewFile(NIGHTLY_WORKFLOW, text, "tests the upstream's newest commit every night and reports it")
    if request.action is None:
        yield _reporter_file()


def _generate_for_other_ci(request: JoinRequest) -> Iterator[NewFile]:
    title = request.ci.title
    text = _render("bridge.yml", request)
    yield NewFile(
        BRIDGE_WORKFLOW, text, f"starts a build at {title} for each dispatch; runs no code of a pull request"
    )
    why = f"your build at {title}, and the steps that report it"
    yield NewFile(CI_FILES[request.ci], _render(f"{request.ci.value}.yml", request), why)
    if request.nightly:
        text = _render("bridge-nightly.yml", request)
        yield NewFile(
            NIGHTLY_WORKFLOW, text, f"starts a build of the upstream's newest commit at {title} every night"
        )
    yield NewFile(BRIDGE, bridge_text(), "the bridge's script: starts the build at the other CI")
    yield _reporter_file()


def _reporter_file() -> NewFile:
    return NewFile(REPORTER, reporter_text(), "sends the reports; one file without dependencies")


def _render(template: str, request: JoinRequest) -> str:
    """Return the file, after a comment line for each unusual value that a reader should see first."""
    notices = unusual_secret_targets(request) if template in _BRIDGES else chosen_programs(request)
    return "".join(f"# This file {notice}\n" for notice in notices) + _fill_template(template, request)


def _fill_template(template: str, request: JoinRequest) -> str:
    return (
        _environment()
        .get_template(template)
        .render(
            request=request,
            gates=request.level is Level.L4,
            labels=_labels(request.runs_on),
            # Windows has another shell by default, in which the command may be written.
            keeps_log="windows" not in request.runs_on.lower(),
            cron=_cron(request),
            doctor=doctor_command(request.relay_url, request.repository, request.upstream),
        )
    )


def _labels(runs_on: str) -> list[str]:
    return [label.strip() for label in runs_on.split(",")]


def _cron(request: JoinRequest) -> str:
    """Return a nightly time that differs per repository: at full hours GitHub drops scheduled runs."""
    minutes = zlib.crc32(request.repository.key.encode()) % (_NIGHTLY_HOURS * 60)
    return f"{minutes % 60} {_NIGHTLY_FIRST_HOUR + minutes // 60} * * *"


@cache
def _environment() -> Environment:
    # The output is YAML: HTML escapes would be wrong, and the values need none.
    environment = Environment(  # noqa: S701
        loader=PackageLoader("crcr.join"),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        variable_start_string="{=",
        variable_end_string="=}",
    )
    environment.filters.update(quoted=_quote, dollars=_escape_dollars)
    return environment


def _quote(value: object) -> str:
    """Return a value between double quotes, in the form that YAML, TOML and JSON share."""
    return json.dumps(str(value), ensure_ascii=False)


def _escape_dollars(text: str) -> str:
    """Escape a shell line for Buildkite, which replaces `$NAME` in the file itself."""
    return text.replace("$", "$$")
