"""`crcr demo --history`: a demo that begins with a past, which its pages show and its pull requests go on from."""

from pathlib import Path

import httpx
import pytest

from support.process import crcr, free_port

pytestmark = pytest.mark.slow


async def test_the_pages_show_the_past_and_life_goes_on_from_it(tmp_path: Path) -> None:
    port, kept = free_port(), tmp_path / "kept"
    words = ("demo", "--history", "8d", "--jobs-an-hour", "10", "--port", str(port), "--github-port", "0")
    async with crcr(*words, "--data", str(kept), folder=tmp_path, environ={}) as demo:
        assert "generated" in await demo.wait_for_line("pull requests over 8 days")
        await demo.wait_for_line("to stop")
        url = f"http://127.0.0.1:{port}"
        async with httpx.AsyncClient(transport=httpx.AsyncHTTPTransport(), base_url=url) as reader:
            summary = (await reader.get("/api/v1/summary")).raise_for_status().json()
            nightly = (await reader.get("/api/v1/summary?kind=nightly")).raise_for_status().json()
            older = await reader.get("/crcr/pr/1")
            page = await reader.get("/crcr/novagpu/tensorium-nova?kind=push")
        told = {each["name"]: each["figures"] for each in summary["backends"] if each["figures"]}
        assert told["novagpu/tensorium-nova"]["tally"]["success"] > 20
        assert sum(each["figures"]["tally"]["total"] for each in nightly["backends"] if each["figures"]) > 20
        assert (older.status_code, page.status_code) == (200, 200)
        assert await demo.stop() == 0
        assert await demo.errors() == ""
    first = next(line for line in demo.lines if "checks by label" in line)
    assert "/pull/1 " not in first
