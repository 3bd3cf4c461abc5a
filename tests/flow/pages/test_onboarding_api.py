"""`/api/v1/onboarding`: the facts about the relay that a joining repository needs."""

from pathlib import Path

from support.running_relay import AUDIENCE, UPSTREAM, running_relay
from support.sign_in import READER, TOKENS

L2 = "L2:\n  - org/backend\n"


async def test_who_joins_is_told_upstreams_audience_and_addresses(tmp_path: Path) -> None:
    async with running_relay(tmp_path, L2, downstreams=("org/backend",)) as relay:
        answer = await relay.http.get("/api/v1/onboarding")
        assert answer.status_code == 200
        told = answer.json()
        assert told["upstreams"] == [str(UPSTREAM)]
        assert told["audience"] == AUDIENCE
        assert told["callback_url"].endswith("/github/callback")
        assert set(told) == {"upstreams", "audience", "callback_url", "app_url"}
        described = (await relay.http.get("/api/openapi.json")).json()
        assert described["paths"]["/api/v1/onboarding"]["get"]["summary"]


async def test_a_closed_dashboard_tells_only_who_signed_in(tmp_path: Path) -> None:
    closed = {"CRCR_HUD_ACCESS": "token", **TOKENS}
    async with running_relay(tmp_path, L2, downstreams=("org/backend",), **closed) as relay:
        assert (await relay.http.get("/api/v1/onboarding")).status_code == 401
        bearer = {"authorization": f"Bearer {READER}"}
        assert (await relay.http.get("/api/v1/onboarding", headers=bearer)).status_code == 200
