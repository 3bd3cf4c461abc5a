"""The package as shipped: the wheel with its pinned requirements and nothing else, run as real processes.

The development environment has more packages than an installation. Here they are not available: every process is the installed
`crcr` command, outside the checkout.
"""

import asyncio
import json
import os
import re
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any
from zipfile import ZipFile

import httpx
import pytest

from github_sim.github import GitHub, WorkflowRun
from support.deploy.installation import (
    Installation,
    broken_requirements,
    commands_installation,
    plain_installation,
    with_extra,
)
from support.deploy.otlp_collector import run_collector
from support.paths import ROOT
from support.process import crcr, free_port
from support.replicas import (
    TARGETS,
    forget_sums,
    github_with_backends,
    query_rows,
    query_value,
    replica_environment,
    wait_until,
)
from support.running_relay import UPSTREAM
from support.services.postgres import new_database
from support.services.redis import shared_redis

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

SITE = ROOT / "src" / "crcr" / "show" / "help" / "site" / "index.html"
"""Built by `make site` and ignored by git."""
IMPORT_MODULES = """
import importlib, pkgutil, sys, crcr
left_out = (
    "crcr.__main__", "crcr.tracing", "crcr.show.previews.picture", "crcr.join.shipped.report", "crcr.record.migrations.env",
    "crcr.wiring.aws_lambda.http_functions",
)
which, *of_drivers = sys.argv[1:]
names = [each.name for each in pkgutil.walk_packages(crcr.__path__, "crcr.")]
assert len(names) > 300, names
for name in names:
    if not name.startswith(left_out) and name.startswith(tuple(of_drivers)) == (which == "only"):
        importlib.import_module(name)
print(crcr.__file__)
"""
OF_DRIVERS = (
    "crcr.cli.doctor.relay.postgres",
    "crcr.cli.run.move_database",
    "crcr.record.limits.redis",
    "crcr.record.sqlite_to_postgres",
    "crcr.record.store.postgres",
)
"""Modules that are imported only when the package of an extra is needed."""


@pytest.fixture(scope="session")
def plain(tmp_path_factory: pytest.TempPathFactory, worker_id: str) -> Iterator[Installation]:
    """One installation, shared by the test processes."""
    own = tmp_path_factory.getbasetemp()
    with plain_installation((own if worker_id == "master" else own.parent) / "installed") as made:
        yield made


@pytest.fixture(scope="module")
def stores(plain: Installation, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Installation]:
    """The plain installation with the drivers of all stores."""
    with with_extra("stores", plain, tmp_path_factory.mktemp("stores")) as made:
        yield made


@pytest.fixture(scope="module")
def commands(plain: Installation, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Installation]:
    """What downstream maintainers and on-calls install: no relay."""
    with commands_installation(plain, tmp_path_factory.mktemp("commands")) as made:
        yield made


@dataclass
class Relay:
    """An installation with its settings, beside a simulated GitHub."""

    installed: Installation
    folder: Path
    github: GitHub
    url: str
    environ: dict[str, str]
    port: int

    @property
    def start(self) -> Any:
        return partial(crcr, folder=self.folder, environ=self.environ, program=self.installed.crcr)

    async def run(self, *words: str) -> str:
        """Run a command to its end, and return its output; it must succeed."""
        async with self.start(*words) as command:
            code, out, errors = await command.finish()
            assert (code, "Traceback" in errors) == (0, False), (words, out, errors)
        return str(out)

    async def findings(self) -> dict[str, str]:
        """The doctor's findings, by name."""
        items = json.loads(await self.run("doctor", "--json"))["findings"]
        return {each["name"]: each["state"] for each in items}

    async def run_other(self, installed: Installation, *words: str) -> tuple[int, str]:
        """Run a command of another installation, without the relay's settings; return its exit code and output."""
        start = partial(crcr, folder=self.folder, environ={}, program=installed.crcr)
        async with start(*words, f"http://127.0.0.1:{self.port}") as command:
            code, out, errors = await command.finish()
        assert "Traceback" not in errors, errors
        return code, str(out)

    @asynccontextmanager
    async def serving(self, *words: str) -> AsyncIterator[None]:
        async with self.start("serve", "--port", str(self.port), *words) as process:
            await process.wait_for_line("crcr is listening on")
            yield
            assert await process.stop() == 0
            assert '"level":"error"' not in await process.errors()

    @asynccontextmanager
    async def working(self) -> AsyncIterator[None]:
        async with self.start("worker") as process:
            await process.wait_for_line("crcr is processing")
            yield
            assert await process.stop() == 0
            assert '"level":"error"' not in await process.errors()

    async def receive_result(self) -> WorkflowRun:
        """Send a pull request through the relay to a backend, and the backend's result to the relay."""
        await self.github.open_pr(UPSTREAM)
        await wait_until(lambda: bool(self.github.runs(TARGETS[0])))
        [run] = self.github.runs(TARGETS[0])
        assert (await self.github.start_job(run, "build")).status_code == 200
        assert (await self.github.complete_job(run, "build", "success")).status_code == 200
        states = query_rows(self.url, "SELECT state, conclusion FROM jobs")
        assert [tuple(row.values()) for row in states] == [("completed", "success")]
        return run

    async def get(self, path: str, **params: str) -> httpx.Response:
        async with httpx.AsyncClient(transport=httpx.AsyncHTTPTransport(), timeout=20) as http:
            answer = await http.get(f"http://127.0.0.1:{self.port}{path}", params=params)
        assert answer.status_code == 200, answer.text
        return answer


