"""HTTP client of the commands; requests to this machine ignore the environment's proxy."""

from typing import Any
from urllib.parse import urlsplit

import httpx

LOOPBACK = frozenset({"127.0.0.1", "localhost", "::1"})


def is_on_this_machine(url: str) -> bool:
    return urlsplit(url).hostname in LOOPBACK


def is_private_connection(url: str) -> bool:
    """Whether the connection is encrypted or stays on this machine."""
    return urlsplit(url).scheme == "https" or is_on_this_machine(url)


def open_client(url: str, **more: Any) -> httpx.Client:
    return httpx.Client(trust_env=not is_on_this_machine(url), **more)
