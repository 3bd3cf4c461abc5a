"""The commands' HTTP client against local servers that send arbitrary bytes."""

import re
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from crcr.cli.http_client import (
    AnswerBroken,
    AnswerTooLarge,
    CertificateNotTrusted,
    ConnectionFailed,
    HttpClient,
    HttpError,
    InvalidRequest,
    TimedOut,
    TooManyRedirects,
)
from support.deploy.certificates import Authority

OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"
MOST_BYTES = 100_000
AUTHORIZATION = {"Authorization": "Bearer hush-hush"}
Talk = bytes | Callable[[socket.socket], None]
"""The bytes that a server sends after a request, or a function that handles the connection."""


@dataclass
class Server:
    """Answers one request per connection; the last answer is repeated."""

    listener: socket.socket
    answers: list[Talk]
    requests: list[str] = field(default_factory=list)

    @property
    def port(self) -> int:
        return int(self.listener.getsockname()[1])

    def url(self, path: str = "", host: str = "127.0.0.1") -> str:
        return f"http://{host}:{self.port}{path}"

    def run(self, tls: ssl.SSLContext | None) -> None:
        while True:
            try:
                connection, _ = self.listener.accept()
            except OSError:
                return
            with suppress(OSError), connection:
                if tls:
                    connection = tls.wrap_socket(connection, server_side=True)
                with connection:
                    self.answer(connection)

    def answer(self, connection: socket.socket) -> None:
        request = _receive_request(connection)
        self.requests.append(request.decode("latin-1"))
        following = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(following, bytes):
            connection.sendall(following)
        else:
            following(connection)


def _receive_request(connection: socket.socket) -> bytes:
    """Read the whole request: closing a connection with unread data resets it."""
    request = connection.recv(65536)
    while request[:1].isalpha():
        head, ended, body = request.partition(b"\r\n\r\n")
        length = re.search(rb"(?i)^content-length: (\d+)", head, re.MULTILINE)
        part = b"" if ended and len(body) >= int(length[1] if length else 0) else connection.recv(65536)
        if not part:
            break
        request += part
    return request


@contextmanager
def run_server(*answers: Talk, tls: ssl.SSLContext | None = None) -> Iterator[Server]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        server = Server(listener, list(answers))
        thread = threading.Thread(target=server.run, args=(tls,))
        thread.start()
        try:
            yield server
        finally:
            listener.shutdown(socket.SHUT_RDWR)
            thread.join()


@pytest.fixture(autouse=True)
def no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "https_proxy", "all_proxy", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)


def make_client(base_url: str = "", *, timeout_s: float = 20, most_redirects: int = 0) -> HttpClient:
    return HttpClient(base_url, timeout_s=timeout_s, most_redirects=most_redirects, most_bytes=MOST_BYTES)


@pytest.mark.parametrize(
    ("sent", "status", "content"),
    [
        (OK, 200, b"ok"),
        (b"HTTP/1.0 404 Not Found\r\n\r\nnothing", 404, b"nothing"),
        (
            b"HTTP/1.1 503 Busy\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nbus\r\n1\r\ny\r\n0\r\n\r\n",
            503,
            b"busy",
        ),
        (b"HTTP/1.1 304 Not Modified\r\nContent-Length: 5\r\n\r\n", 304, b""),
        (b"HTTP/1.1 302 Found\r\nLocation: /there\r\nContent-Length: 0\r\n\r\n", 302, b""),
    ],
)
def test_every_status_is_returned_as_a_response(sent: bytes, status: int, content: bytes) -> None:
    with run_server(sent) as server:
        answer = make_client(server.url("/below/")).get("/path")
    assert (answer.status_code, answer.content) == (status, content)
    assert server.requests[0].startswith("GET /below/path HTTP/1.1\r\n")


def test_headers_have_lower_case_names_and_unfolded_values() -> None:
    with run_server(b'HTTP/1.1 200 OK\r\nETag: "a\r\n b"\r\nContent-Length: 0\r\n\r\n') as server:
        assert make_client().get(server.url()).headers["etag"] == '"a  b"'


def test_a_post_sends_json_or_nothing() -> None:
    with run_server(OK) as server:
        http = make_client(server.url())
        http.post("/a", json_body={"b": 1})
        http.post("/c")
    first, second = server.requests
    assert "Content-Type: application/json\r\n" in first
    assert first.endswith('\r\n\r\n{"b": 1}')
    assert (second.startswith("POST /c "), "Content-Length: 0\r\n" in second) == (True, True)


