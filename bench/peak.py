"""Two peak hours of a large upstream in simulated time, within one installation's budget of GitHub's."""

import json
from pathlib import Path

from bench.figures import Figures, figures_of, rows_of
from bench.in_process import log_errors_only, simulated_relay
from bench.peak_world import BACKENDS, UPSTREAM, PeakTraffic, peak_world
from bench.simulated_time import run_simulated
from bench.world import AUDIENCE, Row
from crcr.settings import Settings, load_settings
from github_sim.github import GitHub


def _settings(folder: Path, github: GitHub, url: str) -> Settings:
    issuer = {"issuer": github.issuer_url, "kind": "github", "jwks_url": github.jwks_url}
    environ = {
        "CRCR_UPSTREAM": UPSTREAM,
        "CRCR_ALLOWLIST": f"{github.base_url}/{UPSTREAM}/blob/main/.github/crcr-allowlist.yml",
        "CRCR_GITHUB_APP_ID": str(github.app_id),
        "CRCR_GITHUB_APP_PRIVATE_KEY": github.private_key_pem,
        "CRCR_GITHUB_WEBHOOK_SECRET": github.webhook_secret,
        "CRCR_GITHUB_API_URL": github.base_url,
        "CRCR_PUBLIC_URL": url,
        "CRCR_DATABASE_URL": f"sqlite:///{folder / 'crcr.db'}",
        "CRCR_OIDC_AUDIENCE": AUDIENCE,
        "CRCR_OIDC_ISSUERS": json.dumps([issuer]),
    }
    return load_settings(config=None, environ=environ, cwd=folder)


async def at_peak(folder: Path, seconds: float, *, seed: int = 1) -> Figures:
    async with simulated_relay(folder, seed=seed, make_world=peak_world, settings_for=_settings) as peak:
        await PeakTraffic(peak.github, seed).run(seconds)
        peak.check()
        return figures_of(peak, UPSTREAM, BACKENDS, seconds)


def peak_run(folder: Path, hours: float) -> list[Row]:
    log_errors_only()
    folder.mkdir()
    return rows_of("peak", run_simulated(at_peak(folder, hours * 3600)))
