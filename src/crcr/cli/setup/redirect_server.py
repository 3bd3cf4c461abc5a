"""The local page from which the App is created, and the address to which GitHub sends the browser back.

It listens on the loopback address only, for one registration. The page's address and the `state` are random. The first
browser that opens the page is the only one: it gets a cookie, and a code counts only with that cookie and that `state`, so
that neither a hostile page nor another user of this machine can hand in the code of another App.
"""

import base64
import hashlib
import hmac
import html
import json
import re
import secrets
import threading
from collections.abc import Callable, Mapping
from http.cookies import CookieError, SimpleCookie
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self
from urllib.parse import parse_qs, urlencode, urlsplit

from crcr.errors import NotPossible

LOOPBACK = "127.0.0.1"
RETURN_PATH = "/created"
_COOKIE = "crcr_setup"
_CODE = re.compile(r"[A-Za-z0-9_-]{8,200}")
_ANSWER_WITHIN_S = 90.0
"""How long the returning browser waits until the App's files are written."""
_IDLE_S = 15
_STYLE = """
:root{color-scheme:light dark;--text:#1f2328;--soft:#59636e;--back:#fff;--card:#f6f8fa;--line:#d1d9e0;--go:#1a7f37}
@media(prefers-color-scheme:dark){:root{--text:#e6edf3;--soft:#9198a1;--back:#0d1117;--card:#161b22;--line:#3d444d;
--go:#238636}}
body{margin:0;font:16px/1.5 system-ui,sans-serif;color:var(--text);background:var(--back);overflow-wrap:anywhere}
main{max-width:42rem;margin:0 auto;padding:2rem 1rem}h1{font-size:1.5rem}
dl{display:grid;grid-template-columns:auto 1fr;gap:.3rem 1rem;padding:1rem;border:1px solid var(--line);
border-radius:6px;background:var(--card)}dt{color:var(--soft)}dd{margin:0}
button{font:inherit;font-weight:600;color:#fff;background:var(--go);border:0;border-radius:6px;padding:.7rem 1.2rem;
cursor:pointer}button:focus-visible{outline:3px solid var(--text);outline-offset:2px}.soft{color:var(--soft)}
"""


class RedirectServer:
    """Serves the page; `wait_for_code` returns the code, and `finish` or `refuse` answers the waiting browser."""

    def __init__(
        self, github_form: str, port: int, *, build_manifest: Callable[[str], Mapping[str, Any]]
    ) -> None:
        self.state = secrets.token_urlsafe(32)
        self._path = f"/{secrets.token_urlsafe(24)}"
        self._cookie = secrets.token_urlsafe(32)
        self._github = github_form
        try:
            self._server = ThreadingHTTPServer((LOOPBACK, port), _handler(self))
        except OSError as fault:
            raise NotPossible(
                f"{LOOPBACK} port {port} cannot be used for the set-up page: {fault.strerror}",
                hint="choose another with --redirect-port, or leave it out for any free port",
            ) from None
        self._server.daemon_threads = True
        self.port = int(self._server.server_address[1])
        self.manifest = build_manifest(f"{self._root}{RETURN_PATH}")
        self.refused: list[str] = []
        """What was refused, for the terminal."""
        self._lock = threading.Lock()
        self._opened = False
        self._code: str | None = None
        self._returned, self._answered = threading.Event(), threading.Event()
        self._answer: tuple[int, str, str] = (500, "The set-up ended before it was complete.", "")

    @property
    def _root(self) -> str:
        return f"http://{LOOPBACK}:{self.port}"

    @property
    def github_origin(self) -> str:
        parts = urlsplit(self._github)
        return f"{parts.scheme}://{parts.netloc}"

    @property
    def address(self) -> str:
        """The page's address. It is secret: the first browser that opens it begins the set-up."""
        return f"{self._root}{self._path}"

    def __enter__(self) -> Self:
        threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._answered.set()
        self._server.shutdown()
        self._server.server_close()

    def wait_for_code(self, timeout_s: float) -> str | None:
        """Return the code that GitHub gave to the browser; None when nobody came back in time."""
        self._returned.wait(timeout_s)
        return self._code

    def finish(self, continue_at: str) -> None:
        """Send the browser on."""
        self._answer = (303, "", continue_at)
        self._answered.set()

    def refuse(self, text: str) -> None:
        self._answer = (500, text, "")
        self._answered.set()

    def respond(self, target: str, host: str, cookies: str) -> tuple[int, str, dict[str, str]]:
        """Answer one GET with a status, a body and more headers."""
        if host != f"{LOOPBACK}:{self.port}":
            text = "Open the address exactly as the terminal shows it."
            return self._refuse(421, "a request under another name than 127.0.0.1", text)
        parts = urlsplit(target)
        if hmac.compare_digest(parts.path.encode(), self._path.encode()):
            return self._open_page(cookies)
        if parts.path == RETURN_PATH:
            return self._come_back(parse_qs(parts.query), cookies)
        return 404, _page("Not found", "<p>There is nothing here.</p>"), {}

    def _open_page(self, cookies: str) -> tuple[int, str, dict[str, str]]:
        with self._lock:
            first, self._opened = not self._opened, True
        if not first and not self._is_ours(cookies):
            text = "This page was already opened in another browser. Run `crcr setup` again for a new one."
            return self._refuse(403, "a second browser that opened the page", text)
        if self._returned.is_set():
            return 410, _page("Already done", "<p>The App was created. Look at the terminal.</p>"), {}
        cookie = f"{_COOKIE}={self._cookie}; HttpOnly; SameSite=Lax; Path=/; Max-Age=7200"
        return 200, _start_page(self._github, self.state, self.manifest), {"Set-Cookie": cookie}

    def _is_ours(self, cookies: str) -> bool:
        try:
            kept = SimpleCookie(cookies).get(_COOKIE)
        except CookieError:
            return False
        return kept is not None and hmac.compare_digest(kept.value.encode(), self._cookie.encode())

    def _come_back(self, query: Mapping[str, list[str]], cookies: str) -> tuple[int, str, dict[str, str]]:
        [state] = query.get("state", [""])[:1]
        [code] = query.get("code", [""])[:1]
        if not hmac.compare_digest(state.encode(), self.state.encode()) or not self._is_ours(cookies):
            text = "This answer does not belong to the set-up that waits here. Nothing was changed."
            return self._refuse(403, "an answer with a wrong state, or from another browser", text)
        if not _CODE.fullmatch(code):
            return self._refuse(
                400, "an answer without a code", "GitHub sent no code. Go back and try again."
            )
        with self._lock:
            first = self._code is None
            self._code = self._code or code
        if not first:
            return (
                410,
                _page("Already done", "<p>This answer was used already. Look at the terminal.</p>"),
                {},
            )
        self._returned.set()
        self._answered.wait(_ANSWER_WITHIN_S)
        status, text, location = self._answer
        if location:
            return status, "", {"Location": location}
        return status, _page("Not complete", f"<p>{html.escape(text)} Look at the terminal.</p>"), {}

    def _refuse(self, status: int, noted: str, text: str) -> tuple[int, str, dict[str, str]]:
        with self._lock:
            if noted not in self.refused:
                self.refused.append(noted)
        return status, _page("Refused", f"<p>{html.escape(text)}</p>"), {}


