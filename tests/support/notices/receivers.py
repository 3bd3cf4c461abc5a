"""`webhook_receiver` and `mail_receiver`: real receivers of notices on loopback, which can be told to fail."""

import asyncio
import json
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from email import message_from_bytes, policy
from email.message import EmailMessage
from typing import Any

HANG_UP = 0
"""As an answer: the connection is closed without one, after the request was read."""


@dataclass
class ReceivedRequest:
    path: str
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


@dataclass
class WebhookReceiver:
    answers: list[int] = field(default_factory=list)
    """The status of the next requests; 200 after them."""
    requests: list[ReceivedRequest] = field(default_factory=list)
    more_headers: str = ""
    before_answer: Callable[[], Awaitable[None]] | None = None
    port: int = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/hook/very-secret"

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            head = (await reader.readuntil(b"\r\n\r\n")).decode()
            first, *lines = head.strip().split("\r\n")
            headers = {
                name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)
            }
            body = await reader.readexactly(int(headers.get("content-length", 0)))
            self.requests.append(ReceivedRequest(first.split()[1], headers, body))
            if self.before_answer is not None:
                await self.before_answer()
            status = self.answers.pop(0) if self.answers else 200
            if status != HANG_UP:
                writer.write(f"HTTP/1.1 {status} X\r\n{self.more_headers}content-length: 0\r\n\r\n".encode())
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()


@asynccontextmanager
async def webhook_receiver(tls: ssl.SSLContext | None = None) -> AsyncIterator[WebhookReceiver]:
    receiver = WebhookReceiver()
    server = await asyncio.start_server(receiver.serve, "127.0.0.1", 0, ssl=tls)
    receiver.port = server.sockets[0].getsockname()[1]
    async with server:
        yield receiver


@dataclass
class MailReceiver:
    replies: list[str] = field(default_factory=list)
    """What is answered to the next messages; "250 ok" after them."""
    messages: list[EmailMessage] = field(default_factory=list)
    recipients: list[str] = field(default_factory=list)
    port: int = 0

    @property
    def url(self) -> str:
        return f"smtp://127.0.0.1:{self.port}"

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        async def say(line: str) -> None:
            writer.write(f"{line}\r\n".encode())
            await writer.drain()

        try:
            await say("220 tests")
            while line := (await reader.readline()).decode().strip():
                word = line[:4].upper()
                if word == "DATA":
                    await say("354 go on")
                    content = await reader.readuntil(b"\r\n.\r\n")
                    answer = self.replies.pop(0) if self.replies else "250 ok"
                    if answer.startswith("250"):
                        parsed = message_from_bytes(
                            content[:-3].replace(b"\r\n..", b"\r\n."), policy=policy.default
                        )
                        self.messages.append(parsed)
                    await say(answer)
                elif word == "QUIT":
                    await say("221 bye")
                    break
                else:
                    if word == "RCPT":
                        self.recipients.append(line)
                    await say("250 ok")
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()


@asynccontextmanager
async def mail_receiver() -> AsyncIterator[MailReceiver]:
    receiver = MailReceiver()
    server = await asyncio.start_server(receiver.serve, "127.0.0.1", 0)
    receiver.port = server.sockets[0].getsockname()[1]
    async with server:
        yield receiver
