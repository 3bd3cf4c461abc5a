"""Access to the onboarding page: its readers, the right to start an inspection, and the rate limit of inspections."""

from pathlib import Path

import pytest

from support.sign_in import READER, relay_with_tokens, visitor

ONBOARDING = "/crcr/onboarding"
CHECK = f"{ONBOARDING}/check"
FORM = {"repository": "org/one"}
PARTS = (ONBOARDING, f"{ONBOARDING}/report.py", f"{ONBOARDING}/files/1?repository=org/one")


@pytest.mark.parametrize("access", ["token", "proxy"])
async def test_without_read_access_the_onboarding_page_is_closed_and_starts_no_inspection(
    tmp_path: Path, access: str
) -> None:
    async with relay_with_tokens(tmp_path, access, CRCR_TRUSTED_PROXIES="10.0.0.1") as relay:
        async with visitor(relay) as stranger:
            for path in PARTS:
                assert (await stranger.get(path)).status_code in {303, 401}
            assert (await stranger.send(CHECK, FORM)).status_code in {303, 401}
        assert relay.rows("SELECT * FROM inspections") == []


async def test_a_signed_in_reader_can_start_an_inspection(tmp_path: Path) -> None:
    async with relay_with_tokens(tmp_path, "token", CRCR_PUBLIC_URL="http://127.0.0.1:8000") as relay:
        async with visitor(relay) as reader:
            await reader.sign_in(READER)
            assert [(await reader.get(path)).status_code for path in PARTS] == [200, 200, 200]
            assert (await reader.send(CHECK, FORM)).status_code == 303
        assert [row["downstream"] for row in relay.rows("SELECT * FROM inspections")] == ["org/one"]


async def test_a_cross_origin_form_starts_no_inspection(tmp_path: Path) -> None:
    async with relay_with_tokens(tmp_path) as relay:
        async with visitor(relay) as victim:
            answer = await victim.send(CHECK, FORM, origin="https://evil.example")
        assert answer.status_code == 403
        assert relay.rows("SELECT * FROM inspections") == []


async def test_inspections_are_rate_limited_with_an_html_page(tmp_path: Path) -> None:
    async with relay_with_tokens(tmp_path) as relay, visitor(relay) as client:
        first = await client.send(CHECK, FORM)
        assert first.headers["location"].endswith("done=checking&n=1")
        second = await client.send(CHECK, FORM)
        assert second.headers["location"].endswith("done=checking&n=0")
        codes = [(await client.send(CHECK, {"repository": "no/body"})).status_code for _ in range(30)]
        last = await client.send(CHECK, FORM)
        assert set(codes) == {404, 429}
        assert last.status_code == 429
        assert "<title>Too many attempts" in last.text
        assert len(relay.rows("SELECT * FROM effects WHERE kind = 'inspect_repository'")) == 1
