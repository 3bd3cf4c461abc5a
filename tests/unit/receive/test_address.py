"""The client's address cannot be chosen by the client."""

from ipaddress import ip_network

import pytest

from crcr.receive.http.client_address import UNKNOWN, client_address, limit_subject

PROXIES = (ip_network("10.0.0.0/8"), ip_network("fd00::/8"))


@pytest.mark.parametrize(
    ("peer", "forwarded_for", "address"),
    [
        pytest.param("198.51.100.7", [], "198.51.100.7", id="no proxy"),
        pytest.param("198.51.100.7", ["203.0.113.1"], "198.51.100.7", id="header of an untrusted peer"),
        pytest.param("10.0.0.1", [], "10.0.0.1", id="proxy itself"),
        pytest.param("10.0.0.1", [""], "10.0.0.1", id="empty header"),
        pytest.param("10.0.0.1", ["203.0.113.1"], "203.0.113.1", id="one proxy"),
        pytest.param("10.0.0.1", ["203.0.113.1, 10.0.0.2"], "203.0.113.1", id="two proxies"),
        pytest.param("10.0.0.1", ["203.0.113.1", "10.0.0.2"], "203.0.113.1", id="two headers"),
        pytest.param("10.0.0.1", ["1.1.1.1, 203.0.113.1"], "203.0.113.1", id="invented entry on the left"),
        pytest.param("10.0.0.1", ["10.9.9.9, 203.0.113.1"], "203.0.113.1", id="invented proxy on the left"),
        pytest.param("10.0.0.1", ["10.0.0.3, 10.0.0.2"], "10.0.0.3", id="all trusted"),
        pytest.param("10.0.0.1", ["203.0.113.1, nonsense, 10.0.0.2"], "10.0.0.2", id="malformed stops"),
        pytest.param("10.0.0.1", ["203.0.113.1,,10.0.0.2"], "10.0.0.2", id="empty entry stops"),
        pytest.param("10.0.0.1", ["unknown"], "10.0.0.1", id="unknown entry"),
        pytest.param("10.0.0.1", ["203.0.113.1:4711"], "203.0.113.1", id="with a port"),
        pytest.param("10.0.0.1", ["[2001:db8::1]:4711"], "2001:db8::1", id="IPv6 with a port"),
        pytest.param("fd00::1", ["2001:db8::1"], "2001:db8::1", id="IPv6 proxy"),
        pytest.param("::ffff:10.0.0.1", ["203.0.113.1"], "203.0.113.1", id="mapped proxy"),
        pytest.param("::ffff:198.51.100.7", [], "198.51.100.7", id="mapped client"),
        pytest.param(None, ["203.0.113.1"], UNKNOWN, id="no peer"),
        pytest.param("", ["203.0.113.1"], UNKNOWN, id="empty peer"),
        pytest.param("unix:", ["203.0.113.1"], UNKNOWN, id="socket"),
    ],
)
def test_the_rightmost_untrusted_address_is_the_client(
    peer: str | None, forwarded_for: list[str], address: str
) -> None:
    assert client_address(peer, forwarded_for, PROXIES) == address


def test_without_trusted_proxies_the_header_is_never_read() -> None:
    assert client_address("10.0.0.1", ["203.0.113.1"], ()) == "10.0.0.1"


def test_the_header_may_be_one_string() -> None:
    assert client_address("10.0.0.1", "203.0.113.1, 10.0.0.2", PROXIES) == "203.0.113.1"


@pytest.mark.parametrize(
    ("address", "subject"),
    [
        ("203.0.113.1", "203.0.113.1"),
        ("2001:db8:0:1:ffff:ffff:ffff:ffff", "2001:db8:0:1::/64"),
        ("2001:db8:0:1::", "2001:db8:0:1::/64"),
        ("2001:db8:0:2::1", "2001:db8:0:2::/64"),
        ("fe80::1%eth0", "fe80::/64"),
        ("::ffff:203.0.113.1", "203.0.113.1"),
        (UNKNOWN, UNKNOWN),
    ],
)
def test_ipv6_clients_are_limited_by_their_64_network(address: str, subject: str) -> None:
    assert limit_subject(address) == subject
