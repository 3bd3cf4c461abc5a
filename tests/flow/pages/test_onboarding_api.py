"""`/api/v1/onboarding`: the facts about the relay that a joining repository needs."""

from pathlib import Path

from support.running_relay import AUDIENCE, UPSTREAM, running_relay
from support.sign_in import READER, TOKENS

L2 = "L2:\n  - org/backend\n"


async def test_onboarding_facts_name_upstreams_audience_and_urls(tmp_path: Path) -> None:
    async with running_relay(tmp_path, L2, downstreams=("org/backend",)) as relay:
        answer = await relay.http.get("/api/v1/onboarding")
        assert answer.status_code == 200
        facts = answer.json()
        assert facts["upstreams"] == [str(UPSTREAM)]
        assert facts["audience"] == AUDIENCE
        assert facts["callback_url"].endswith("/github/callback")
        assert set(facts) == {"upstreams", "audience", "callback_url", "app_url"}
        openapi = (await relay.http.get("/api/openapi.json")).json()
        assert openapi["paths"]["/api/v1/onboarding"]["get"]["summary"]


async def test_a_dashboard_with_token_access_gives_onboarding_facts_to_readers_only(tmp_path: Path) -> None:
    closed = {"CRCR_HUD_ACCESS": "token", **TOKENS}
    async with running_relay(tmp_path, L2, downstreams=("org/backend",), **closed) as relay:
        assert (await relay.http.get("/api/v1/onboarding")).status_code == 401
        bearer = {"authorization": f"Bearer {READER}"}
        assert (await relay.http.get("/api/v1/onboarding", headers=bearer)).status_code == 200
