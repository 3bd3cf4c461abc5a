"""Sends a notice out of the relay: an HTTP POST to a checked address, or an e-mail.

The host of a webhook is resolved once, all its addresses must be public, and the connection is made to the address that was
checked; the certificate is verified against the host's name. So a name that resolves to something else a moment later
(DNS rebinding) cannot lead the relay into its own network, and redirects, which could, are not followed. The operator can
allow single hosts with private addresses. A mail server is the operator's own, and is not restricted.
"""

import asyncio
import hashlib
import hmac
import smtplib
import ssl
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from email.message import EmailMessage
from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network
from socket import SOCK_STREAM, gaierror
from urllib.parse import urlsplit

import httpx

from crcr.errors import OutsideLimited, OutsideRefused, OutsideUnreachable, OutsideUnsure
from crcr.ports import check_lease

Resolver = Callable[[str, int], Awaitable[Sequence[str]]]
"""Returns the addresses of a host."""

SIGNATURE_HEADER = "X-Crcr-Signature-256"
TIMESTAMP_HEADER = "X-Crcr-Timestamp"
_TOTAL_S = 10.0
_MOST_WAIT_S = 3600.0
_NAT64 = ip_network("64:ff9b::/96")
_UNICAST = ip_network("2000::/3")
"""All of IPv6 that is assigned to the public internet; `is_global` also accepts `::127.0.0.1` and `fec0::1`."""
_REFUSED_FOR_GOOD = frozenset({400, 401, 403, 404, 405, 410, 411, 413, 414, 415, 421, 422, 431, 451})
_TOO_BUSY = frozenset({429, 503})
_SMTP_PORTS = {"smtp": 587, "smtps": 465}
_THIS_MACHINE = frozenset({"127.0.0.1", "::1", "localhost"})


async def resolve_host(host: str, port: int) -> Sequence[str]:
    found = await asyncio.get_running_loop().getaddrinfo(host, port, type=SOCK_STREAM)
    return list(dict.fromkeys(str(entry[4][0]) for entry in found))


def is_public(text: str) -> bool:
    """Whether an address is of the public internet, also where it is written inside an IPv6 address."""
    try:
        address = ip_address(text.partition("%")[0])
    except ValueError:
        return False
    return all(
        part.is_global and not part.is_multicast and (part.version == 4 or part in _UNICAST)
        for part in _parts(address)
    )


def _parts(address: IPv4Address | IPv6Address) -> list[IPv4Address | IPv6Address]:
    if isinstance(address, IPv4Address):
        return [address]
    if address.ipv4_mapped is not None:
        return [address.ipv4_mapped]
    inner = [address.sixtofour, *(address.teredo or ())]
    if address in _NAT64:
        # Itself a public prefix: what counts is the address that a translator makes of it.
        return [IPv4Address(int(address) & 0xFFFFFFFF)]
    return [address, *(part for part in inner if part is not None)]


@dataclass(frozen=True, slots=True)
class WebhookAddress:
    url: str = field(repr=False)
    private_hosts: tuple[str, ...] = ()


class WebhookSender:
    """Posts JSON to a webhook's address."""

    def __init__(
        self,
        resolve: Resolver = resolve_host,
        *,
        verify: ssl.SSLContext | None = None,
        total_s: float = _TOTAL_S,
    ) -> None:
        self._resolve = resolve
        self._verify = verify
        self._total_s = total_s

    async def post(self, address: WebhookAddress, body: bytes, headers: dict[str, str]) -> None:
        """Send, or raise an `Outside…` error that names neither path nor query of the address."""
        parts = urlsplit(address.url)
        host = (parts.hostname or "").lower()
        port = parts.port or (443 if parts.scheme == "https" else 80)
        checked = await self._checked_address(host, port, host in address.private_hosts)
        literal = f"[{checked}]" if ":" in checked else checked
        url = parts._replace(netloc=f"{literal}:{port}").geturl()
        shown_port = "" if parts.port is None else f":{parts.port}"
        request_headers = {
            "host": f"{parts.hostname}{shown_port}",
            "content-type": "application/json",
            "user-agent": "crcr",
            **headers,
        }
        await check_lease.get()()
        status, retry_after = await self._send(url, host, body, request_headers)
        await check_lease.get()()
        _raise_for_status(host, status, retry_after)

    async def _checked_address(self, host: str, port: int, may_be_private: bool) -> str:  # noqa: FBT001
        try:
            async with asyncio.timeout(self._total_s):
                addresses = await self._resolve(host, port)
        except (gaierror, TimeoutError, UnicodeError):
            raise OutsideUnreachable(f"the name {host} cannot be resolved") from None
        if not addresses:
            raise OutsideUnreachable(f"the name {host} has no address")
        if not may_be_private and not all(map(is_public, addresses)):
            raise OutsideRefused(
                f"{host} has an address that is not public; name it in the channel's private_hosts to allow it",
                status=403,
            )
        return addresses[0]

    async def _send(
        self, url: str, host: str, body: bytes, headers: dict[str, str]
    ) -> tuple[int, str | None]:
        """One request on a connection of its own; the answer's body is not read."""
        timeout = httpx.Timeout(self._total_s, connect=3.0)
        verify = self._verify or ssl.create_default_context()
        try:
            async with (
                asyncio.timeout(self._total_s),
                httpx.AsyncClient(verify=verify, trust_env=False, timeout=timeout) as client,
                client.stream(
                    "POST", url, content=body, headers=headers, extensions={"sni_hostname": host}
                ) as answer,
            ):
                return answer.status_code, answer.headers.get("retry-after")
        except (httpx.ConnectError, httpx.ConnectTimeout):
            raise OutsideUnreachable(f"{host} cannot be reached") from None
        except (httpx.HTTPError, httpx.InvalidURL, TimeoutError) as error:
            raise OutsideUnsure(f"{host} did not answer: {type(error).__name__}") from None


