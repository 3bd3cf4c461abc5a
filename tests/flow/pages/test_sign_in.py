"""Signing in and out on the real relay: sessions, expiry, rate limits, the audit log, and secrets that never leak."""

import logging
import re
from pathlib import Path

import httpx
import pytest
import structlog
from starlette.types import Message

from support.running_relay import RunningRelay, running_relay
from support.sign_in import (
    ADMIN,
    READER,
    TOKENS,
    Visitor,
    audit_log,
    forms,
    relay_with_tokens,
    restart_relay,
    token_hashes,
    visitor,
)

KNOWN = {"org": "org", "repo": "one", "number": "1", "sha": "a" * 40}


async def test_signing_in_redirects_back_to_the_requested_page(tmp_path: Path) -> None:
    async with relay_with_tokens(tmp_path, "token") as relay, visitor(relay) as me:
        redirect = await me.get("/crcr/org/one?range=7d")
        assert redirect.status_code == 303
        page = await me.get(redirect.headers["location"])
        assert page.status_code == 200
        (form,) = [form for form in forms(page.text) if "token" in form]
        answer = await me.send(form[""], {**form, "token": READER})
        assert (answer.status_code, answer.headers["location"]) == (303, "/crcr/org/one?range=7d")
        assert (await me.get("/crcr/org/one")).status_code == 200
        assert (await me.get("/api/v1/summary")).status_code == 200
        assert audit_log(relay) == [("rob", "sign_in", "pages")]


async def test_the_session_cookie_is_http_only_and_same_site_strict(tmp_path: Path) -> None:
    async with relay_with_tokens(tmp_path) as relay, visitor(relay) as me:
        cookie = (await me.sign_in(ADMIN)).headers["set-cookie"]
        assert cookie.startswith("crcr_session=")
        assert "; HttpOnly; SameSite=Strict" in cookie
        assert "Secure" not in cookie
        assert ADMIN not in cookie


async def test_over_https_the_cookie_is_secure_with_the_host_prefix(tmp_path: Path) -> None:
    async with (
        relay_with_tokens(tmp_path, CRCR_PUBLIC_URL="https://relay.test") as relay,
        visitor(relay, "https://relay.test") as me,
    ):
        answer = await me.sign_in(ADMIN)
        assert answer.headers["set-cookie"].startswith("__Host-crcr_session=")
        assert answer.headers["set-cookie"].endswith("; Secure")
        assert "ann" in (await me.get("/crcr/login")).text
        assert "max-age" in answer.headers["strict-transport-security"]


async def test_a_wrong_token_is_rejected_without_echoing_it(tmp_path: Path) -> None:
    async with relay_with_tokens(tmp_path) as relay, visitor(relay) as me:
        answer = await me.sign_in("crcr_" + "X" * 43)
        assert answer.status_code == 401
        assert "set-cookie" not in answer.headers
        assert "Unknown token" in answer.text
        assert "XXXX" not in answer.text
        assert audit_log(relay) == [("unknown", "sign_in_failed", "pages")]


async def test_sign_ins_are_rate_limited_per_address_with_an_html_page(tmp_path: Path) -> None:
    async with relay_with_tokens(tmp_path) as relay, visitor(relay) as me:
        for _ in range(10):
            assert (await me.sign_in("wrong")).status_code == 401
        answer = await me.sign_in(ADMIN)
        assert answer.status_code == 429
        assert answer.headers["content-type"].startswith("text/html")
        assert 0 < int(answer.headers["retry-after"]) <= 60
        bearer = await me.get("/api/v1/summary", authorization=f"Bearer {ADMIN}")
        assert bearer.status_code == 429
        relay.clock.advance(61)
        assert (await me.sign_in(ADMIN)).status_code == 303


async def test_at_most_60_failed_sign_ins_an_hour_are_audited(tmp_path: Path) -> None:
    async with relay_with_tokens(tmp_path) as relay, visitor(relay) as me:
        for _ in range(8):
            for _ in range(10):
                await me.sign_in("wrong")
            relay.clock.advance(61)
        assert len(audit_log(relay)) == 60
        relay.clock.advance(3600)
        await me.sign_in("wrong")
        assert len(audit_log(relay)) == 61


