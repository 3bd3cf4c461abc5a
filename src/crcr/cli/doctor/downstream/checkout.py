"""Compares a checkout of the downstream with what was last fetched from origin.

Reads files and runs git; changes nothing and uses no network.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from crcr.cli.git_checkout import find_local_default_branch, find_origin_name, find_top_folder, run_git
from crcr.decide.github.repository_setup import Pinning
from crcr.decide.model import RepoName
from crcr.deliver.handlers.workflow_yaml import find_pins_elsewhere, workflow_facts
from crcr.join.ci_kinds import Ci
from crcr.join.files import BRIDGE, CI_FILES, REPORTER
from crcr.join.findings.finding import SetupFinding, ok, problem, unknown, warning
from crcr.join.findings.github import lines_to_add, pinning_finding, pins_relay
from crcr.join.shipped.texts import bridge_text, reporter_text

_VENDORED = {REPORTER: reporter_text, BRIDGE: bridge_text}
_WORKFLOWS = Path(".github/workflows")
_MAX_BYTES = 256 * 1024
_FILE_PINS = "file_pins"


@dataclass(frozen=True, slots=True)
class Checkout:
    root: Path
    repository: RepoName | None
    """From the remote `origin`."""

    @property
    def branch(self) -> str | None:
        """Origin's default branch, as this checkout knows it."""
        default_branch = find_local_default_branch(self.root)
        return f"origin/{default_branch.name}" if default_branch else None


def find_checkout(folder: Path) -> Checkout | None:
    root = find_top_folder(folder)
    return Checkout(root, find_origin_name(folder)) if root else None


def checkout_findings(
    checkout: Checkout, repository: RepoName, pin: str | None = None
) -> tuple[SetupFinding, ...]:
    """Return nothing for a checkout of another repository; `pin` is how files should pin the relay, if known."""
    if checkout.repository != repository:
        return ()
    return (*_findings(checkout), *_pin_findings(checkout.root, pin))


def _findings(checkout: Checkout) -> Iterator[SetupFinding]:
    branch = checkout.branch
    listening = [
        path for path in _workflow_files(checkout.root) if _listens_to_dispatches(checkout.root / path)
    ]
    if not listening:
        yield warning(
            "files", "No workflow here listens to repository_dispatch.", "run `crcr init` to write one"
        )
    for path in listening:
        yield _compare_with_origin(checkout, path, branch)
    for name, text in _VENDORED.items():
        if (checkout.root / name).is_file():
            yield _compare_script(checkout, name, text(), branch)


def _workflow_files(root: Path) -> list[str]:
    folder = root / _WORKFLOWS
    paths = (
        (path for ending in ("*.yml", "*.yaml") for path in folder.glob(ending)) if folder.is_dir() else ()
    )
    return sorted(str(path.relative_to(root)) for path in paths if path.is_file())


def _listens_to_dispatches(file: Path) -> bool:
    return workflow_facts(file.name, "", _read_text(file)).listens


def _read_text(file: Path) -> str:
    """Return an empty text for a file larger than any workflow."""
    return file.read_text("utf-8", "replace") if file.stat().st_size <= _MAX_BYTES else ""


def _pin_findings(root: Path, pin: str | None) -> Iterator[SetupFinding]:
    """Return one finding per file that runs the reporter or the bridge."""
    pinnings = [(path, Ci.GITHUB, _github_pins(root / path)) for path in _workflow_files(root)]
    elsewhere = [(path, ci) for ci, path in CI_FILES.items() if (root / path).is_file()]
    pinnings += [(path, ci, find_pins_elsewhere(_read_text(root / path))) for path, ci in elsewhere]
    for path, ci, (pinning, pins) in pinnings:
        if pinning is Pinning.PINNED and pin is not None and not pins_relay(pins, pin):
            text = f"{path} here pins other relays and not this one, so the reporter refuses its dispatches."
            yield problem(_FILE_PINS, text, lines_to_add(pin, ci))
        elif pinning is not Pinning.NONE:
            yield replace(pinning_finding(pinning, f"{path} here", pin, ci=ci), name=_FILE_PINS)


def _github_pins(file: Path) -> tuple[Pinning, tuple[str, ...]]:
    facts = workflow_facts(file.name, "", _read_text(file))
    return facts.pinning or Pinning.NONE, facts.pins


def _compare_with_origin(checkout: Checkout, path: str, branch: str | None) -> SetupFinding:
    """Compare the file with origin's default branch as last fetched."""
    if branch is None:
        return unknown(
            "files", f"{path} is here; origin's default branch is unknown.", "run `git fetch origin`"
        )
    branch_hash = run_git(checkout.root, "rev-parse", "--verify", "--quiet", f"{branch}:{path}")
    local_hash = run_git(checkout.root, "hash-object", "--", path)
    if not branch_hash:
        hint = "commit, push and merge it: GitHub runs dispatches only from the default branch"
        return warning("files", f"{path} is here, but not on {branch} (as last fetched).", hint)
    if local_hash != branch_hash:
        hint = "commit, push and merge it; or `git fetch`, if you did"
        return warning("files", f"{path} here differs from the one on {branch} (as last fetched).", hint)
    return ok("files", f"{path} is the same here and on {branch}.")


def _compare_script(checkout: Checkout, name: str, ours: str, branch: str | None) -> SetupFinding:
    """Compare a script that `crcr init` wrote with this release's."""
    if (checkout.root / name).read_text("utf-8", "replace") != ours:
        return warning(
            "reporter",
            f"{name} differs from this release's.",
            "`crcr init` updates it and shows the changes",
        )
    if branch and not run_git(checkout.root, "rev-parse", "--verify", "--quiet", f"{branch}:{name}"):
        return warning("reporter", f"{name} is here, but not on {branch} (as last fetched).", "commit it too")
    return ok("reporter", f"{name} is up to date.")
