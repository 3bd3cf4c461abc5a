"""The App manifest requests exactly the permissions and events that the relay uses."""

import json

from crcr.github.api import request_response
from crcr.receive.webhook import parse
from support.paths import ROOT

MANIFEST = json.loads((ROOT / "docs" / "examples" / "app-manifest.json").read_text())
ALWAYS_SENT = {"ping", "installation", "installation_repositories"}
FOR_GITHUB_ITSELF = {"statuses", "merge_queues"}
"""One lets GitHub offer the App as the source of a required check, the other lets the App receive its events."""

NOT_REQUESTED = {"ISSUES_WRITE"}
"""Only channels of kind `issue` need it: operators who use them grant it by hand (docs/upstream.md)."""


def used_permissions() -> dict[str, str]:
    used: dict[str, str] = {}
    for name, value in vars(request_response).items():
        if name.isupper() and name.endswith(("_READ", "_WRITE")) and name not in NOT_REQUESTED:
            for permission, access in value:
                used[permission] = max(used.get(permission, "read"), access)
    return used


def test_the_manifest_requests_exactly_the_permissions_that_calls_use() -> None:
    requested = MANIFEST["default_permissions"]

    assert {
        name: access for name, access in requested.items() if name not in FOR_GITHUB_ITSELF
    } == used_permissions()
    assert set(requested) >= FOR_GITHUB_ITSELF


def test_the_manifest_subscribes_to_the_events_that_the_relay_handles() -> None:
    assert set(MANIFEST["default_events"]) == set(parse.events()) - ALWAYS_SENT


def test_a_public_app_can_be_installed_by_downstreams() -> None:
    assert MANIFEST["public"] is True
    assert MANIFEST["hook_attributes"]["url"].endswith("/github/webhook")
