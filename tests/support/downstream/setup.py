"""Set-up of a downstream: create one, and read the findings of its set-up page."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx

from github_sim.github import GitHub, WorkflowRun
from support.downstream.callbacks import BACKEND, LISTED, bearer
from support.running_relay import AUDIENCE, RELAY_URL, WORKFLOW, RunningRelay, running_relay
from support.sign_in import ADMIN, TOKENS

PATH = ".github/workflows/crcr.yml"
PINNED = f'env: {{CRCR_RELAYS: "{RELAY_URL}/github/callback {AUDIENCE}"}}\n'
UNPINNED = """
name: crcr
on:
  repository_dispatch:
    types: [pull_request, push, crcr_test]
permissions: {}
jobs:
  test:
    permissions: {contents: read}
    steps: [{run: ./ci/build-and-test}]
  report:
    needs: test
    permissions: {id-token: write}
    steps: [{run: python3 .crcr/report.py}]
"""
GOOD = UNPINNED + PINNED
NO_TOKEN = GOOD.replace("{id-token: write}", "{}")
SETUP = f"/api/v1/setup/{BACKEND}"
EYES = bearer(ADMIN)


def create_downstream(
    github: GitHub, *, installed: bool = True, workflow: str | None = GOOD, private: bool = False
) -> None:
    files = {PATH: workflow} if workflow else {}
    github.create_repository(BACKEND, installed=installed, files=files, workflows=[WORKFLOW], private=private)


@asynccontextmanager
async def relay_with_downstream(
    folder: Path, allowlist: str = LISTED, **how: Any
) -> AsyncIterator[RunningRelay]:
    """A relay with the backend on its allowlist; the other arguments set up the backend."""
    more = {name: how.pop(name) for name in tuple(how) if name.isupper()}
    async with running_relay(
        folder, allowlist, prepare=lambda relay: create_downstream(relay, **how), **TOKENS, **more
    ) as relay:
        yield relay


async def examine_again(relay: RunningRelay, address: str = SETUP, **headers: str) -> dict[str, Any]:
    """Request a new inspection, and return its findings."""
    answer = await relay.http.post(address, headers=headers)
    assert answer.status_code == 202, answer.text
    await relay.drain()
    return await setup_findings(relay, address, **headers)


async def setup_findings(relay: RunningRelay, address: str = SETUP, **headers: str) -> dict[str, Any]:
    answer = await relay.http.get(address, headers=headers)
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


def finding_state(found: dict[str, Any], name: str) -> str:
    """`problem`, `ok`…, or `absent` when there is no such finding."""
    return next((str(each["state"]) for each in found["findings"] if each["name"] == name), "absent")


def finding_text(found: dict[str, Any], name: str) -> str:
    return next(f"{each['text']} {each['hint']}" for each in found["findings"] if each["name"] == name)


def oidc_header(relay: RunningRelay, run: WorkflowRun) -> dict[str, str]:
    return bearer(relay.github.oidc_token(run, run.jobs[0], audience=AUDIENCE))


def answer_code(answer: httpx.Response) -> tuple[int, str | None]:
    body = answer.json()
    return answer.status_code, None if body.get("ok") else str(body["error"]["code"])
