"""The reporter's own HTTP on real sockets: redirects, proxies, certificates, and truncated, endless and slow responses."""

import ssl
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509.oid import NameOID

from github_sim.oidc.signing import private_pem, rsa_key
from support.downstream.reporter import TOKEN, reporter, run_reporter_process
from support.process import free_port

pytestmark = pytest.mark.slow

Answering = Callable[[BaseHTTPRequestHandler, int], None]


class Listener(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, answering: Answering) -> None:
        self.got: list[tuple[str, str | None]] = []
        super().__init__(("127.0.0.1", 0), self._handler(answering))
        self.url = f"http://127.0.0.1:{self.server_port}"

    def _handler(self, answering: Answering) -> type[BaseHTTPRequestHandler]:
        server = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                self.rfile.read(int(self.headers.get("Content-Length", 0)))
                server.got.append((self.path, self.headers.get("Authorization")))
                answering(self, len(server.got))

            def do_CONNECT(self) -> None:
                server.got.append((self.path, None))
                self.send_error(502)

            def log_message(self, *_: Any) -> None:
                pass

        return Handler

    def handle_error(self, *_: Any) -> None:
        """A client that disconnected, or that rejected our certificate."""


@contextmanager
def listening(answering: Answering, context: ssl.SSLContext | None = None) -> Iterator[Listener]:
    server = Listener(answering)
    if context is not None:
        server.socket = context.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def respond_with(
    status: int, body: bytes = b'{"ok":true,"status":"in_progress","repeat":false}', **headers: str
) -> Answering:
    def answering(handler: BaseHTTPRequestHandler, _: int) -> None:
        handler.send_response(status)
        for name, value in {"Content-Length": str(len(body)), **headers}.items():
            handler.send_header(name.replace("_", "-"), value)
        handler.end_headers()
        handler.wfile.write(body)

    return answering


def env(url: str, **more: str) -> dict[str, str]:
    own = {"CRCR_DELIVERY_ID": "d", "CRCR_RUN_ID": "1", "CRCR_JOB_NAME": "build", "CRCR_ID_TOKEN": TOKEN}
    return {**own, "CRCR_RELAYS": f"{url} crcr", "CRCR_STATUS": "in_progress", "CRCR_MAX_TIME": "0", **more}


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
async def test_a_redirect_does_not_forward_the_token(tmp_path: Path, status: int) -> None:
    with (
        listening(respond_with(200)) as elsewhere,
        listening(respond_with(status, Location=f"{elsewhere.url}/taken")) as relay,
    ):
        code, output = await run_reporter_process("--strict", env=env(f"{relay.url}/x"), folder=tmp_path)
        assert (code, len(relay.got), elsewhere.got) == (1, 1, [])
        assert f"redirect ({status})" in output


async def test_loopback_is_reached_without_a_proxy(tmp_path: Path) -> None:
    with listening(respond_with(200)) as proxy, listening(respond_with(200)) as relay:
        proxies = {"http_proxy": proxy.url, "HTTPS_PROXY": proxy.url, "ALL_PROXY": proxy.url}
        code, output = await run_reporter_process(
            "--strict", env=env(f"{relay.url}/x", **proxies), folder=tmp_path
        )
        assert (code, relay.got, proxy.got) == (0, [("/x", f"Bearer {TOKEN}")], []), output


async def test_other_hosts_are_reached_through_the_proxy_of_the_environment(tmp_path: Path) -> None:
    with listening(respond_with(200)) as proxy:
        address = env("https://relay.invalid/github/callback", HTTPS_PROXY=proxy.url)
        code, output = await run_reporter_process("--strict", env=address, folder=tmp_path)
        assert (code, proxy.got) == (1, [("relay.invalid:443", None)])
        assert "cannot be reached" in output


def certificate(folder: Path) -> ssl.SSLContext:
    """A server with a self-signed certificate."""
    key, now = rsa_key("tls"), datetime.now(UTC)
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "localhost")])
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName("localhost")]), critical=False)
        .sign(key, hashes.SHA256())
    )
    path = folder / "server.pem"
    path.write_bytes(private_pem("tls").encode() + made.public_bytes(Encoding.PEM))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(path)
    return context


async def test_a_server_with_an_untrusted_certificate_gets_no_token(tmp_path: Path) -> None:
    with listening(respond_with(200), certificate(tmp_path)) as relay:
        address = f"https://localhost:{relay.server_port}/x"
        patient = env(address, CRCR_MAX_TIME="60")
        began = time.monotonic()
        code, output = await run_reporter_process("--strict", env=patient, folder=tmp_path)
        assert (code, relay.got) == (1, [])
        assert "certificate is not trusted" in output
        assert time.monotonic() - began < 30
        trusted = env(address, SSL_CERT_FILE=str(tmp_path / "server.pem"))
        code, output = await run_reporter_process("--strict", env=trusted, folder=tmp_path)
        assert (code, len(relay.got)) == (0, 1), output


async def test_a_busy_relay_is_retried_after_its_retry_after(tmp_path: Path) -> None:
    def answering(handler: BaseHTTPRequestHandler, count: int) -> None:
        respond_with(200)(handler, count) if count > 1 else respond_with(429, b"{}", Retry_After="1")(
            handler, count
        )

    with listening(answering) as relay:
        began = time.monotonic()
        patient = env(f"{relay.url}/x", CRCR_MAX_TIME="30")
        code, output = await run_reporter_process("--strict", env=patient, folder=tmp_path)
        assert (code, len(relay.got)) == (0, 2), output
        assert time.monotonic() - began >= 1


def send_post(url: str, timeout_s: float = 5.0) -> Any:
    request = urllib.request.Request(url, data=b"{}", method="POST")  # noqa: S310  our own listener
    return reporter.fetch(request, timeout_s)


def test_a_truncated_response_counts_as_no_response() -> None:
    def answering(handler: BaseHTTPRequestHandler, _: int) -> None:
        handler.send_response(200)
        handler.send_header("Content-Length", "500")
        handler.end_headers()
        handler.wfile.write(b'{"ok":')

    with listening(answering) as relay:
        response = send_post(relay.url)
        assert (response.status, response.body) == (0, b"")
        assert reporter.is_retryable(response)


@pytest.mark.parametrize("status", [200, 403])
def test_only_the_beginning_of_an_endless_response_is_read(status: int) -> None:
    with listening(respond_with(status, b"x" * (1 << 20))) as relay:
        response = send_post(relay.url)
        assert (response.status, len(response.body)) == (status, 64 * 1024)


def test_a_response_that_arrives_byte_by_byte_times_out() -> None:
    gone = threading.Event()

    def answering(handler: BaseHTTPRequestHandler, _: int) -> None:
        handler.wfile.write(b"HTTP/1.1 200 OK\r\nX-Slow: ")
        while not gone.wait(0.05):
            handler.wfile.write(b"x")

    with listening(answering) as relay:
        began = time.monotonic()
        response = send_post(relay.url, 0.3)
        gone.set()
        assert (response.status, response.fault) == (0, "no answer within 0 s")
        assert time.monotonic() - began < 5


def test_a_response_that_is_not_http_counts_as_no_response() -> None:
    def answering(handler: BaseHTTPRequestHandler, _: int) -> None:
        handler.wfile.write(b"SSH-2.0-OpenSSH_9.6\r\n")

    with listening(answering) as relay:
        assert send_post(relay.url).status == 0
    assert send_post(f"http://127.0.0.1:{free_port()}/").status == 0