def test_non_ascii_characters_of_a_url_are_quoted() -> None:
    with run_server(OK) as server:
        make_client().get(server.url("/ü b%20c?d=é#e"))
    assert server.requests[0].startswith("GET /%C3%BC%20b%20c?d=%C3%A9 HTTP/1.1\r\n")


@pytest.mark.parametrize(
    "sent",
    [
        b"",
        b"SSH-2.0-OpenSSH\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\ncut",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nff\r\ncut",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nnone\r\n",
        b"HTTP/1.1 200 OK\r\n"
        + b"a: b\r\n" * 20_000
        + b"\r\n",  # a driver of ClickHouse raises the limit to 10,000
        b"HTTP/1.1 200 OK\r\na: " + b"b" * 100_000 + b"\r\n\r\n",
    ],
    ids=lambda sent: str(sent[:60]),
)
def test_a_truncated_or_invalid_response_is_an_error_and_not_empty(sent: bytes) -> None:
    with run_server(sent) as server, pytest.raises(AnswerBroken) as broken:
        make_client().get(server.url())
    assert 0 < len(broken.value.detail) <= 200


@pytest.mark.parametrize(
    "head", [b"", b"Content-Length: 1000000000000\r\n", b"Transfer-Encoding: chunked\r\n"]
)
def test_an_endless_response_is_read_up_to_the_limit(head: bytes) -> None:
    sent_bytes = 0

    def send_on(connection: socket.socket) -> None:
        nonlocal sent_bytes
        connection.sendall(b"HTTP/1.1 200 OK\r\n" + head + b"\r\n")
        with suppress(OSError):
            while True:
                sent_bytes += connection.send(b"1000\r\n" + b"x" * 4096 + b"\r\n")

    with run_server(send_on) as server, pytest.raises(AnswerTooLarge):
        make_client().get(server.url())
    assert sent_bytes < 50_000_000  # the socket buffers


@pytest.mark.parametrize(
    "sent",
    [
        b"HTTP/1.1 20",
        b"HTTP/1.1 100 Continue\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nX: y\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nx",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nx\r\n0\r\nX: y\r\n",
    ],
)
def test_a_slowly_sending_server_does_not_extend_the_timeout(sent: bytes) -> None:
    now = 0.0

    def send_late(connection: socket.socket) -> None:
        nonlocal now
        now = 7200.0
        connection.sendall(sent)
        connection.recv(1)

    with run_server(send_late) as server, pytest.raises(TimedOut, match="timed out"):
        HttpClient(timeout_s=3600, clock=lambda: now).get(server.url())


def test_a_silent_server_times_out() -> None:
    def wait_for_end(connection: socket.socket) -> None:
        connection.recv(1)

    with run_server(wait_for_end) as server, pytest.raises(TimedOut):
        make_client(timeout_s=0.05).get(server.url())


def test_a_refused_connection_is_a_connection_failure() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    with pytest.raises(ConnectionFailed, match="Connection refused"):
        make_client().get(f"http://127.0.0.1:{port}")


@pytest.mark.parametrize(
    ("url", "headers"),
    [
        ("file:///etc/passwd", {}),
        ("relay.example.org", {}),
        ("http://", {}),
        ("http://user:hush-hush@127.0.0.1:9", {}),
        ("http://127.0.0.1:99999", {}),
        ("http://127.0.0.1:nine", {}),
        ("http://[::1", {}),
        ("http://127.0.0.1 x:9", {}),
        ("http://" + "ü" * 80, {}),
        ("http://127.0.0.1:9", {"Authorization": "Bearer hush-hush\r\nX: y"}),
        ("http://127.0.0.1:9", {"Authorization": "Bearer hush-hush\u20ac"}),
    ],
)
def test_an_invalid_request_is_an_error_without_its_secrets(url: str, headers: dict[str, str]) -> None:
    with pytest.raises(HttpError) as failed:
        make_client().get(url, headers)
    assert isinstance(failed.value, InvalidRequest | ConnectionFailed)
    assert "hush-hush" not in str(failed.value)


def redirect(url: str) -> bytes:
    return f"HTTP/1.1 302 Found\r\nLocation: {url}\r\nContent-Length: 0\r\n\r\n".encode()


def test_a_redirect_to_another_origin_drops_the_token() -> None:
    with run_server(OK) as other, run_server(redirect("/b"), redirect(other.url("/c"))) as server:
        answer = make_client(server.url(), most_redirects=2).get("/a", AUTHORIZATION)
    assert answer.content == b"ok"
    assert ["hush-hush" in request for request in (*server.requests, *other.requests)] == [True, True, False]
    with run_server(OK) as server:
        server.answers.insert(0, redirect(server.url("/b", "localhost")))
        make_client(server.url(), most_redirects=1).get("/a", AUTHORIZATION)
    assert ["hush-hush" in request for request in server.requests] == [True, False]


