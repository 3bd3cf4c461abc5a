"""The first minute of the demo in simulated time, with its generated history: every kind of verdict is in the API."""

import asyncio
import re
from datetime import timedelta
from pathlib import Path
from typing import Any

import httpx
import pytest
from bench.github_budget.relay_in_process import RELAY_URL, run_simulated_relay
from bench.github_budget.simulated_time import START, run_simulated

from crcr.cli.run.demo import SEED, SPEED
from crcr.demo import traffic
from crcr.demo.opening_failures import NEW
from crcr.demo.run import demo_settings
from crcr.demo.traffic import UPSTREAM, run_traffic
from crcr.settings import Settings
from crcr.wiring.core import Seams
from crcr.wiring.services import build
from crcr.wiring.web_app import build_app
from support.clock import ManualClock
from support.github.demo_with_history import HISTORY_ENDS_WITH, make_demo_with_history

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

FIRST_MINUTE_S = 60.0
LABELLED, BLOCKED, FLAKED, BELONGS = (
    HISTORY_ENDS_WITH + number
    for number in (traffic.LABELLED, traffic.BLOCKED, traffic.FLAKED, traffic.BELONGS)
)


async def run_first_minute(folder: Path) -> Settings:
    """Run the demo for a simulated minute; return the settings of its relay."""
    async with run_simulated_relay(
        folder,
        seed=SEED,
        make_world=lambda github: make_demo_with_history(github, folder),
        settings_for=demo_settings,
    ) as demo:
        over = asyncio.Event()
        traffic = asyncio.create_task(run_traffic(demo.github, UPSTREAM, seed=SEED, speed=SPEED, stop=over))
        await asyncio.wait([traffic], timeout=FIRST_MINUTE_S)
        over.set()
        await traffic
        demo.check()
        return demo.services.settings


async def read_answers(settings: Settings) -> dict[str, Any]:
    """Read the API as it is at the end of that minute."""
    services = build(settings, Seams(clock=ManualClock(START + timedelta(seconds=FIRST_MINUTE_S))))
    transport = httpx.ASGITransport(build_app(services, work=False))
    async with httpx.AsyncClient(transport=transport, base_url=RELAY_URL) as client:
        paths = ["summary", "levels", *(f"pulls/{number}" for number in (LABELLED, BLOCKED, FLAKED, BELONGS))]
        answers = {path: await client.get(f"/api/v1/{path}") for path in paths}
    await services.close()
    return {path: answer.raise_for_status().json() for path, answer in answers.items()}


@pytest.fixture(scope="module")
def answers(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    settings = run_simulated(run_first_minute(tmp_path_factory.mktemp("demo")))
    return asyncio.run(read_answers(settings))


@pytest.fixture(scope="module")
def pulls(answers: dict[str, Any]) -> dict[int, Any]:
    return {number: answers[f"pulls/{number}"] for number in (LABELLED, BLOCKED, FLAKED)}


def verdicts(pull: dict[str, Any]) -> dict[tuple[str, str], Any]:
    """The verdicts by backend and job."""
    return {
        (backend["name"], job["job_name"]): job["verdict"]
        for backend in pull["backends"]
        for job in backend["jobs"]
        if job["verdict"]
    }


def test_a_change_that_breaks_three_backends_alike_is_new(pulls: dict[int, Any]) -> None:
    judged = verdicts(pulls[BLOCKED])
    assert {judged[job]["kind"] for job in NEW} == {"new"}
    group = pulls[BLOCKED]["groups"][0]
    assert group["sample"] == "RuntimeError: expected scalar type Float but found Half in addmm_out"
    assert sorted(group["backends"]) == sorted({backend for backend, _ in NEW})
    assert group["first_seen"]["number"] == BLOCKED


def test_a_failure_of_the_base_is_pre_existing(pulls: dict[int, Any]) -> None:
    assert verdicts(pulls[LABELLED])["lumen-hpc/xpu-ops", "test"]["kind"] == "pre-existing"
    verdict = verdicts(pulls[FLAKED])["lumen-hpc/xpu-ops", "test"]
    assert (verdict["kind"], verdict["confidence"]) == ("pre-existing", "high")
    assert "last at the commit that this was built on" in verdict["sentence"]


def test_a_failure_that_came_and_went_on_the_base_is_flaky(pulls: dict[int, Any]) -> None:
    verdict = verdicts(pulls[FLAKED])["quantix/tpu-bridge", "integration"]
    assert verdict["kind"] == "flaky"
    flips = re.search(r"came and went (\d+) times", verdict["sentence"])
    assert flips is not None
    assert int(flips[1]) >= 2  # twice on the staged commits, and by chance on others


def test_a_failure_on_all_pull_requests_of_a_broken_fleet_is_infrastructure(pulls: dict[int, Any]) -> None:
    judged = [verdicts(pull)["riscv-ai/tensorium-riscv", "cross-build"] for pull in pulls.values()]
    assert {verdict["kind"] for verdict in judged} == {"infrastructure"}


def test_a_change_paired_with_a_backends_own_change_is_held(answers: dict[str, Any]) -> None:
    pull = answers[f"pulls/{BELONGS}"]
    (pair,) = pull["pairs"]
    assert (pair["backend"], pair["status"]) == ("novagpu/tensorium-nova", "passed")
    assert pull["gate"]["state"] == "pending"
    held = [row for row in pull["gate"]["subjects"][0]["rows"] if row["standing"] == "held"]
    assert [row["backend"] for row in held] == ["novagpu/tensorium-nova"]


def test_results_of_the_upstreams_own_ci_are_in_the_api(
    answers: dict[str, Any], pulls: dict[int, Any]
) -> None:
    commits = answers["summary"]["in_tree"]["commits"]
    assert len(commits) >= 5
    assert {"passed", "failed"} <= {commit["outcome"] for commit in commits}
    assert all(pull["in_tree"]["passed"] for pull in pulls.values())


def test_one_backend_is_demoted_by_its_history_and_one_is_eligible(answers: dict[str, Any]) -> None:
    backends = answers["levels"]["backends"]
    assert {backend["name"]: backend["demotion"] for backend in backends if backend["demotion"]} == {
        "quantix/tpu-bridge": "silent"
    }
    assert "riscv-ai/tensorium-riscv" in {backend["name"] for backend in backends if backend["eligible"]}
    kinds = {item["kind"] for item in answers["summary"]["attention"]["items"]}
    assert "backend_demoted" in kinds


def test_a_change_announces_a_breakage_and_a_backend_answers(pulls: dict[int, Any]) -> None:
    announced = pulls[FLAKED]["announcement"]
    assert announced["note"].startswith("Backends that register a vectorised lowering")
    answered = {row["name"]: [answer["who"] for answer in row["answers"]] for row in announced["backends"]}
    assert answered["novagpu/tensorium-nova"] == ["anja-weiss"]
    assert len(answered) == 9
