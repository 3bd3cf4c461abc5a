"""`crcr demo` as a process: it starts by itself, keeps running, and leaves no files behind."""

import asyncio
import json
import signal
import socket
from pathlib import Path
from typing import Any

import httpx
import pytest

from support.cli_command import run_in_process
from support.process import crcr, free_port

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

NO_NETWORK = {"HTTP_PROXY": "http://127.0.0.1:9", "HTTPS_PROXY": "http://127.0.0.1:9", "NO_PROXY": ""}


def shown_state(backend: dict[str, Any]) -> str | None:
    """The state of a backend on the summary: its last conclusion, else whether anything runs."""
    figures = backend["figures"] or {"tally": {"running": 0}, "last_result": None}
    last = figures["last_result"]
    return last["conclusion"] if last else "running" if figures["tally"]["running"] else None


async def wait_for_different_states(url: str) -> set[str]:
    async with httpx.AsyncClient(transport=httpx.AsyncHTTPTransport()) as http:
        while True:
            answer = await http.get(f"{url}/api/v1/summary")
            answer.raise_for_status()
            states = {state for state in map(shown_state, answer.json()["backends"]) if state}
            if len(states) > 1:
                return states
            await asyncio.sleep(0.1)


async def wait_for_page(address: str, *words: str) -> str:
    """The simulated GitHub's page, as soon as it contains all of these words."""
    accept = {"accept": "text/html"}
    async with httpx.AsyncClient(transport=httpx.AsyncHTTPTransport(), headers=accept) as http:
        while True:
            page = (await http.get(address)).text
            if all(word in page for word in words):
                return page
            await asyncio.sleep(0.05)


def demo_environ(tmp_path: Path) -> dict[str, str]:
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    return {"TMPDIR": str(temporary), **NO_NETWORK}


async def test_backends_reach_different_states_and_the_demo_ends_cleanly(tmp_path: Path) -> None:
    port, environ = free_port(), demo_environ(tmp_path)
    words = ("demo", "--no-history", "--for", "8s", "--speed", "5", "--port", str(port), "--github-port", "0")
    async with crcr(*words, folder=tmp_path, environ=environ) as demo:
        await demo.wait_for_line("to stop")
        assert f"http://127.0.0.1:{port}/crcr" in "".join(demo.lines)
        async with asyncio.timeout(8):
            assert len(await wait_for_different_states(f"http://127.0.0.1:{port}")) > 1
        await demo.wait_for_line("the demo has ended")
        assert await demo.wait() == 0
        assert await demo.errors() == ""
    assert list((tmp_path / "temporary").iterdir()) == []


async def test_a_failed_gate_blocks_then_is_waived_and_the_queue_merges(tmp_path: Path) -> None:
    port = free_port()
    words = ("demo", "--speed", "2", "--port", "0", "--github-port", str(port))
    async with crcr(*words, folder=tmp_path, environ=demo_environ(tmp_path)) as demo:
        await demo.wait_for_line("to stop")
        upstream = f"http://127.0.0.1:{port}/tensorium/tensorium"
        blocked, labelled = f"{upstream}/pull/1002", f"{upstream}/pull/1001"
        output = "".join(demo.lines)
        assert blocked in output
        assert labelled in output
        async with asyncio.timeout(200):
            await wait_for_page(
                blocked, "Merging is blocked: crcr/gate: failure", "novagpu/tensorium-nova failed"
            )
            await wait_for_page(labelled, "ciflow/crcr/npu", "crcr/accel-npu/tensorium-npu")
            refused = await wait_for_page(blocked, "needs the maintain role")
            assert "/crcr status" in refused
            await wait_for_page(blocked, "novagpu/tensorium-nova waived by")
            await wait_for_page(blocked, "Merged as")
        assert await demo.stop() == 0
        assert await demo.errors() == ""


async def test_it_stops_on_sigterm_and_keeps_the_data_in_the_given_folder(tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    async with crcr(
        "demo",
        *("--port", "0", "--github-port", "0", "--no-history"),
        "--data",
        str(kept),
        "--speed",
        "10",
        folder=tmp_path,
        environ=demo_environ(tmp_path),
    ) as demo:
        await demo.wait_for_line("to stop")
        await asyncio.sleep(1)
        assert await demo.stop(signal.SIGTERM) == 0
        assert await demo.errors() == ""
    assert (kept / "crcr.db").exists()


def test_existing_data_and_a_port_in_use_are_reported_with_a_hint(tmp_path: Path) -> None:
    environ = demo_environ(tmp_path)
    (tmp_path / "crcr.db").touch()
    with socket.create_server(("127.0.0.1", 0)) as taken:
        used = str(taken.getsockname()[1])
        for words, hint in (
            (("--port", used), "--port"),
            (("--port", "0", "--github-port", used), "--github-port 0"),
            (("--port", "0", "--data", "."), "another folder"),
        ):
            refusal = run_in_process("demo", *words, folder=tmp_path, environ=environ)
            assert (refusal.code, hint in refusal.errors, "Traceback" in refusal.errors) == (1, True, False)


async def test_verbose_logs_events_until_an_interrupt(tmp_path: Path) -> None:
    words = ("demo", "--no-history", "--speed", "10", "--port", "0", "--github-port", "0", "--verbose")
    async with crcr(*words, folder=tmp_path, environ=demo_environ(tmp_path)) as demo:
        missing, lines = {"delivery_taken", "effect_done"}, []
        async with asyncio.timeout(60):
            while missing:
                lines.append(json.loads(await demo.next_error_line()))
                missing.discard(lines[-1]["event"])
        assert await demo.stop(signal.SIGINT) == 0
        lines += [json.loads(line) for line in (await demo.errors()).splitlines()]
    assert [line for line in lines if line["level"] in {"warning", "error"}] == []