def test_redirects_are_followed_only_for_get_and_up_to_a_limit() -> None:
    with run_server(redirect("/again")) as server:
        http = make_client(server.url(), most_redirects=3)
        assert http.post("/a").is_redirect
        with pytest.raises(TooManyRedirects):
            http.get("/b")
        assert len(server.requests) == 5


@pytest.mark.parametrize(
    "target", ["file:///etc/passwd", "ftp://127.0.0.1/", "//user:x@127.0.0.1/", "http://[x/"]
)
def test_a_redirect_to_another_scheme_or_invalid_url_is_refused(target: str) -> None:
    with run_server(redirect(target)) as server, pytest.raises(InvalidRequest):
        make_client(server.url(), most_redirects=1).get("/")


@pytest.mark.parametrize("variable", ["http_proxy", "HTTP_PROXY", "ALL_PROXY"])
def test_the_proxy_of_the_environment_is_used_except_for_localhost(
    monkeypatch: pytest.MonkeyPatch, variable: str
) -> None:
    with run_server(OK) as proxy, run_server(OK) as server:
        monkeypatch.setenv(variable, f"http://name:word@127.0.0.1:{proxy.port}")
        make_client().get("http://relay.example.org/path")
        make_client().get(server.url("/own"))
    [proxied], [direct] = proxy.requests, server.requests
    assert proxied.startswith("GET http://relay.example.org/path HTTP/1.1\r\n")
    assert "Proxy-Authorization: Basic " in proxied
    assert direct.startswith("GET /own HTTP/1.1\r\n")


def test_a_refusing_or_unsupported_proxy_is_named_in_the_error(monkeypatch: pytest.MonkeyPatch) -> None:
    with run_server(b"HTTP/1.1 403 Forbidden\r\n\r\n") as proxy:
        monkeypatch.setenv("HTTPS_PROXY", f"127.0.0.1:{proxy.port}")
        with pytest.raises(ConnectionFailed, match="Tunnel connection failed: 403"):
            make_client().get("https://relay.example.org", AUTHORIZATION)
    assert proxy.requests[0].startswith("CONNECT relay.example.org:443 HTTP/1.")
    assert "hush-hush" not in proxy.requests[0]
    monkeypatch.setenv("HTTPS_PROXY", "socks5://name:hush-hush@127.0.0.1:9")
    with pytest.raises(InvalidRequest, match=r"proxy is not an http:// address; no other kind can be used$"):
        make_client().get("https://relay.example.org")


def test_a_server_without_tls_is_not_reported_as_a_bad_certificate() -> None:
    with run_server(b"HTTP/1.1 400 Bad Request\r\n\r\n") as server, pytest.raises(ConnectionFailed) as failed:
        make_client().get(f"https://127.0.0.1:{server.port}")
    assert not isinstance(failed.value, CertificateNotTrusted)


@pytest.fixture
def tls(tmp_path: Path) -> ssl.SSLContext:
    """TLS context of a local server; `authority.pem` is its certificate authority."""
    authority = Authority.make()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*authority.serve(tmp_path))
    (tmp_path / "authority.pem").write_bytes(authority.pem)
    return context


def test_a_certificate_must_be_trusted_by_the_system_or_ssl_cert_file(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, tls: ssl.SSLContext
) -> None:
    with run_server(OK, tls=tls) as server:
        url = f"https://127.0.0.1:{server.port}"
        with pytest.raises(CertificateNotTrusted, match="CERTIFICATE_VERIFY_FAILED"):
            make_client().get(url, AUTHORIZATION)
        assert server.requests == []
        monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "authority.pem"))
        assert make_client().get(url).content == b"ok"


def test_behind_a_proxy_the_certificate_must_be_the_relays_own(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, tls: ssl.SSLContext
) -> None:
    def intercept(connection: socket.socket) -> None:
        connection.sendall(b"HTTP/1.1 200 Connection established\r\n\r\n")
        with tls.wrap_socket(connection, server_side=True) as opened:
            opened.recv(65536)

    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "authority.pem"))
    with run_server(intercept) as proxy:
        monkeypatch.setenv("HTTPS_PROXY", f"http://127.0.0.1:{proxy.port}")
        with pytest.raises(CertificateNotTrusted, match=r"not valid for 'relay\.example\.org'"):
            make_client().get("https://relay.example.org", AUTHORIZATION)
