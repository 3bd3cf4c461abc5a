"""Signing in and out on the real relay: sessions, their ends, limits, the audit log, and what is never told."""

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


async def test_a_stranger_signs_in_and_is_back_where_they_wanted_to_be(tmp_path: Path) -> None:
    async with relay_with_tokens(tmp_path, "token") as relay, visitor(relay) as me:
        sent_away = await me.get("/crcr/org/one?range=7d")
        assert sent_away.status_code == 303
        page = await me.get(sent_away.headers["location"])
        assert page.status_code == 200
        (form,) = [each for each in forms(page.text) if "token" in each]
        answer = await me.send(form[""], {**form, "token": READER})
        assert (answer.status_code, answer.headers["location"]) == (303, "/crcr/org/one?range=7d")
        assert (await me.get("/crcr/org/one")).status_code == 200
        assert (await me.get("/api/v1/summary")).status_code == 200
        assert audit_log(relay) == [("rob", "sign_in", "pages")]


async def test_the_cookie_is_kept_from_scripts_and_from_other_sites(tmp_path: Path) -> None:
    async with relay_with_tokens(tmp_path) as relay, visitor(relay) as me:
        cookie = (await me.sign_in(ADMIN)).headers["set-cookie"]
        assert cookie.startswith("crcr_session=")
        assert "; HttpOnly; SameSite=Strict" in cookie
        assert "Secure" not in cookie
        assert ADMIN not in cookie


async def test_over_https_the_cookie_is_bound_to_this_host(tmp_path: Path) -> None:
    async with (
        relay_with_tokens(tmp_path, CRCR_PUBLIC_URL="https://relay.test") as relay,
        visitor(relay, "https://relay.test") as me,
    ):
        answer = await me.sign_in(ADMIN)
        assert answer.headers["set-cookie"].startswith("__Host-crcr_session=")
        assert answer.headers["set-cookie"].endswith("; Secure")
        assert "ann" in (await me.get("/crcr/login")).text
        assert "max-age" in answer.headers["strict-transport-security"]


async def test_a_wrong_token_is_said_to_be_wrong_and_nothing_else(tmp_path: Path) -> None:
    async with relay_with_tokens(tmp_path) as relay, visitor(relay) as me:
        answer = await me.sign_in("crcr_" + "X" * 43)
        assert answer.status_code == 401
        assert "set-cookie" not in answer.headers
        assert "Unknown token" in answer.text
        assert "XXXX" not in answer.text
        assert audit_log(relay) == [("unknown", "sign_in_failed", "pages")]


async def test_log_ins_are_limited_by_address_and_told_as_a_page(tmp_path: Path) -> None:
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


async def test_who_tries_for_hours_does_not_fill_the_audit_log(tmp_path: Path) -> None:
    async with relay_with_tokens(tmp_path) as relay, visitor(relay) as me:
        for _ in range(8):
            for _ in range(10):
                await me.sign_in("wrong")
            relay.clock.advance(61)
        assert len(audit_log(relay)) == 60


async def test_wrong_bearers_count_against_the_same_limit(tmp_path: Path) -> None:
    async with relay_with_tokens(tmp_path) as relay, visitor(relay) as me:
        for _ in range(10):
            assert (await me.get("/api/v1/summary", authorization="Bearer wrong")).status_code == 401
        assert (await me.sign_in(ADMIN)).status_code == 429
        assert audit_log(relay) == []


@pytest.mark.parametrize("back", ["https://evil.test", "//evil.test", "/\\evil.test", "javascript:alert(1)"])
async def test_nobody_is_led_away_by_signing_in(tmp_path: Path, back: str) -> None:
    async with relay_with_tokens(tmp_path) as relay, visitor(relay) as me:
        page = await me.get(f"/crcr/login?next={back}")
        assert "evil" not in page.text
        assert "alert" not in page.text
        assert (await me.sign_in(ADMIN, next=back)).headers["location"] == "/crcr"


async def test_signing_out_takes_the_cookie_away_and_needs_the_sessions_own_form(tmp_path: Path) -> None:
    async with relay_with_tokens(tmp_path, "token") as relay, visitor(relay) as me:
        await me.sign_in(READER)
        assert (await me.send("/crcr/logout", {"csrf": ""})).status_code == 403
        assert (await me.get("/crcr")).status_code == 200
        answer = await me.send("/crcr/logout", {"csrf": await me.csrf()})
        assert (answer.status_code, answer.headers["location"]) == (303, "/crcr/login")
        assert "Max-Age=0" in answer.headers["set-cookie"]
        assert (await me.get("/crcr")).status_code == 303


