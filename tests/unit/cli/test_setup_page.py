"""The page of `crcr setup` and its callback: accepted only from the browser that opened it, with its state, once."""

import re
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from http.client import HTTPConnection

import pytest

from crcr.cli.setup.redirect_server import RETURN_PATH, RedirectServer
from crcr.decide.github.repository_setup import app_manifest
from crcr.errors import NotPossible

FORM = "https://github.example.org/organizations/org/settings/apps/new"
CODE = "0123456789abcdef"
INSTALL = "https://github.example.org/apps/relay/installations/new"


def open_server(name: str = "relay", port: int = 0) -> RedirectServer:
    def build(redirect_url: str) -> dict[str, object]:
        return app_manifest(name=name, public_url="https://relay.example.org", redirect_url=redirect_url)

    return RedirectServer(FORM, port, build_manifest=build)


@pytest.fixture
def server() -> Iterator[RedirectServer]:
    with open_server() as running:
        yield running


class Browser:
    """A local browser that keeps the page's cookie."""

    def __init__(self, server: RedirectServer) -> None:
        self._server = server
        self.cookie = ""

    def get(self, target: str, host: str | None = None) -> tuple[int, str, dict[str, str]]:
        headers = {"Host": host or f"127.0.0.1:{self._server.port}", "Cookie": self.cookie}
        connection = HTTPConnection("127.0.0.1", self._server.port, timeout=20)
        connection.request("GET", target, headers=headers)
        answer = connection.getresponse()
        body, received = answer.read().decode(), dict(answer.getheaders())
        connection.close()
        self.cookie = received.get("Set-Cookie", self.cookie).partition(";")[0]
        return answer.status, body, received

    def open_page(self) -> tuple[int, str, dict[str, str]]:
        return self.get(self._server.address.partition(str(self._server.port))[2])

    def call_back(self, code: str = CODE, state: str | None = None) -> tuple[int, str, dict[str, str]]:
        return self.get(f"{RETURN_PATH}?code={code}&state={self._server.state if state is None else state}")


@pytest.fixture
def browser(server: RedirectServer) -> Browser:
    return Browser(server)


def test_the_page_has_one_button_that_posts_the_manifest_to_github(
    server: RedirectServer, browser: Browser
) -> None:
    status, page, headers = browser.open_page()
    assert (status, page.count("<button>"), page.count("<form ")) == (200, 1, 1)
    assert f'<form method="post" action="{FORM}?state={server.state}">' in page
    assert "<script" not in page
    policy = headers["Content-Security-Policy"]
    assert "default-src 'none'" in policy
    assert "form-action 'self' https://github.example.org;" in policy
    assert "frame-ancestors 'none'" in policy
    assert "unsafe-inline" not in policy
    assert (headers["Cache-Control"], headers["Referrer-Policy"]) == ("no-store", "strict-origin")
    assert "HttpOnly; SameSite=Lax" in headers["Set-Cookie"]


def test_the_server_listens_on_the_loopback_address_only(server: RedirectServer) -> None:
    assert server.address.startswith(f"http://127.0.0.1:{server.port}/")
    assert server._server.server_address[0] == "127.0.0.1"


def test_hostile_names_stay_text_on_the_page() -> None:
    with open_server('"><script>alert(1)</script>') as server:
        _, page, _ = Browser(server).open_page()
    assert "<script" not in page


def test_the_code_is_accepted_once_and_the_browser_is_redirected_to_the_installation(
    server: RedirectServer, browser: Browser
) -> None:
    browser.open_page()
    threading.Timer(0.05, server.finish, (INSTALL,)).start()
    status, _, headers = browser.call_back()
    assert (status, headers["Location"], server.wait_for_code(0)) == (303, INSTALL, CODE)
    assert browser.call_back("another-code-that-is-late")[0] == 410
    assert server.wait_for_code(0) == CODE


def test_a_failure_after_the_click_is_shown_in_the_browser(server: RedirectServer, browser: Browser) -> None:
    browser.open_page()
    server.refuse("The <disk> is full.")
    status, page, _ = browser.call_back()
    assert (status, "The &lt;disk&gt; is full." in page) == (500, True)


@dataclass(frozen=True)
class Attack:
    name: str
    send: Callable[[Browser], tuple[int, str, dict[str, str]]]
    status: int
    from_another_browser: bool = False


ATTACKS = (
    Attack("wrong state", lambda page: page.call_back(state="guessed"), 403),
    Attack("no state", lambda page: page.call_back(state=""), 403),
    Attack("the state in another browser", lambda page: page.call_back(), 403, from_another_browser=True),
    Attack("the page in another browser", lambda page: page.open_page(), 403, from_another_browser=True),
    Attack("no code", lambda page: page.call_back(code=""), 400),
    Attack("hostile code", lambda page: page.call_back(code="../../etc/x%0d%0a"), 400),
    Attack("no query", lambda page: page.get(RETURN_PATH), 403),
    Attack("another path", lambda page: page.get("/"), 404),
    Attack("another host name", lambda page: page.get(RETURN_PATH, host="evil.example.org"), 421),
)


@pytest.mark.parametrize("attack", ATTACKS, ids=lambda attack: attack.name)
def test_a_wrong_callback_is_refused_and_the_server_keeps_waiting(
    server: RedirectServer, browser: Browser, attack: Attack
) -> None:
    browser.open_page()
    assert attack.send(Browser(server) if attack.from_another_browser else browser)[0] == attack.status
    assert server.wait_for_code(0) is None
    assert bool(server.refused) is (attack.status != 404)
    server.finish(INSTALL)
    assert browser.call_back()[0] == 303
    assert server.wait_for_code(0) == CODE


def test_each_set_up_has_its_own_url_and_state() -> None:
    with open_server() as first, open_server() as second:
        assert first.state != second.state
        assert first.address.rpartition("/")[2] != second.address.rpartition("/")[2]
        assert len(first.address.rpartition("/")[2]) >= 32


def test_waiting_for_the_code_times_out(server: RedirectServer) -> None:
    assert server.wait_for_code(0.01) is None


def test_a_port_in_use_is_an_error_with_a_hint(server: RedirectServer) -> None:
    with pytest.raises(NotPossible, match=re.escape(f"port {server.port} cannot be used")) as refusal:
        open_server(port=server.port)
    assert "--redirect-port" in (refusal.value.hint or "")
