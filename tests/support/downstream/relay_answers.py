"""Answers in place of a server's, for the commands' `HttpClient`: `answer` makes one."""

import json
from typing import Any

from crcr.cli.http_client import HttpResponse


def answer(status: int = 200, body: Any = b"", **headers: str) -> HttpResponse:
    """A body that is not bytes is sent as JSON; `retry_after` is the header `retry-after`."""
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    return HttpResponse(status, {name.replace("_", "-"): value for name, value in headers.items()}, content)