async def test_a_session_ends_by_itself_after_twelve_hours(tmp_path: Path) -> None:
    async with relay_with_tokens(tmp_path, "token") as relay, visitor(relay) as me:
        await me.sign_in(READER)
        relay.clock.advance(12 * 3600 - 1)
        assert (await me.get("/crcr")).status_code == 200
        relay.clock.advance(2)
        assert (await me.get("/crcr")).status_code == 303
        assert (await me.get("/api/v1/summary")).status_code == 401


async def test_a_token_that_is_taken_out_takes_its_sessions_along(tmp_path: Path) -> None:
    async with relay_with_tokens(tmp_path, "token") as relay:
        async with visitor(relay) as me:
            await me.sign_in(ADMIN)
            jar = me.http.cookies
        restart_relay(relay, **{**TOKENS, "CRCR_HUD_ACCESS": "token"})
        async with visitor(relay) as again:
            again.http.cookies = jar
            assert (await again.get("/crcr")).status_code == 200
        restart_relay(
            relay, **{**TOKENS, "CRCR_HUD_ACCESS": "token", "CRCR_ADMIN_TOKENS": token_hashes(ann="crcr_new")}
        )
        async with visitor(relay) as again:
            again.http.cookies = jar
            assert (await again.get("/crcr")).status_code == 303


async def test_pages_know_who_looks(tmp_path: Path) -> None:
    async with relay_with_tokens(tmp_path) as relay, visitor(relay) as me:
        assert 'href="/crcr/login?next=' in (await me.get("/crcr")).text
        await me.sign_in(ADMIN)
        page = (await me.get("/crcr")).text
        assert "ann" in page
        assert [each[""] for each in forms(page) if each[""] == "/crcr/logout"]


async def test_without_tokens_nobody_can_sign_in_and_nothing_says_so(tmp_path: Path) -> None:
    async with (
        running_relay(tmp_path, "L1:\n  - org/one\n", downstreams=("org/one",)) as relay,
        visitor(relay) as me,
    ):
        for answer in (await me.get("/crcr/login"), await me.sign_in("x"), await me.send("/crcr/logout", {})):
            assert answer.status_code == 404
            assert answer.headers["content-type"].startswith("text/html")
        assert "/crcr/login" not in (await me.get("/crcr")).text


@pytest.mark.parametrize("mode", ["public", "token", "proxy"])
async def test_unknown_addresses_are_told_as_pages_to_who_reads_pages(tmp_path: Path, mode: str) -> None:
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
async def test_whoever_takes_anything_gets_a_page_where_pages_are(tmp_path: Path, path: str) -> None:
    async with relay_with_tokens(tmp_path, "public") as relay, visitor(relay) as me:
        for accept in (BROWSER, "*/*", "TEXT/HTML"):
            answer = await me.get(path, accept=accept)
            assert answer.status_code == 404
            assert answer.headers["content-type"].startswith("text/html"), accept
            assert "<h1>Not found</h1>" in answer.text


async def test_live_updates_need_the_session_too(tmp_path: Path) -> None:
    async with relay_with_tokens(tmp_path, "token") as relay, visitor(relay) as me:
        assert (await me.get("/api/v1/events", accept="text/event-stream")).status_code == 401
        await me.sign_in(READER)
        answer = await me.http.head("/api/v1/events")
        assert answer.status_code == 200
        assert answer.headers["content-type"].startswith("text/event-stream")
        assert "content-encoding" not in answer.headers


async def test_all_routes_carry_the_headers_of_their_kind(tmp_path: Path) -> None:
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


