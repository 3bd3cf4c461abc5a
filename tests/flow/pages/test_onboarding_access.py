"""The onboarding page behind its doors: who may see it, who may have GitHub asked, and how often."""

from pathlib import Path

import pytest

from support.sign_in import READER, relay_with_tokens, visitor

ONBOARDING = "/crcr/onboarding"
CHECK = f"{ONBOARDING}/check"
FORM = {"repository": "org/one"}
PARTS = (ONBOARDING, f"{ONBOARDING}/report.py", f"{ONBOARDING}/files/1?repository=org/one")


@pytest.mark.parametrize("access", ["token", "proxy"])
async def test_who_may_not_read_the_pages_sees_and_does_nothing_here(tmp_path: Path, access: str) -> None:
    async with relay_with_tokens(tmp_path, access, CRCR_TRUSTED_PROXIES="10.0.0.1") as relay:
        async with visitor(relay) as stranger:
            for path in PARTS:
                assert (await stranger.get(path)).status_code in {303, 401}
            assert (await stranger.send(CHECK, FORM)).status_code in {303, 401}
        assert relay.rows("SELECT * FROM inspections") == []


async def test_a_reader_who_signed_in_may_have_github_asked(tmp_path: Path) -> None:
    async with relay_with_tokens(tmp_path, "token", CRCR_PUBLIC_URL="http://127.0.0.1:8000") as relay:
        async with visitor(relay) as reader:
            await reader.sign_in(READER)
            assert [(await reader.get(path)).status_code for path in PARTS] == [200, 200, 200]
            assert (await reader.send(CHECK, FORM)).status_code == 303
        assert [row["downstream"] for row in relay.rows("SELECT * FROM inspections")] == ["org/one"]


async def test_another_sites_form_has_nobody_asked(tmp_path: Path) -> None:
    async with relay_with_tokens(tmp_path) as relay:
        async with visitor(relay) as lured:
            answer = await lured.send(CHECK, FORM, origin="https://evil.example")
        assert answer.status_code == 403
        assert relay.rows("SELECT * FROM inspections") == []


async def test_asking_is_limited_and_told_as_a_page(tmp_path: Path) -> None:
    async with relay_with_tokens(tmp_path) as relay, visitor(relay) as eager:
        first = await eager.send(CHECK, FORM)
        assert first.headers["location"].endswith("done=checking&n=1")
        second = await eager.send(CHECK, FORM)
        assert second.headers["location"].endswith("done=checking&n=0")
        codes = [(await eager.send(CHECK, {"repository": "no/body"})).status_code for _ in range(30)]
        last = await eager.send(CHECK, FORM)
        assert set(codes) == {404, 429}
        assert last.status_code == 429
        assert "<title>Too many attempts" in last.text
        assert len(relay.rows("SELECT * FROM effects WHERE kind = 'inspect_repository'")) == 1