def _raise_for_status(host: str, status: int, retry_after: str | None) -> None:
    if 200 <= status < 300:
        return
    text = f"{host} answered {status}"
    if 300 <= status < 400:
        raise OutsideRefused(f"{text}: redirects are not followed", status=403)
    if status in _TOO_BUSY:
        wait_s = float(retry_after) if retry_after and retry_after.isdigit() else 30.0
        raise OutsideLimited(text, retry_after_s=min(wait_s, _MOST_WAIT_S))
    if status in _REFUSED_FOR_GOOD:
        # The worker takes a 401 for an expired GitHub token and retries; this address is a setting.
        raise OutsideRefused(text, status=403)
    raise OutsideUnsure(text)


def sign_body(secret: str, timestamp: int, body: bytes) -> dict[str, str]:
    """Return the headers by which a receiver knows that the relay sent this body, and when."""
    signed = hmac.new(secret.encode(), f"{timestamp}.".encode() + body, hashlib.sha256).hexdigest()
    return {TIMESTAMP_HEADER: str(timestamp), SIGNATURE_HEADER: f"sha256={signed}"}


@dataclass(frozen=True, slots=True)
class MailAccount:
    url: str = field(repr=False)
    sender: str
    to: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Mail:
    subject: str
    text: str
    message_id: str
    """Without its domain; the same for a repeated attempt."""
    reply_to: str | None = None
    """The id of the first mail of the thread."""


class MailSender:
    """Sends by SMTP, in a thread: `smtplib` waits for each answer."""

    def __init__(self, *, verify: ssl.SSLContext | None = None, timeout_s: float = _TOTAL_S) -> None:
        self._verify = verify
        self._timeout_s = timeout_s

    async def send(self, account: MailAccount, mail: Mail) -> None:
        message = build_message(account, mail)
        await check_lease.get()()
        await asyncio.to_thread(self._send, account, message)
        await check_lease.get()()

    def _send(self, account: MailAccount, message: EmailMessage) -> None:
        parts = urlsplit(account.url)
        host, port = parts.hostname or "", parts.port or _SMTP_PORTS[parts.scheme]
        sent = False
        try:
            with self._connect(parts.scheme, host, port) as server:
                if parts.scheme == "smtp" and (host not in _THIS_MACHINE or server.has_extn("starttls")):
                    server.starttls(context=self._verify or ssl.create_default_context())
                if parts.username is not None:
                    server.login(_unquote(parts.username), _unquote(parts.password or ""))
                sent = True
                server.send_message(message, account.sender, account.to)
        except smtplib.SMTPException as fault:
            raise _mail_fault(host, fault) from None
        except (OSError, EOFError) as fault:
            text = f"the mail server {host} failed: {type(fault).__name__}"
            raise (OutsideUnsure(text) if sent else OutsideUnreachable(text)) from None

    def _connect(self, scheme: str, host: str, port: int) -> smtplib.SMTP:
        if scheme == "smtps":
            context = self._verify or ssl.create_default_context()
            return smtplib.SMTP_SSL(host, port, timeout=self._timeout_s, context=context)
        server = smtplib.SMTP(host, port, timeout=self._timeout_s)
        server.ehlo_or_helo_if_needed()
        return server


def _unquote(text: str) -> str:
    return httpx.URL(f"http://x/{text}").path[1:]


def build_message(account: MailAccount, mail: Mail) -> EmailMessage:
    domain = account.sender.partition("@")[2]
    message = EmailMessage()
    message["From"], message["To"] = account.sender, ", ".join(account.to)
    message["Subject"] = mail.subject
    message["Message-ID"] = f"<{mail.message_id}@{domain}>"
    message["Auto-Submitted"] = "auto-generated"
    if mail.reply_to is not None:
        message["In-Reply-To"] = message["References"] = f"<{mail.reply_to}@{domain}>"
    message.set_content(mail.text)
    return message


def _mail_fault(host: str, fault: smtplib.SMTPException) -> Exception:
    """A code of 500 and more is final; below it the server asks to try again."""
    code = getattr(fault, "smtp_code", None)
    if isinstance(fault, smtplib.SMTPRecipientsRefused):
        code = min((answer[0] for answer in fault.recipients.values()), default=550)
    if isinstance(fault, smtplib.SMTPServerDisconnected):
        return OutsideUnsure(f"the mail server {host} closed the connection")
    if isinstance(fault, smtplib.SMTPNotSupportedError):
        return OutsideRefused(f"the mail server {host} offers no STARTTLS or log-in", status=403)
    text = f"the mail server {host} answered {code}"
    if isinstance(code, int) and 400 <= code < 500:
        return OutsideLimited(text, retry_after_s=60.0)
    return OutsideRefused(text, status=403)