@asynccontextmanager
async def run_relay(installed: Installation, folder: Path, url: str, **more: str) -> AsyncIterator[Relay]:
    port = free_port()
    async with github_with_backends() as github:
        address = f"http://127.0.0.1:{port}"
        github.webhook_url = f"{address}/github/webhook"
        given = replica_environment(folder, github, url, CRCR_PUBLIC_URL=address, **more)
        yield Relay(installed, folder, github, url, given, port)


def sqlite_in(folder: Path) -> str:
    return f"sqlite:///{folder / 'crcr.db'}"


def test_the_wheel_contains_the_reporter_and_all_templates(plain: Installation) -> None:
    [wheel] = (plain.folder.parent / "wheels").glob("*.whl")
    with ZipFile(wheel) as packed:
        names = set(packed.namelist())
        assert packed.read("crcr/join/shipped/report.py") == (ROOT / "action" / "report.py").read_bytes()
    source = ROOT / "src"
    data = [path for path in source.glob("crcr/*/templates/*") if path.is_file()]
    assert {str(path.relative_to(source)) for path in data} <= names
    assert ("crcr/show/help/site/index.html" in names) is SITE.exists()


def test_fault_71_a_plain_installation_has_no_driver_and_its_modules_import(plain: Installation) -> None:
    pinned = set(re.findall(r"^([\w.-]+)==", (ROOT / "requirements" / "app.txt").read_text(), re.MULTILINE))
    packages = plain.packages()
    assert "crcr" in packages
    assert packages.keys() - {"crcr"} <= pinned
    assert broken_requirements(packages) == []
    assert plain.python("-c", IMPORT_MODULES, "without", *OF_DRIVERS).startswith(str(plain.folder))


def test_fault_71_the_modules_of_drivers_import_with_the_drivers(stores: Installation) -> None:
    packages = stores.packages()
    assert {"greenlet", "asyncpg", "redis", "clickhouse-connect", "crcr"} <= packages.keys()
    assert not {"chdb", "opentelemetry-sdk", "playwright", "hatchling", "pip"} & packages.keys()
    assert broken_requirements(packages) == []
    stores.python("-c", IMPORT_MODULES, "only", *OF_DRIVERS)


async def test_fault_71_an_installation_runs_on_sqlite_and_the_commands_only_installation_reads_it(
    plain: Installation, commands: Installation, tmp_path: Path
) -> None:
    async with run_relay(plain, tmp_path, sqlite_in(tmp_path)) as relay:
        assert "the settings are valid" in await relay.run("check-config")
        await relay.run("migrate")
        async with relay.serving("--no-worker"), relay.working():
            await relay.receive_result()
            assert TARGETS[0] in (await relay.get("/crcr")).text
            states = await relay.findings()
            failing = await relay.run_other(commands, "failing", "--no-cache", "--hud")
            checked = await relay.run_other(
                commands, "doctor", "--repo", TARGETS[0], "--upstream", UPSTREAM, "--relay"
            )
            await relay.run("backup", "copy.db")
        assert failing == (0, "no job is failing\n")
        assert "It answers: crcr " in checked[1]
        assert f"The set-up of {TARGETS[0]}" in checked[1]
        assert (states["store"], states["writing"]) == ("ok", "ok")
        assert query_value(f"sqlite:///{tmp_path / 'copy.db'}", "SELECT count(*) FROM jobs") == 1


def processor_s(pid: int) -> float:
    """The processor time of a process so far, which is independent of the machine's load."""
    after_name = Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].split()
    return sum(map(int, after_name[11:13])) / os.sysconf("SC_CLK_TCK")


