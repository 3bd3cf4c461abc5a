"""Ports are narrow, and GitHub's delivery log keeps to its port."""

import inspect

import pytest

from crcr import ports
from crcr.github.client import DeliveryLogApi, GitHubClient

PORTS = [
    each
    for each in vars(ports).values()
    if inspect.isclass(each) and each.__module__ == "crcr.ports" and getattr(each, "_is_protocol", False)
]


def methods(port: type) -> list[str]:
    return [name for name, value in vars(port).items() if inspect.isfunction(value) and name[0] != "_"]


@pytest.mark.parametrize("port", PORTS, ids=lambda port: port.__name__)
def test_a_port_stays_narrow(port: type) -> None:
    assert 1 <= len(methods(port)) <= 7


def test_the_client_answers_every_call_as_the_port_names_it() -> None:
    for name in methods(ports.DeliveryLog):
        expected = inspect.signature(getattr(ports.DeliveryLog, name))
        assert inspect.signature(getattr(DeliveryLogApi, name)) == expected


def typed(client: GitHubClient) -> ports.DeliveryLog:
    """Return the client's log as the port, for the type checker to object."""
    return client.delivery_log