async def test_fault_31_no_token_is_ever_logged_or_answered(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    with structlog.testing.capture_logs() as logged:
        async with relay_with_tokens(tmp_path, "token") as relay, visitor(relay) as me:
            answers = await everything_tried(me)
        rows = relay.rows("SELECT * FROM audit")
    told = f"{logged} {caplog.text} {rows} {[each.text for each in answers]}"
    cookies = [
        str(each.headers.get("set-cookie", "")).partition(";")[0].partition("=")[2] for each in answers
    ]
    for secret in (ADMIN, READER, "a wrong token", *filter(None, cookies)):
        assert secret not in told
    assert {each["event"] for each in logged} >= {"signed_in", "sign_in_failed", "token_refused"}


async def everything_tried(me: Visitor) -> list[httpx.Response]:
    return [
        await me.sign_in("a wrong token"),
        await me.get("/api/v1/summary", authorization="Bearer a wrong token"),
        await me.get("/api/v1/summary", authorization=f"Bearer {READER}"),
        await me.sign_in(ADMIN),
        await me.get("/crcr/nowhere/at/all"),
        await me.get("/crcr/login"),
        await me.get("/api/v1/admin/pause", authorization=f"Bearer {ADMIN}"),
    ]


async def left_alone(relay: RunningRelay, path: str, *parts: bytes) -> list[Message]:
    """What is sent to somebody who begins a form and goes away."""
    told: list[Message] = [{"type": "http.request", "body": part, "more_body": True} for part in parts]
    sent: list[Message] = []

    async def receive() -> Message:
        return told.pop(0) if told else {"type": "http.disconnect"}

    async def send(message: Message) -> None:
        sent.append(message)

    headers = [(b"host", b"relay.test"), (b"content-type", b"application/x-www-form-urlencoded")]
    scope = {"type": "http", "method": "POST", "path": path, "query_string": b"", "headers": headers}
    await relay.app({**scope, "client": ("192.0.2.1", 1), "scheme": "http"}, receive, send)
    return sent


@pytest.mark.parametrize("parts", [[], [b"token=x"]])
async def test_who_goes_away_in_the_middle_of_a_form_is_no_crash(tmp_path: Path, parts: list[bytes]) -> None:
    async with relay_with_tokens(tmp_path) as relay:
        sent = await left_alone(relay, "/crcr/login", *parts)
        assert sent[0]["status"] == 400
        assert relay.crashes == []


async def test_nothing_of_a_form_is_read_before_it_is_known_who_sends_it(tmp_path: Path) -> None:
    async with relay_with_tokens(tmp_path) as relay:
        for path in ("/crcr/admin/pause", "/crcr/logout"):
            assert (await left_alone(relay, path))[0]["status"] == 401


@pytest.mark.parametrize("host", ["evil.test", "evil.test/x?", "evil.test#", "["])
async def test_no_answer_leads_to_the_host_that_a_caller_names(tmp_path: Path, host: str) -> None:
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
            told = [answer.headers.get(name, "") for name in ("location", "link")]
            assert not [each for each in told if "evil" in each or "//" in each.replace("/crcr//", "")]
            assert f"://{host}" not in answer.text


async def test_an_address_with_a_slash_too_many_leads_to_the_page(tmp_path: Path) -> None:
    async with relay_with_tokens(tmp_path) as relay:
        for asked, meant in {
            "/crcr/": "/crcr",
            "/crcr/?range=7d": "/crcr?range=7d",
            "/crcr/org/one/?kind=push": "/crcr/org/one?kind=push",
            "/crcr/a%3Fb/": "/crcr/a%3Fb",
        }.items():
            answer = await relay.http.get(asked)
            assert (answer.status_code, answer.headers["location"]) == (308, meant)
        for path in ("/api/v1/summary/", "/healthz/", "/metrics/"):
            assert (await relay.http.get(path)).status_code == 404


async def test_the_code_of_a_badge_names_the_address_that_the_operator_set(tmp_path: Path) -> None:
    async with relay_with_tokens(tmp_path, CRCR_PUBLIC_URL="https://hud.example/") as relay:
        page = (await relay.http.get("/crcr/org/one")).text
        assert "https://hud.example/badge/org/one.svg" in page
        assert "relay.test/badge" not in page


@pytest.mark.parametrize("access", ["public", "token"])
async def test_probes_need_no_token_and_name_nobody_where_readers_do(tmp_path: Path, access: str) -> None:
    async with relay_with_tokens(tmp_path, access) as relay:
        ready = await relay.http.get("/readyz")
        assert ready.status_code == 200
        assert ("pytorch-like/core" in ready.text) is (access == "public")
    empty = tmp_path / "empty"
    empty.mkdir()
    async with running_relay(empty, "nonsense", CRCR_HUD_ACCESS=access, **TOKENS) as relay:
        refused = await relay.http.get("/readyz")
        assert refused.status_code == 503
        assert ("pytorch-like/core" in refused.text) is (access == "public")
