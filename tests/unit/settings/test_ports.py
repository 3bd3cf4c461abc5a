"""The ports to GitHub are narrow, and the client keeps to each of them."""

import inspect

import pytest

from crcr import ports
from crcr.github.client import GitHubClient

PORTS = [
    each
    for each in vars(ports).values()
    if inspect.isclass(each) and each.__module__ == "crcr.ports" and getattr(each, "_is_protocol", False)
]
GITHUB = [
    ports.GitHub,
    ports.Checks,
    ports.Changes,
    ports.History,
    ports.People,
    ports.Actions,
    ports.DeliveryLog,
]


def methods(port: type) -> list[str]:
    return [name for name, value in vars(port).items() if inspect.isfunction(value) and name[0] != "_"]


@pytest.mark.parametrize("port", PORTS, ids=lambda port: port.__name__)
def test_a_port_stays_narrow(port: type) -> None:
    assert 1 <= len(methods(port)) <= 7


@pytest.mark.parametrize("port", GITHUB, ids=lambda port: port.__name__)
def test_the_client_answers_every_call_as_the_port_names_it(port: type) -> None:
    for name in methods(port):
        assert inspect.signature(getattr(GitHubClient, name)) == inspect.signature(getattr(port, name))


def typed(
    client: GitHubClient,
) -> tuple[
    ports.GitHub, ports.Checks, ports.Changes, ports.History, ports.People, ports.Actions, ports.DeliveryLog
]:
    """Return the client as each port, for the type checker to object."""
    return client, client, client, client, client, client, client
