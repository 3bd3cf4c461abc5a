"""Fixtures for tests of the GitHub client: a fake GitHub server and a client that sends to it."""

import pytest

from crcr.github.client import GitHubClient
from support.clock import ManualClock
from support.github.fake_github import FakeGitHub, connect


@pytest.fixture
def server(clock: ManualClock) -> FakeGitHub:
    return FakeGitHub(clock)


@pytest.fixture
def github(server: FakeGitHub, clock: ManualClock) -> GitHubClient:
    return connect(server, clock)
