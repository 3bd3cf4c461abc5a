"""The pull request of a level proposal: opened by several processes at once, or its branch name used by somebody else."""

import asyncio
from pathlib import Path

import pytest

from crcr.decide.github.requests_and_answers import FileLocation
from crcr.decide.levels.proposal import LevelProposal, propose_levels
from crcr.decide.levels.standings import BackendLevel, LevelStanding
from crcr.decide.model import Level, RepoName
from crcr.deliver.level_proposals import ProposalOpener, ProposalOutcome, ProposalRequest, ProposalState
from crcr.receive.allowlist_yaml import read_allowlist
from github_sim.github import GitHub
from support.running_relay import UPSTREAM, RunningRelay, running_relay

REPO, PATH = "org/meta", "allowlist.yml"
TEXT = "L2:\n  - org/one\n  - org/two\n"
FILE = FileLocation(RepoName(REPO), "main", PATH)


def create_meta_repository(github: GitHub) -> None:
    github.create_repository(REPO, files={PATH: TEXT})


def proposal() -> LevelProposal:
    eligible = BackendLevel(name=RepoName("org/one"), level=Level.L2, standing=LevelStanding.HOLDS)
    levels_proposal = propose_levels(TEXT, [eligible], lambda content: read_allowlist(content).allowlist)
    assert levels_proposal is not None
    return levels_proposal


async def open_proposal(relay: RunningRelay, who: str = "ada") -> ProposalOutcome:
    request = ProposalRequest(
        upstream=RepoName(UPSTREAM),
        file=FILE,
        web_url="https://github.test",
        base_text=TEXT,
        proposal=proposal(),
        who=who,
    )
    return await ProposalOpener(relay.services.levels, relay.services.github).open(request, relay.clock.now())


@pytest.mark.parametrize(("branch_left", "conflicting_methods"), [(False, {"POST"}), (True, {"PUT", "POST"})])
async def test_concurrent_proposals_of_several_operators_open_one_pull_request(
    tmp_path: Path, branch_left: bool, conflicting_methods: set[str]
) -> None:
    """They conflict on the new branch, or on the file of a branch that an earlier attempt left; then on the pull request."""
    async with running_relay(tmp_path, TEXT, prepare=create_meta_repository) as relay:
        repository = relay.github.repository(REPO)
        if branch_left:
            repository.branches[proposal().branch] = repository.head_sha
        outcomes = await asyncio.gather(*(open_proposal(relay, who) for who in ("ada", "mia", "zoe")))
        assert {outcome.url for outcome in outcomes} == {"https://github.test/org/meta/pull/1"}
        assert [outcome.state for outcome in outcomes].count(ProposalState.OPENED) == 1
        assert len(relay.github.world.pulls) == 1
        assert len(repository.commits) == 2
        refused = {call.method for call in relay.github.calls if call.status in {409, 422}}
        assert refused == conflicting_methods
        assert len(relay.rows("SELECT 1 FROM audit WHERE act = 'levels_proposed'")) == 1


async def test_a_pull_request_from_a_fork_of_the_same_owner_is_not_mistaken_for_the_proposal(
    tmp_path: Path,
) -> None:
    """GitHub finds both by `owner:branch`; anybody with a fork can choose the branch name."""
    async with running_relay(tmp_path, TEXT, prepare=create_meta_repository) as relay:
        fork = relay.github.create_repository("org/fork", installed=False)
        repository = relay.github.repository(REPO)
        fork.commits, fork.branches = repository.commits, dict(repository.branches)
        pull = await relay.github.open_pr(REPO, head=proposal().branch, files={PATH: "L4: [ev/il]\n"})
        pull.head_repository_id = fork.id
        fork.branches[pull.head_ref] = repository.branches.pop(pull.head_ref)
        outcome = await open_proposal(relay)
        assert outcome == ProposalOutcome(ProposalState.OPENED, "https://github.test/org/meta/pull/2")
