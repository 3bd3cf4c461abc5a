"""The reporter `action/report.py`: as a module with a scripted network, and as a process that reports to a real relay.

`ThreadClock` is shared by threads: when all of them sleep, time moves to the moment at which the first one wakes.
"""

import asyncio
import heapq
import importlib.util
import io
import json
import os
import sys
import threading
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from types import ModuleType
from typing import Any

from github_sim.github import WorkflowJob, WorkflowRun
from github_sim.rest.server import Server
from support.downstream.callbacks import BACKEND, LISTED, dispatched_run
from support.paths import ROOT
from support.process import free_port
from support.running_relay import AUDIENCE, WORKFLOW, RunningRelay

ACTION = ROOT / "action"
FILE = ACTION / "report.py"
REQUESTS = "/_services/token/request"
ENDS_WITHIN_S = 60.0
PYTHON = os.environ.get("REPORTER_PYTHON", sys.executable)
"""The Python of a job: any version from 3.8 on."""


def _load() -> ModuleType:
    spec = importlib.util.spec_from_file_location("crcr_reporter", FILE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


reporter: Any = _load()
TOKEN = "header.claims.signature"


def http_answer(status: int, body: Any = None, **headers: str) -> Any:
    content = body if isinstance(body, bytes) else json.dumps(body or {}).encode()
    return reporter.HttpAnswer(
        status, {name.replace("_", "-"): value for name, value in headers.items()}, content
    )


def refusal(status: int, code: str, **more: str) -> Any:
    return http_answer(status, {"ok": False, "error": {"code": code, "detail": "why", "hint": "how", **more}})


RECORDED = http_answer(200, {"ok": True, "status": "completed", "repeat": False})
NO_ANSWER = reporter.HttpAnswer(0, fault="ConnectionRefusedError: refused")


@dataclass
class ScriptedNetwork:
    """A network with scripted answers (the last one repeats) and a clock that only pauses move."""

    answers: Sequence[Any] = (RECORDED,)
    tokens: Iterator[str] = field(default_factory=lambda: (f"a.b.token{n}" for n in count(1)))
    token_answers: list[Any] = field(default_factory=list)
    programs: Callable[[Sequence[str]], str] = lambda _: TOKEN
    chance: float = 0.5
    seconds: float = 1_000_000.0

    def __post_init__(self) -> None:
        self.sent: list[Any] = []
        self.asked: list[Any] = []
        self.pauses: list[float] = []
        self.ran: list[list[str]] = []

    @property
    def bodies(self) -> list[dict[str, Any]]:
        return [json.loads(request.data) for request in self.sent]

    @property
    def bearers(self) -> list[str]:
        return [request.get_header("Authorization") for request in self.sent]

    def machine(self) -> Any:
        return reporter.Machine(
            clock=lambda: self.seconds,
            now=lambda: self.seconds,
            sleep=self._sleep,
            chance=lambda: self.chance,
            fetch=self._fetch,
            run=self._run,
        )

    def _sleep(self, seconds: float) -> None:
        self.pauses.append(seconds)
        self.seconds += seconds

    def _fetch(self, request: Any, _timeout_s: float) -> Any:
        if request.get_method() == "GET":
            self.asked.append(request)
            return (
                self.token_answers.pop(0)
                if self.token_answers
                else http_answer(200, {"value": next(self.tokens)})
            )
        self.sent.append(request)
        return self.answers[min(len(self.sent), len(self.answers)) - 1]

    def _run(self, words: Sequence[str], _timeout_s: float) -> str:
        self.ran.append(list(words))
        return self.programs(words)


GITHUB = {
    "GITHUB_ACTIONS": "true",
    "GITHUB_RUN_ID": "77",
    "GITHUB_RUN_ATTEMPT": "1",
    "GITHUB_WORKFLOW": "CI",
    "GITHUB_JOB": "build",
    "GITHUB_SERVER_URL": "https://github.com",
    "GITHUB_REPOSITORY": "org/backend",
    "ACTIONS_ID_TOKEN_REQUEST_URL": "https://token.example.org/request?v=1",
    "ACTIONS_ID_TOKEN_REQUEST_TOKEN": "request-secret",
    "CRCR_DELIVERY_ID": "d-1",
    "CRCR_EVENT_TYPE": "pull_request",
    "CRCR_RELAYS": "https://relay.example.org/github/callback relay.example.org",
}
ANYWHERE = {
    **{name: value for name, value in GITHUB.items() if name.startswith("CRCR_")},
    "CRCR_RUN_ID": "77",
    "CRCR_JOB_NAME": "build",
    "CRCR_ID_TOKEN": TOKEN,
}


def run_reporter(
    *argv: str, env: Mapping[str, str] = GITHUB, network: ScriptedNetwork | None = None, machine: Any = None
) -> tuple[int, str]:
    """Run the reporter in this process; return its exit code and output."""
    out = io.StringIO()
    code = reporter.main(argv, env, machine or (network or ScriptedNetwork()).machine(), out)
    return code, out.getvalue()


class ThreadClock:
    """A clock for threads. `move` is called with each step, so that a relay's clock can follow.

    Each sleeper has an event of its own, so that a step wakes only the thread that it is for.
    """

    def __init__(self, threads: int, move: Callable[[float], object] = lambda _: None) -> None:
        self._changing = threading.Lock()
        self._awake = threads
        self._move = move
        self._order = count()
        self._sleepers: list[tuple[float, int, threading.Event]] = []
        self.seconds = 1_000_000.0

    def now(self) -> float:
        return self.seconds

    def sleep(self, seconds: float) -> None:
        woken = threading.Event()
        with self._changing:
            heapq.heappush(self._sleepers, (self.seconds + seconds, next(self._order), woken))
            self._awake -= 1
            self._wake_next()
        assert woken.wait(ENDS_WITHIN_S), "no thread woke up"

    def leave(self) -> None:
        """Take the calling thread out of the clock: it has ended."""
        with self._changing:
            self._awake -= 1
            self._wake_next()

    def _wake_next(self) -> None:
        if self._awake or not self._sleepers:
            return
        due, _, woken = heapq.heappop(self._sleepers)
        self._move(max(0.0, due - self.seconds))
        self.seconds = max(self.seconds, due)
        self._awake += 1
        woken.set()

    def machine(self, chance: Callable[[], float]) -> Any:
        return reporter.Machine(clock=self.now, now=self.now, sleep=self.sleep, chance=chance)


@dataclass
class ReporterSetup:
    """A relay and a simulated GitHub on loopback, with a pull request dispatched to the backend."""

    relay: RunningRelay
    run: WorkflowRun
    url: str
    github_url: str
    relay_server: Server
    folder: Path

    def event_file(self, name: str = "event.json", **event: Any) -> Path:
        path = self.folder / name
        dispatch = {"action": self.run.event_type, "client_payload": self.run.client_payload}
        path.write_text(json.dumps(event or dispatch))
        return path

    def github_env(self, job: WorkflowJob | str = "build", **more: str) -> dict[str, str]:
        """The environment of a running job with permission to request OIDC tokens."""
        chosen = self.run.job(job) if isinstance(job, str) else job
        if chosen.status == "queued":
            self.relay.github.ci.start(self.run, chosen)
        return {
            "GITHUB_ACTIONS": "true",
            "GITHUB_EVENT_NAME": "repository_dispatch",
            "GITHUB_EVENT_PATH": str(self.event_file()),
            "GITHUB_RUN_ID": str(self.run.id),
            "GITHUB_RUN_ATTEMPT": str(self.run.attempt),
            "GITHUB_WORKFLOW": self.run.workflow.name,
            "GITHUB_JOB": chosen.name,
            "GITHUB_SERVER_URL": "https://github.com",
            "GITHUB_REPOSITORY": BACKEND,
            "ACTIONS_ID_TOKEN_REQUEST_URL": f"{self.github_url}{REQUESTS}?run={self.run.id}&job={chosen.id}",
            "ACTIONS_ID_TOKEN_REQUEST_TOKEN": self.relay.github.request_tokens.issue(self.run, chosen),
            "CRCR_RELAYS": self.pins,
            **more,
        }

    @property
    def pins(self) -> str:
        """The pin of this relay, as a workflow has it."""
        return f"{self.url}/github/callback {AUDIENCE}"

    def dispatch_env(self) -> dict[str, str]:
        """The variables that a bridge workflow passes to another CI, and the relay that the CI's file pins."""
        pinned = self.run.client_payload["relay"]
        return {
            "CRCR_DELIVERY_ID": str(self.run.delivery_id),
            "CRCR_EVENT_TYPE": self.run.event_type,
            "CRCR_CALLBACK_URL": pinned["callback_url"],
            "CRCR_AUDIENCE": pinned["audience"],
            "CRCR_RELAYS": self.pins,
        }

    async def report(self, *argv: str, env: Mapping[str, str]) -> tuple[int, str]:
        return await run_reporter_process(*argv, env=env, folder=self.folder)

    def results(self) -> dict[str, str]:
        return {job["job_name"]: job["conclusion"] or job["state"] for job in self.relay.jobs(BACKEND)}


async def run_reporter_process(*argv: str, env: Mapping[str, str], folder: Path) -> tuple[int, str]:
    """Run `report.py` as a process with only this environment; return its exit code and output."""
    own = {"PATH": os.environ["PATH"], "LANG": "C", **env}
    running = await asyncio.create_subprocess_exec(
        PYTHON,
        str(FILE),
        *argv,
        env=own,
        cwd=folder,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    try:
        async with asyncio.timeout(ENDS_WITHIN_S):
            out, _ = await running.communicate()
    finally:
        if running.returncode is None:
            running.kill()
            await running.wait()
    assert running.returncode is not None
    return running.returncode, out.decode()


@asynccontextmanager
async def reporter_setup(
    folder: Path, allowlist: str = LISTED, *, workflows: Sequence[Any] = (WORKFLOW,), **more: Any
) -> AsyncIterator[ReporterSetup]:
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    async with dispatched_run(folder, allowlist, workflows=workflows, CRCR_PUBLIC_URL=url, **more) as (
        relay,
        run,
    ):
        relay_server, github = Server(relay.app, "127.0.0.1", port), Server(relay.github.app, "127.0.0.1", 0)
        await relay_server.start()
        await github.start()
        world = ReporterSetup(relay, run, url, github.url, relay_server, folder)
        try:
            yield world
        finally:
            await world.relay_server.stop()
            await github.stop()
