"""The commands of docs/downstream.md, run in their order, produce a result on the page."""

import asyncio
import re
from pathlib import Path
from typing import Any

import httpx
import pytest

from support.paths import ROOT
from support.process import crcr, environment, free_port

pytestmark = pytest.mark.slow

NO_NETWORK = {"HTTP_PROXY": "http://127.0.0.1:9", "HTTPS_PROXY": "http://127.0.0.1:9", "NO_PROXY": ""}
MOST = 9


def commands() -> list[str]:
    """The commands of the section "Try it first"."""
    text = (ROOT / "docs" / "downstream.md").read_text()
    section = text[text.index("## Try it first") : text.index("## For real")]
    blocks: list[str] = re.findall(r"```sh\n(.*?)```", section, re.DOTALL)
    return [line for block in blocks for line in block.splitlines() if line]


def test_the_tutorial_needs_fewer_than_ten_commands() -> None:
    assert commands()[0] == "make demo"
    assert len(commands()) <= MOST


async def run(script: str, home: Path) -> str:
    process = await asyncio.create_subprocess_exec(
        *("bash", "--noprofile", "--norc", "-eu", "-c", script),
        cwd=ROOT,
        env={**environment(NO_NETWORK), "HOME": str(home), "XDG_RUNTIME_DIR": str(home)},
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    async with asyncio.timeout(60):
        output, _ = await process.communicate()
    assert process.returncode == 0, output.decode()
    return output.decode()


async def wait_for_result(url: str) -> dict[str, Any]:
    """The backend's last result, as soon as there is one."""
    async with httpx.AsyncClient(transport=httpx.AsyncHTTPTransport()) as http, asyncio.timeout(90):
        while True:
            answer = await http.get(f"{url}/api/v1/summary")
            for backend in answer.json()["backends"]:
                last = (backend["figures"] or {}).get("last_result")
                if backend["name"] == "me/my-backend" and last:
                    return dict(last)
            await asyncio.sleep(0.1)


async def test_the_commands_of_the_tutorial_produce_a_result_on_the_page(tmp_path: Path) -> None:
    port, github, home = free_port(), free_port(), tmp_path
    words = (
        "demo",
        "--no-history",
        "--for",
        "150s",
        "--speed",
        "4",
        "--port",
        str(port),
        "--github-port",
        str(github),
    )
    environ = {**NO_NETWORK, "XDG_RUNTIME_DIR": str(home)}
    async with crcr(*words, folder=tmp_path, environ=environ) as demo:
        await demo.wait_for_line("to stop")
        # The demo of the page uses its default ports; this one uses free ports.
        script = "\n".join(commands()[1:]).replace("127.0.0.1:8000", f"127.0.0.1:{port}")
        script = script.replace(
            "demo-join me/my-backend", f"demo-join me/my-backend --github http://127.0.0.1:{github}"
        )
        output = await run(script, home)
        assert "me/my-backend joined the demo" in output
        assert "✓ allowlist" in output

        last = await wait_for_result(f"http://127.0.0.1:{port}")
        assert last["conclusion"] == "success"
        async with httpx.AsyncClient(transport=httpx.AsyncHTTPTransport()) as http:
            page = await http.get(
                f"http://127.0.0.1:{port}/crcr/me/my-backend", headers={"accept": "text/html"}
            )
        assert "upstream" in page.text
        assert "build" in page.text
        assert await demo.stop() == 0
