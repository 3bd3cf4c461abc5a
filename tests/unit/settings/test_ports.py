"""Ports are narrow, and GitHub's delivery log keeps to its port."""

import inspect

import pytest

from crcr import ports
from crcr.github.client import DeliveryLogApi, GitHubClient

PORTS = [
    port_type
    for port_type in vars(ports).values()
    if inspect.isclass(port_type)
    and port_type.__module__ == "crcr.ports"
    and getattr(port_type, "_is_protocol", False)
]


def methods(port: type) -> list[str]:
    return [name for name, value in vars(port).items() if inspect.isfunction(value) and name[0] != "_"]


@pytest.mark.parametrize("port", PORTS, ids=lambda port: port.__name__)
def test_a_port_stays_narrow(port: type) -> None:
    assert 1 <= len(methods(port)) <= 7


def test_the_client_has_the_signatures_of_the_delivery_log_port() -> None:
    for name in methods(ports.DeliveryLog):
        expected = inspect.signature(getattr(ports.DeliveryLog, name))
        assert inspect.signature(getattr(DeliveryLogApi, name)) == expected


def typed(client: GitHubClient) -> ports.DeliveryLog:
    """Return the client's log as the port, so that the type checker compares the two."""
    return client.delivery_log
