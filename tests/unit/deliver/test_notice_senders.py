"""Sending notices: only to public addresses, to exactly the address that was checked, and without following redirects."""

import hashlib
import hmac
import ssl
from collections.abc import Sequence
from pathlib import Path

import pytest

from crcr.deliver.notices.outgoing import (
    Mail,
    MailAccount,
    MailSender,
    WebhookAddress,
    WebhookSender,
    is_public,
    sign_body,
)
from crcr.errors import OutsideFault, OutsideLimited, OutsideRefused, OutsideUnreachable, OutsideUnsure
from support.deploy.certificates import Authority
from support.notices.receivers import HANG_UP, WebhookReceiver, mail_receiver, webhook_receiver

MAIL = Mail("A subject", "A text\n", "crcr-batch-1")


@pytest.mark.parametrize(
    ("address", "public"),
    [
        ("93.184.216.34", True),
        ("2606:2800:220:1::1", True),
        ("127.0.0.1", False),
        ("10.1.2.3", False),
        ("172.16.0.1", False),
        ("192.168.1.1", False),
        ("169.254.169.254", False),  # the metadata of a cloud's machines
        ("100.64.0.1", False),
        ("0.0.0.0", False),  # noqa: S104
        ("224.0.0.1", False),
        ("255.255.255.255", False),
        ("::1", False),
        ("::", False),
        ("fe80::1%eth0", False),
        ("fd00::1", False),
        ("::ffff:127.0.0.1", False),
        ("::ffff:93.184.216.34", True),
        ("64:ff9b::7f00:1", False),  # 127.0.0.1 behind NAT64
        ("64:ff9b::5db8:d822", True),
        ("2002:7f00:1::1", False),  # 127.0.0.1 behind 6to4
        ("::127.0.0.1", False),  # the oldest way to write an IPv4 address in IPv6
        ("fec0::1", False),  # site-local
        ("64:ff9b:1::7f00:1", False),  # NAT64 of a network's own
        ("localhost", False),
        ("", False),
    ],
)
def test_private_loopback_and_reserved_addresses_are_not_public(address: str, public: bool) -> None:
    assert is_public(address) is public


class Resolver:
    """Answers each query with the next list of addresses and repeats the last one."""

    def __init__(self, *answers: Sequence[str]) -> None:
        self.answers = list(answers)
        self.queries: list[str] = []

    async def __call__(self, host: str, _: int) -> Sequence[str]:
        self.queries.append(host)
        return self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]


def tls_contexts(folder: Path) -> tuple[ssl.SSLContext, ssl.SSLContext]:
    """Return the TLS contexts of a local server and of a client that trusts it."""
    authority = Authority.make()
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(*authority.serve(folder))
    client = ssl.create_default_context(cadata=authority.pem.decode())
    return server, client


async def test_dns_rebinding_does_not_reach_the_internal_network(tmp_path: Path) -> None:
    """The name resolves to a public address at the check and to localhost at every later lookup."""
    server, client = tls_contexts(tmp_path)
    async with webhook_receiver(server) as receiver:
        resolver = Resolver(["93.184.216.34"], ["127.0.0.1"])
        sender = WebhookSender(resolver, verify=client, total_s=0.5)
        with pytest.raises((OutsideUnreachable, OutsideUnsure)):
            await sender.post(WebhookAddress(f"https://localhost:{receiver.port}/"), b"{}", {})
        assert resolver.queries == ["localhost"]
        with pytest.raises(OutsideRefused, match="not public"):
            await sender.post(WebhookAddress(f"https://localhost:{receiver.port}/"), b"{}", {})
        assert receiver.requests == []


async def test_a_host_with_one_private_address_is_refused() -> None:
    sender = WebhookSender(Resolver(["93.184.216.34", "10.0.0.1"]))
    with pytest.raises(OutsideRefused, match=r"hooks\.example has an address that is not public") as refused:
        await sender.post(WebhookAddress("https://hooks.example/secret"), b"{}", {})
    assert "secret" not in str(refused.value)