async def test_wrong_bearer_tokens_count_against_the_sign_in_limit(tmp_path: Path) -> None:
    async with relay_with_tokens(tmp_path) as relay, visitor(relay) as me:
        for _ in range(10):
            assert (await me.get("/api/v1/summary", authorization="Bearer wrong")).status_code == 401
        assert (await me.sign_in(ADMIN)).status_code == 429
        assert audit_log(relay) == []


@pytest.mark.parametrize(
    "next_url", ["https://evil.test", "//evil.test", "/\\evil.test", "javascript:alert(1)"]
)
async def test_signing_in_never_redirects_to_another_site(tmp_path: Path, next_url: str) -> None:
    async with relay_with_tokens(tmp_path) as relay, visitor(relay) as me:
        page = await me.get(f"/crcr/login?next={next_url}")
        assert "evil" not in page.text
        assert "alert" not in page.text
        assert (await me.sign_in(ADMIN, next=next_url)).headers["location"] == "/crcr"


async def test_signing_out_deletes_the_cookie_and_needs_the_sessions_csrf_token(tmp_path: Path) -> None:
    async with relay_with_tokens(tmp_path, "token") as relay, visitor(relay) as me:
        await me.sign_in(READER)
        assert (await me.send("/crcr/logout", {"csrf": ""})).status_code == 403
        assert (await me.get("/crcr")).status_code == 200
        answer = await me.send("/crcr/logout", {"csrf": await me.csrf()})
        assert (answer.status_code, answer.headers["location"]) == (303, "/crcr/login")
        assert "Max-Age=0" in answer.headers["set-cookie"]
        assert (await me.get("/crcr")).status_code == 303


async def test_a_session_expires_after_twelve_hours(tmp_path: Path) -> None:
    async with relay_with_tokens(tmp_path, "token") as relay, visitor(relay) as me:
        await me.sign_in(READER)
        relay.clock.advance(12 * 3600 - 1)
        assert (await me.get("/crcr")).status_code == 200
        relay.clock.advance(2)
        assert (await me.get("/crcr")).status_code == 303
        assert (await me.get("/api/v1/summary")).status_code == 401


async def test_removing_a_token_ends_its_sessions(tmp_path: Path) -> None:
    async with relay_with_tokens(tmp_path, "token") as relay:
        async with visitor(relay) as me:
            await me.sign_in(ADMIN)
            jar = me.http.cookies
        restart_relay(relay, **{**TOKENS, "CRCR_HUD_ACCESS": "token"})
        async with visitor(relay) as returning:
            returning.http.cookies = jar
            assert (await returning.get("/crcr")).status_code == 200
        restart_relay(
            relay, **{**TOKENS, "CRCR_HUD_ACCESS": "token", "CRCR_ADMIN_TOKENS": token_hashes(ann="crcr_new")}
        )
        async with visitor(relay) as returning:
            returning.http.cookies = jar
            assert (await returning.get("/crcr")).status_code == 303


async def test_pages_show_the_signed_in_user(tmp_path: Path) -> None:
    async with relay_with_tokens(tmp_path) as relay, visitor(relay) as me:
        assert 'href="/crcr/login?next=' in (await me.get("/crcr")).text
        await me.sign_in(ADMIN)
        page = (await me.get("/crcr")).text
        assert "ann" in page
        assert [form[""] for form in forms(page) if form[""] == "/crcr/logout"]


async def test_without_configured_tokens_there_is_no_sign_in_page_and_no_link_to_it(tmp_path: Path) -> None:
    async with (
        running_relay(tmp_path, "L1:\n  - org/one\n", downstreams=("org/one",)) as relay,
        visitor(relay) as me,
    ):
        for answer in (await me.get("/crcr/login"), await me.sign_in("x"), await me.send("/crcr/logout", {})):
            assert answer.status_code == 404
            assert answer.headers["content-type"].startswith("text/html")
        assert "/crcr/login" not in (await me.get("/crcr")).text


