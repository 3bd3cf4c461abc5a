"""What the doctor wants of the App is what the manifest asks for."""

import json
from pathlib import Path

from crcr.decide import app_needs

MANIFEST = json.loads((Path(__file__).parents[2] / "docs" / "examples" / "app-manifest.json").read_text())


def test_permissions_and_events_are_those_of_the_manifest() -> None:
    assert MANIFEST["default_permissions"] == {**app_needs.ALWAYS, **app_needs.TO_SPEAK}
    assert {*app_needs.EVENTS_ALWAYS, *app_needs.EVENTS_TO_SPEAK} == set(MANIFEST["default_events"])


def test_more_than_is_wanted_is_enough_and_less_is_not() -> None:
    granted = {"contents": "admin", "metadata": "read", "pull_requests": "read", "checks": "odd"}
    assert app_needs.lacking(granted, app_needs.ALWAYS) == ("pull_requests: write",)
    assert app_needs.lacking(granted, {"checks": "read", "none": "read"}) == ("checks: read", "none: read")