def _handler(server: RedirectServer) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        timeout = _IDLE_S
        server_version, sys_version = "crcr", ""

        def do_GET(self) -> None:
            host, cookies = self.headers.get("Host", ""), self.headers.get("Cookie", "")
            status, body, more = server.respond(self.path, host, cookies)
            content = body.encode()
            self.send_response(status)
            for name, value in {**response_headers(server.github_origin), **more}.items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *_: Any) -> None:
            """Log nothing: the request line holds the code."""

    return Handler


def response_headers(github: str) -> dict[str, str]:
    digest = base64.b64encode(hashlib.sha256(_STYLE.encode()).digest()).decode()
    # Browsers apply form-action to the redirects that follow the form as well, so our own address is in it.
    policy = (
        f"default-src 'none'; style-src 'sha256-{digest}'; form-action 'self' {github}; "
        "base-uri 'none'; frame-ancestors 'none'"
    )
    return {
        "Content-Type": "text/html; charset=utf-8",
        "Content-Security-Policy": policy,
        "X-Frame-Options": "DENY",
        "X-Content-Type-Options": "nosniff",
        # The origin alone: the path is secret, and without an origin GitHub might refuse the form.
        "Referrer-Policy": "strict-origin",
        "Cache-Control": "no-store",
    }


def _start_page(github_form: str, state: str, manifest: Mapping[str, Any]) -> str:
    action = f"{github_form}?{urlencode({'state': state})}"
    rows = {
        "Name": manifest["name"],
        "Webhooks to": manifest["hook_attributes"]["url"],
        "Permissions": ", ".join(
            f"{name}: {right}" for name, right in manifest["default_permissions"].items()
        ),
        "Events": ", ".join(manifest["default_events"]),
    }
    shown = "".join(
        f"<dt>{html.escape(name)}</dt><dd>{html.escape(str(value))}</dd>" for name, value in rows.items()
    )
    host = html.escape(urlsplit(github_form).netloc)
    value = html.escape(json.dumps(manifest), quote=True)
    return _page(
        "Create the relay's GitHub App",
        f"<p>{host} asks you to confirm the App, and then on which repositories to install it.</p>"
        f"<dl>{shown}</dl>"
        f'<form method="post" action="{html.escape(action, quote=True)}">'
        f'<input type="hidden" name="manifest" value="{value}">'
        f"<p><button>Create the App on {host}</button></p></form>"
        '<p class="soft">The key goes from GitHub to this machine only. To cancel, press Ctrl-C in the terminal.</p>',
    )


def _page(title: str, body: str) -> str:
    return (
        '<!doctype html><html lang="en"><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width,initial-scale=1">'
        f"<title>{html.escape(title)} · crcr setup</title><style>{_STYLE}</style>"
        f"<main><h1>{html.escape(title)}</h1>{body}</main></html>"
    )