@pytest.mark.parametrize("mode", ["public", "token", "proxy"])
async def test_unknown_paths_are_answered_as_html_to_browsers_and_as_json_to_clients(
    tmp_path: Path, mode: str
) -> None:
    proxies = {"CRCR_TRUSTED_PROXIES": "127.0.0.0/8"} if mode == "proxy" else {}
    async with relay_with_tokens(tmp_path, mode, **proxies) as relay, visitor(relay) as me:
        await me.sign_in(READER)
        for path, status in (("/crcr/nowhere/at/all", 404), ("/crcr/logout", 405)):
            answer = await me.get(path)
            assert answer.status_code == status
            assert answer.headers["content-type"].startswith("text/html")
            assert "frame-ancestors 'none'" in answer.headers["content-security-policy"]
            assert (await me.get(path, accept="application/json")).json()["error"]["code"]
        assert (await me.get("/api/v1/nowhere")).json()["error"]["code"] == "not_found"


BROWSER = "text/html,application/xhtml+xml,application/xml;q=0.9,image/avif,image/webp,*/*;q=0.8"


@pytest.mark.parametrize("path", ["/crcr/x", "/crcr/a/b/c", "/crcr/nowhere", "/crcr/no/such"])
async def test_under_crcr_a_404_is_html_also_for_a_wildcard_accept_header(tmp_path: Path, path: str) -> None:
    async with relay_with_tokens(tmp_path, "public") as relay, visitor(relay) as me:
        for accept in (BROWSER, "*/*", "TEXT/HTML"):
            answer = await me.get(path, accept=accept)
            assert answer.status_code == 404
            assert answer.headers["content-type"].startswith("text/html"), accept
            assert "<h1>Not found</h1>" in answer.text


async def test_live_updates_need_a_session(tmp_path: Path) -> None:
    async with relay_with_tokens(tmp_path, "token") as relay, visitor(relay) as me:
        assert (await me.get("/api/v1/events", accept="text/event-stream")).status_code == 401
        await me.sign_in(READER)
        answer = await me.http.head("/api/v1/events")
        assert answer.status_code == 200
        assert answer.headers["content-type"].startswith("text/event-stream")
        assert "content-encoding" not in answer.headers


async def test_every_route_sends_the_security_headers_of_its_kind(tmp_path: Path) -> None:
    async with relay_with_tokens(tmp_path) as relay, visitor(relay) as me:
        await me.sign_in(ADMIN)
        for route in relay.app.inner.routes:
            path = re.sub(
                r"{(\w+)[^}]*}", lambda part: KNOWN.get(part[1], "x"), str(getattr(route, "path", ""))
            )
            if not path or path == "/api/v1/events":
                continue
            answer = await me.get(path)
            assert answer.headers["x-content-type-options"] == "nosniff", path
            if answer.headers.get("content-type", "").startswith("text/html"):
                assert answer.headers["x-frame-options"] == "DENY", path
                assert "script-src 'self'" in answer.headers["content-security-policy"], path
            if path.startswith("/api/"):
                assert answer.headers["x-robots-tag"] == "noindex", path


