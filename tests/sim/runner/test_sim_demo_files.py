"""The demo's backends have workflow files that match their behaviour, so that an inspection of them is correct."""

import pytest

from crcr.deliver.handlers.workflow_yaml import workflow_facts
from crcr.demo.world import BACKENDS, demo_world
from github_sim.github import GitHub
from github_sim.runner.workflow_file import read_workflow

PIN = "https://relay.example.org/github/callback crcr"
SILENT = "edge-labs/edge-runtime"


async def read_workflow_file(name: str) -> tuple[str, str]:
    """Path and text on the default branch."""
    async with GitHub(seed=1) as github:
        demo_world(github, PIN)
        repository = github.repository(name)
        [path] = [each for each in repository.commits[repository.head_sha].tree if "workflows/" in each]
        return path, repository.commits[repository.head_sha].tree[path].decode()


@pytest.mark.parametrize("name", BACKENDS)
async def test_a_workflow_file_listens_and_may_report_like_its_backend(name: str) -> None:
    path, text = await read_workflow_file(name)
    facts = workflow_facts(path, "", text)
    assert (path, facts.problem, facts.listens) == (BACKENDS[name][1].path, None, True)
    assert all(facts.takes(each) for each in ("pull_request", "push", "merge_group", "crcr_test"))
    assert (facts.id_token, facts.reports) == (name != SILENT, name != SILENT)
    assert facts.pins == (() if name == SILENT else (PIN,))


@pytest.mark.parametrize("name", BACKENDS)
async def test_a_workflow_file_has_the_jobs_of_its_backend(name: str) -> None:
    path, text = await read_workflow_file(name)
    workflow = read_workflow(text, path)
    assert [each for each in workflow.jobs if each != "report"] == [
        job.name for job in BACKENDS[name][1].jobs
    ]