async def test_a_demo_with_history_needs_only_the_wheel_and_an_empty_folder(
    plain: Installation, tmp_path: Path
) -> None:
    """What `uvx crcr demo` does once it has installed the wheel: no checkout, no network, no driver."""
    port = free_port()
    async with crcr(
        *("demo", "--port", str(port), "--github-port", "0"),
        folder=tmp_path,
        environ={"HTTPS_PROXY": "http://127.0.0.1:9", "NO_PROXY": ""},
        program=plain.crcr,
    ) as demo:
        await demo.wait_for_line("to stop")
        url = f"http://127.0.0.1:{port}"
        async with httpx.AsyncClient(transport=httpx.AsyncHTTPTransport(), base_url=url, timeout=20) as http:
            front = (await http.get("/crcr")).raise_for_status().text
            used_s = processor_s(demo.process.pid)
            summary = (await http.get("/api/v1/summary")).raise_for_status().json()
            nightly = (await http.get("/api/v1/summary?kind=nightly")).raise_for_status().json()
            older = await http.get("/crcr/pr/1000")
        assert await demo.stop() == 0
        assert await demo.errors() == ""
    assert "over 14 days" in "".join(demo.lines)
    assert "/pull/1001 " in "".join(demo.lines)
    rates = {
        each["name"]: each["figures"]["tally"]["success"] for each in summary["backends"] if each["figures"]
    }
    assert rates["novagpu/tensorium-nova"] > 300
    assert "novagpu/tensorium-nova" in front
    assert sum(each["figures"]["tally"]["total"] for each in nightly["backends"] if each["figures"]) > 20
    assert older.status_code == 200
    assert used_s < 10  # includes the compilation of modules; about the wall time on an idle machine


async def test_the_commands_only_installation_writes_downstream_files_and_names_the_missing_modules(
    commands: Installation, tmp_path: Path
) -> None:
    assert len(commands.packages().keys() - {"crcr"}) < 20
    relay = ("--relay", "http://127.0.0.1:9", "--repo", "org/repo", "--upstream", UPSTREAM)
    start = partial(crcr, folder=tmp_path, environ={}, program=commands.crcr)
    async with (
        start("init", *relay, "--audience", "crcr", "--yes") as init,
        start("doctor", *relay) as doctor,
        start("serve") as serve,
    ):
        code, _, errors = await init.finish()
        assert code == 0, errors
        code, output, errors = await doctor.finish()
        assert (code, "Traceback" in errors) == (1, False), errors
        assert "cannot be reached" in output
        code, _, errors = await serve.finish()
        assert (code, len(errors.splitlines())) == (1, 2), errors
        assert errors.startswith("error: `crcr serve` needs the module ")
        assert "`pip install crcr`, or requirements/app.txt" in errors
    assert (tmp_path / ".github" / "workflows").is_dir()


async def test_fault_71_an_installation_runs_on_postgresql_and_redis(
    stores: Installation, tmp_path: Path
) -> None:
    url = new_database(empty=True)
    async with run_relay(stores, tmp_path, url, CRCR_REDIS_URL=shared_redis().url) as relay:
        await relay.run("migrate")
        async with relay.serving("--no-worker"), relay.working():
            await relay.receive_result()
            assert TARGETS[0] in (await relay.get("/crcr")).text
            states = await relay.findings()
        assert (states["store"], states["writing"], states["redis"]) == ("ok", "ok", "ok")


async def test_fault_71_an_installation_moves_from_sqlite_to_postgresql(
    stores: Installation, tmp_path: Path
) -> None:
    url = new_database(empty=True)
    async with run_relay(stores, tmp_path, sqlite_in(tmp_path)) as relay:
        await relay.run("migrate")
        moved = json.loads(await relay.run("migrate", "--from", relay.url, "--to", url, "--json"))
    assert moved["replaced"] == 0
    assert query_value(url, "SELECT count(*) FROM alembic_version") == 1


async def test_fault_71_an_installation_with_the_extra_sends_traces(
    plain: Installation, tmp_path: Path
) -> None:
    with run_collector() as collected, with_extra("tracing", plain, tmp_path) as traced:
        assert broken_requirements(traced.packages()) == []
        traced.python("-c", "import crcr.tracing")
        more = {"CRCR_OTEL_ENDPOINT": collected.url}
        async with (
            run_relay(traced, tmp_path, sqlite_in(tmp_path), **more) as relay,
            relay.serving("--role", "intake"),
        ):
            await relay.receive_result()
        assert len(collected.named("callback")) == 2


async def test_fault_71_an_installation_with_the_extra_serves_a_page_from_chdb(
    plain: Installation, tmp_path: Path
) -> None:
    with with_extra("chdb", plain, tmp_path) as engine:
        assert broken_requirements(engine.packages()) == []
        more = {"CRCR_CLICKHOUSE_URL": f"chdb://{tmp_path / 'engine'}"}
        async with run_relay(engine, tmp_path, sqlite_in(tmp_path), **more) as relay, relay.serving():
            await relay.receive_result()
            await wait_until(lambda: query_value(relay.url, "SELECT count(*) FROM unfed") == 0)
            await asyncio.to_thread(forget_sums, tmp_path / "crcr.db")
            answer = (await relay.get("/api/v1/summary", upstream=UPSTREAM)).json()
        [backend] = [each for each in answer["backends"] if each["name"] == TARGETS[0]]
        assert backend["figures"]["tally"]["success"] == 1