async def test_the_certificate_is_verified_against_the_name_and_not_the_address(tmp_path: Path) -> None:
    server, client = tls_contexts(tmp_path)
    sender = WebhookSender(Resolver(["127.0.0.1"]), verify=client)
    async with webhook_receiver(server) as receiver:
        named = WebhookAddress(f"https://localhost:{receiver.port}/in?key=1", ("localhost",))
        await sender.post(named, b'{"a": 1}', {"x-more": "yes"})
        other = WebhookAddress(f"https://hooks.example:{receiver.port}/", ("hooks.example",))
        with pytest.raises(OutsideUnreachable):
            await sender.post(other, b"{}", {})
    [request] = receiver.requests
    assert (request.path, request.json) == ("/in?key=1", {"a": 1})
    assert request.headers["host"] == f"localhost:{receiver.port}"
    assert request.headers["x-more"] == "yes"


@pytest.mark.parametrize(
    ("status", "error"),
    [
        (301, OutsideRefused),
        (307, OutsideRefused),
        (401, OutsideRefused),
        (404, OutsideRefused),
        (429, OutsideLimited),
        (500, OutsideUnsure),
        (503, OutsideLimited),
        (HANG_UP, OutsideUnsure),
    ],
)
async def test_a_response_other_than_success_is_an_error_and_redirects_are_not_followed(
    status: int, error: type[OutsideFault]
) -> None:
    async with webhook_receiver() as other, webhook_receiver() as receiver:
        receiver.answers, receiver.more_headers = [status], f"location: {other.url}\r\n"
        with pytest.raises(error) as raised:
            await WebhookSender().post(_address(receiver), b"{}", {})
        assert "very-secret" not in str(raised.value)
        assert (len(receiver.requests), other.requests) == (1, [])


def _address(receiver: WebhookReceiver) -> WebhookAddress:
    return WebhookAddress(receiver.url, ("127.0.0.1",))


async def test_a_receiver_that_is_down_or_has_no_name_is_unreachable() -> None:
    async with webhook_receiver() as receiver:
        address = _address(receiver)
    with pytest.raises(OutsideUnreachable):
        await WebhookSender().post(address, b"{}", {})
    with pytest.raises(OutsideUnreachable):
        await WebhookSender(Resolver([])).post(WebhookAddress("https://hooks.example/"), b"{}", {})


def test_the_signature_headers_cover_the_body_and_the_time() -> None:
    headers = sign_body("key", 1_700_000_000, b'{"version": 1}')
    expected = hmac.new(b"key", b'1700000000.{"version": 1}', hashlib.sha256).hexdigest()
    assert headers == {"X-Crcr-Timestamp": "1700000000", "X-Crcr-Signature-256": f"sha256={expected}"}


async def test_a_mail_arrives_with_its_headers() -> None:
    async with mail_receiver() as receiver:
        account = MailAccount(receiver.url, "crcr@example.org", ("a@example.org", "b@example.org"))
        reply = Mail("Grüße", "Text\n.\nEnd\n", "crcr-batch-2", reply_to="crcr-thread-1")
        await MailSender().send(account, reply)
    [message] = receiver.messages
    assert message["Subject"] == "Grüße"
    assert message["Message-ID"] == "<crcr-batch-2@example.org>"
    assert message["In-Reply-To"] == message["References"] == "<crcr-thread-1@example.org>"
    assert message.get_content().splitlines() == ["Text", ".", "End"]
    assert len(receiver.recipients) == 2


@pytest.mark.parametrize(("reply", "error"), [("451 later", OutsideLimited), ("550 never", OutsideRefused)])
async def test_the_reply_code_of_a_mail_server_decides_about_a_retry(
    reply: str, error: type[OutsideFault]
) -> None:
    async with mail_receiver() as receiver:
        receiver.replies = [reply]
        with pytest.raises(error):
            await MailSender().send(MailAccount(receiver.url, "a@example.org", ("b@example.org",)), MAIL)
    with pytest.raises(OutsideUnreachable):
        await MailSender().send(MailAccount(receiver.url, "a@example.org", ("b@example.org",)), MAIL)


async def test_a_password_is_not_sent_without_tls() -> None:
    async with mail_receiver() as receiver:
        url = f"smtp://user:pass@127.0.0.1:{receiver.port}"
        with pytest.raises(OutsideRefused, match="STARTTLS or log-in"):
            await MailSender().send(MailAccount(url, "a@example.org", ("b@example.org",)), MAIL)
    assert receiver.messages == []
