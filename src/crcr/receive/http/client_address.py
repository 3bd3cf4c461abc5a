"""The address that a request came from, as far as it is known: used only to limit failed authentications.

`X-Forwarded-For` is read from the right, one hop at a time, and only while the hop that wrote an entry is a trusted proxy;
everything to the left of the first untrusted address may be forged.
"""

import re
from collections.abc import Iterable
from functools import lru_cache
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address

UNKNOWN = "unknown"
"""The address of a caller without one (a Unix socket): such callers share one limit."""

# Some proxies add the port: `192.0.2.1:4711`, `[2001:db8::1]:4711`, `[2001:db8::1]`.
_WITH_PORT = re.compile(r"\[(?P<v6>[^\]]*)\](?::[0-9]{1,5})?|(?P<v4>[0-9.]+):[0-9]{1,5}")

_MOST_HOPS = 32
"""How many entries of the header are read; nobody has more proxies in a row."""
_MOST_CHARACTERS = 64
"""No address is longer; longer texts must not fill the caches."""

_Address = IPv4Address | IPv6Address


def client_address(
    peer: str | None, forwarded_for: Iterable[str], trusted: tuple[IPv4Network | IPv6Network, ...]
) -> str:
    """Return the rightmost untrusted address; `forwarded_for` holds the header's values in their order."""
    if isinstance(forwarded_for, str):
        forwarded_for = [forwarded_for]
    address = _parse((peer or "")[:_MOST_CHARACTERS])
    if address is None:
        return UNKNOWN
    if not trusted:
        return _as_text(address)
    for entry in reversed(",".join(forwarded_for).rsplit(",", _MOST_HOPS)[-_MOST_HOPS:]):
        if not _is_trusted(address, trusted):
            break
        previous = _parse(entry.strip()) if len(entry) <= _MOST_CHARACTERS else None
        if previous is None:
            break
        address = previous
    return str(address)


@lru_cache(maxsize=4096)  # runners call again and again
def limit_subject(address: str) -> str:
    """Return the subject of rate limits: the address, or its /64, since one IPv6 subscriber owns at least that much."""
    parsed = _parse(address)
    if isinstance(parsed, IPv6Address):
        return str(IPv6Network((int(parsed) >> 64 << 64, 64)))
    return str(parsed or UNKNOWN)


@lru_cache(maxsize=4096)
def _as_text(address: _Address) -> str:
    return str(address)


def _is_trusted(address: _Address, trusted: tuple[IPv4Network | IPv6Network, ...]) -> bool:
    return any(address in network for network in trusted)


@lru_cache(maxsize=4096)
def _parse(text: str) -> _Address | None:
    text = text.strip()
    if match := _WITH_PORT.fullmatch(text):
        text = match["v6"] or match["v4"] or ""
    try:
        address = ip_address(text)
    except ValueError:
        return None
    # A dual-stack socket shows IPv4 callers as `::ffff:192.0.2.1`; one caller must have one address.
    return (address.ipv4_mapped or address) if isinstance(address, IPv6Address) else address
