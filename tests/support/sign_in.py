"""A relay with admin and reader tokens, and a `Visitor` with cookies that signs in and submits the pages' forms."""

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from hashlib import sha256
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import httpx

from crcr.wiring.web_app import build_app
from support.running_relay import RELAY_URL, RunningRelay, running_relay, settings_for

ADMIN, READER = "crcr_" + "A" * 43, "crcr_" + "R" * 43
LISTED = "L1:\n  - org/one\n  - other/two\n"
DOWNSTREAMS = ("org/one", "other/two")


def token_hashes(**tokens: str) -> str:
    return ",".join(f"{name}=sha256:{sha256(token.encode()).hexdigest()}" for name, token in tokens.items())


TOKENS: dict[str, Any] = {
    "CRCR_ADMIN_TOKENS": token_hashes(ann=ADMIN),
    "CRCR_HUD_TOKENS": token_hashes(rob=READER),
}


@asynccontextmanager
async def relay_with_tokens(folder: Path, access: str = "public", **more: str) -> AsyncIterator[RunningRelay]:
    settings: dict[str, Any] = {"CRCR_HUD_ACCESS": access, **TOKENS, **more}
    async with running_relay(folder, LISTED, downstreams=DOWNSTREAMS, **settings) as relay:
        yield relay


@asynccontextmanager
async def visitor(relay: RunningRelay, url: str = RELAY_URL, **headers: str) -> AsyncIterator["Visitor"]:
    """A client with its own cookies that follows no redirects."""
    all_headers = {"accept": "text/html,*/*;q=0.8", **headers}
    transport = httpx.ASGITransport(relay.app)
    async with httpx.AsyncClient(transport=transport, base_url=url, headers=all_headers) as http:
        yield Visitor(http)


class Visitor:
    def __init__(self, http: httpx.AsyncClient) -> None:
        self.http = http

    async def get(self, path: str, **headers: str) -> httpx.Response:
        return await self.http.get(path, headers=headers)

    async def send(self, path: str, fields: Mapping[str, str], **headers: str) -> httpx.Response:
        return await self.http.post(path, data=dict(fields), headers=headers)

    async def sign_in(self, token: str, **fields: str) -> httpx.Response:
        return await self.send("/crcr/login", {"token": token, **fields})

    async def csrf(self) -> str:
        """The CSRF token of this session's forms."""
        page = await self.get("/crcr/login")
        return next(form["csrf"] for form in forms(page.text) if "csrf" in form)

    async def act(self, act: str, **fields: str) -> httpx.Response:
        return await self.send(f"/crcr/admin/{act}", {"csrf": await self.csrf(), "next": "/crcr", **fields})


class _Forms(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.forms: list[dict[str, str]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        attributes = dict(attrs)
        if tag == "form":
            self.forms.append({"": attributes.get("action") or ""})
        elif tag == "input" and self.forms:
            self.forms[-1][attributes.get("name") or ""] = attributes.get("value") or ""


def forms(html: str) -> list[dict[str, str]]:
    """Each form's fields by name; its action under the empty name."""
    reader = _Forms()
    reader.feed(html)
    return reader.forms


def restart_relay(relay: RunningRelay, **more: str) -> None:
    """Replace the app with one that has other settings, on the same database."""
    settings = settings_for(relay.folder, relay.github, relay.folder / "allowlist.yml", **more)
    relay.app = build_app(replace(relay.services, settings=settings), work=False)


def audit_log(relay: RunningRelay) -> list[tuple[str, str, str]]:
    rows = relay.rows("SELECT who, act, subject FROM audit ORDER BY audit_id")
    return [(row["who"], row["act"], row["subject"]) for row in rows]
