"""Thresholds of verdicts are settings of an upstream; their defaults are those of the rules."""

from datetime import timedelta
from pathlib import Path

from crcr.decide.failures.verdict import VerdictPolicy
from crcr.settings import load_settings
from crcr.wiring.core import verdict_policy
from support.data.operator_database import relay_environment


def test_the_default_thresholds_are_those_of_the_rules(tmp_path: Path) -> None:
    settings = load_settings(config=None, environ=relay_environment(tmp_path), cwd=tmp_path)
    assert verdict_policy(settings.upstreams[0]) == VerdictPolicy()


def test_an_upstream_sets_its_own_thresholds(tmp_path: Path) -> None:
    allowlist = tmp_path / "allowlist.yml"
    allowlist.write_text("L1: []\n")
    (tmp_path / "crcr.toml").write_text(
        f'[[upstream]]\nname = "org/core"\nallowlist = "{allowlist}"\nverdict_window_days = 7\nverdict_flips = 5\n'
        "verdict_fleet_percent = 95\n"
    )
    environment = {
        name: value
        for name, value in relay_environment(tmp_path).items()
        if name not in {"CRCR_UPSTREAM", "CRCR_ALLOWLIST"}
    }
    settings = load_settings(config=None, environ=environment, cwd=tmp_path)
    policy = verdict_policy(settings.upstreams[0])
    assert (policy.window, policy.flips_for_flaky, policy.fleet_share) == (timedelta(days=7), 5, 0.95)
