"""The call of `crcr demo-join`: to a demo on this machine, with the key that only its owner can read."""

from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx

from crcr.cli.http_client import is_on_this_machine, open_client
from crcr.demo.join_key import read_key
from crcr.errors import BadRequest, NotPossible

_PATH = "/_sim/repositories"


def ask(github: str, name: str, folder: Path, level: str, *, listed: bool = True) -> dict[str, Any]:
    address = urlsplit(github)
    if not is_on_this_machine(github) or not address.port:
        raise BadRequest(f"{github} is no demo on this machine", hint="write http://127.0.0.1:8001")
    key = read_key(address.port)
    body = {"name": name, "folder": str(folder), "level": level, "listed": listed}
    try:
        with open_client(github, timeout=30) as http:
            answer = http.post(
                f"{github.rstrip('/')}{_PATH}", json=body, headers={"Authorization": f"Bearer {key}"}
            )
    except httpx.TransportError:
        raise NotPossible(f"nothing answers at {github}", hint="start the demo with `crcr demo`") from None
    if answer.status_code != 201:
        raise NotPossible(_reason(answer), hint=_hint(answer))
    found: dict[str, Any] = answer.json()
    return found


def _reason(answer: httpx.Response) -> str:
    try:
        return str(answer.json()["message"])
    except (ValueError, LookupError, TypeError):
        return f"the demo answered with {answer.status_code}"


def _hint(answer: httpx.Response) -> str | None:
    try:
        return str(answer.json()["errors"][0]["message"])
    except (ValueError, LookupError, TypeError):
        return None
