"""The manifest that maintainers create the App from asks for what the relay uses, and for nothing else."""

import json

from crcr.github.api import request_response
from crcr.receive.webhook import parse
from support.paths import ROOT

MANIFEST = json.loads((ROOT / "docs" / "examples" / "app-manifest.json").read_text())
ALWAYS_SENT = {"ping", "installation", "installation_repositories"}
FOR_GITHUB_ITSELF = {"statuses", "merge_queues"}
"""One lets GitHub offer the App as the source of a required check, the other lets its events through."""

NOT_ASKED_FOR = {"ISSUES_WRITE"}
"""Only channels of kind `issue` need it: who uses them grants it by hand, and nobody else has to (docs/upstream.md)."""


def used_permissions() -> dict[str, str]:
    used: dict[str, str] = {}
    for name, value in vars(request_response).items():
        if name.isupper() and name.endswith(("_READ", "_WRITE")) and name not in NOT_ASKED_FOR:
            for permission, access in value:
                used[permission] = max(used.get(permission, "read"), access)
    return used


def test_the_manifest_asks_for_the_permissions_that_calls_are_made_with() -> None:
    asked = MANIFEST["default_permissions"]

    assert {
        name: access for name, access in asked.items() if name not in FOR_GITHUB_ITSELF
    } == used_permissions()
    assert set(asked) >= FOR_GITHUB_ITSELF


def test_the_manifest_subscribes_to_the_events_that_are_acted_on() -> None:
    assert set(MANIFEST["default_events"]) == set(parse.events()) - ALWAYS_SENT


def test_a_public_app_can_be_installed_by_downstreams() -> None:
    assert MANIFEST["public"] is True
    assert MANIFEST["hook_attributes"]["url"].endswith("/github/webhook")
