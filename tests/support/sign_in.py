"""A relay with tokens, and visitors of its pages: signed in or not, with the forms that the pages show them."""

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
    return ",".join(f"{name}=sha256:{sha256(each.encode()).hexdigest()}" for name, each in tokens.items())


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
    """A browser with a jar of its own, that follows nothing by itself."""
    told = {"accept": "text/html,*/*;q=0.8", **headers}
    transport = httpx.ASGITransport(relay.app)
    async with httpx.AsyncClient(transport=transport, base_url=url, headers=told) as http:
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
        """The field that this session's forms carry."""
        page = await self.get("/crcr/login")
        return next(each["csrf"] for each in forms(page.text) if "csrf" in each)

    async def act(self, act: str, **fields: str) -> httpx.Response:
        return await self.send(f"/crcr/admin/{act}", {"csrf": await self.csrf(), "next": "/crcr", **fields})


class _Forms(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.found: list[dict[str, str]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        has = dict(attrs)
        if tag == "form":
            self.found.append({"": has.get("action") or ""})
        elif tag == "input" and self.found:
            self.found[-1][has.get("name") or ""] = has.get("value") or ""


def forms(html: str) -> list[dict[str, str]]:
    """Each form's fields; its address under the empty name."""
    reader = _Forms()
    reader.feed(html)
    return reader.found


def restart_relay(relay: RunningRelay, **more: str) -> None:
    """The same relay with other settings, on the same database."""
    settings = settings_for(relay.folder, relay.github, relay.folder / "allowlist.yml", **more)
    relay.app = build_app(replace(relay.services, settings=settings), work=False)


def audit_log(relay: RunningRelay) -> list[tuple[str, str, str]]:
    rows = relay.rows("SELECT who, act, subject FROM audit ORDER BY audit_id")
    return [(row["who"], row["act"], row["subject"]) for row in rows]