async def test_fault_31_no_token_appears_in_a_log_an_audit_row_or_a_response(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    with structlog.testing.capture_logs() as logged:
        async with relay_with_tokens(tmp_path, "token") as relay, visitor(relay) as me:
            answers = await try_all_tokens(me)
        rows = relay.rows("SELECT * FROM audit")
    everything = f"{logged} {caplog.text} {rows} {[answer.text for answer in answers]}"
    cookies = [
        str(answer.headers.get("set-cookie", "")).partition(";")[0].partition("=")[2] for answer in answers
    ]
    for secret in (ADMIN, READER, "a wrong token", *filter(None, cookies)):
        assert secret not in everything
    assert {line["event"] for line in logged} >= {"signed_in", "sign_in_failed", "token_refused"}


async def try_all_tokens(me: Visitor) -> list[httpx.Response]:
    return [
        await me.sign_in("a wrong token"),
        await me.get("/api/v1/summary", authorization="Bearer a wrong token"),
        await me.get("/api/v1/summary", authorization=f"Bearer {READER}"),
        await me.sign_in(ADMIN),
        await me.get("/crcr/nowhere/at/all"),
        await me.get("/crcr/login"),
        await me.get("/api/v1/admin/pause", authorization=f"Bearer {ADMIN}"),
    ]


async def send_and_disconnect(relay: RunningRelay, path: str, *parts: bytes) -> list[Message]:
    """The response to a client that starts to send a form and disconnects."""
    incoming: list[Message] = [{"type": "http.request", "body": part, "more_body": True} for part in parts]
    sent: list[Message] = []

    async def receive() -> Message:
        return incoming.pop(0) if incoming else {"type": "http.disconnect"}

    async def send(message: Message) -> None:
        sent.append(message)

    headers = [(b"host", b"relay.test"), (b"content-type", b"application/x-www-form-urlencoded")]
    scope = {"type": "http", "method": "POST", "path": path, "query_string": b"", "headers": headers}
    await relay.app({**scope, "client": ("192.0.2.1", 1), "scheme": "http"}, receive, send)
    return sent


@pytest.mark.parametrize("parts", [[], [b"token=x"]])
async def test_a_disconnect_in_the_middle_of_a_form_is_a_400_and_no_crash(
    tmp_path: Path, parts: list[bytes]
) -> None:
    async with relay_with_tokens(tmp_path) as relay:
        sent = await send_and_disconnect(relay, "/crcr/login", *parts)
        assert sent[0]["status"] == 400
        assert relay.crashes == []


async def test_a_form_is_rejected_before_its_body_is_read_without_a_session(tmp_path: Path) -> None:
    async with relay_with_tokens(tmp_path) as relay:
        for path in ("/crcr/admin/pause", "/crcr/logout"):
            assert (await send_and_disconnect(relay, path))[0]["status"] == 401


@pytest.mark.parametrize("host", ["evil.test", "evil.test/x?", "evil.test#", "["])
async def test_no_redirect_or_link_uses_the_host_header_of_the_request(tmp_path: Path, host: str) -> None:
    async with relay_with_tokens(tmp_path) as relay:
        for number in range(2):
            await relay.github.open_pr("pytorch-like/core", title=str(number))
        await relay.drain()
        for path in (
            *("/", "/crcr/", "/crcr/org/one/", "/crcr/metrics/", "/crcr//", "/crcr/login/", "/crcr/org/one"),
            *("/crcr/org/one?job=WzFd", "/crcr/org/one?fragment=panel&job=WzFd", "/api/v1/summary/"),
            *("/api/v1/deliveries.csv?limit=1", "/nowhere/", "/crcr/admin/pause/"),
        ):
            answer = await relay.http.get(path, headers={"host": host, "accept": "text/html"})
            assert answer.status_code < 500
            headers = [answer.headers.get(name, "") for name in ("location", "link")]
            assert not [
                header for header in headers if "evil" in header or "//" in header.replace("/crcr//", "")
            ]
            assert f"://{host}" not in answer.text


async def test_a_trailing_slash_redirects_to_the_page(tmp_path: Path) -> None:
    async with relay_with_tokens(tmp_path) as relay:
        for path, target in {
            "/crcr/": "/crcr",
            "/crcr/?range=7d": "/crcr?range=7d",
            "/crcr/org/one/?kind=push": "/crcr/org/one?kind=push",
            "/crcr/a%3Fb/": "/crcr/a%3Fb",
        }.items():
            answer = await relay.http.get(path)
            assert (answer.status_code, answer.headers["location"]) == (308, target)
        for path in ("/api/v1/summary/", "/healthz/", "/metrics/"):
            assert (await relay.http.get(path)).status_code == 404


async def test_badge_code_uses_the_configured_public_url(tmp_path: Path) -> None:
    async with relay_with_tokens(tmp_path, CRCR_PUBLIC_URL="https://hud.example/") as relay:
        page = (await relay.http.get("/crcr/org/one")).text
        assert "https://hud.example/badge/org/one.svg" in page
        assert "relay.test/badge" not in page


@pytest.mark.parametrize("access", ["public", "token"])
async def test_readyz_needs_no_token_and_names_upstreams_only_with_public_access(
    tmp_path: Path, access: str
) -> None:
    async with relay_with_tokens(tmp_path, access) as relay:
        ready = await relay.http.get("/readyz")
        assert ready.status_code == 200
        assert ("pytorch-like/core" in ready.text) is (access == "public")
    empty = tmp_path / "empty"
    empty.mkdir()
    async with running_relay(empty, "nonsense", CRCR_HUD_ACCESS=access, **TOKENS) as relay:
        not_ready = await relay.http.get("/readyz")
        assert not_ready.status_code == 503
        assert ("pytorch-like/core" in not_ready.text) is (access == "public")
