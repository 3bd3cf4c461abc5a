"""Ingest of another relay's results over HTTP: authentication, refusals with their field names, and storage of the rest."""

import copy
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from hashlib import sha256
from pathlib import Path
from typing import Any

import httpx
import pytest

from support.downstream.callbacks import client_from, refusal_code
from support.page_reader import HOSTILE
from support.running_relay import UPSTREAM, RunningRelay, running_relay

TOKEN = "ingest-token-0123456789"
ADDRESS = "/api/crcr/results"
BACKEND = "Org/Backend"
LISTED = f"L1:\n  - org/notified\nL2:\n  - {BACKEND}\n  - org/named: {{visibility: name}}\n"
HEADERS = {"x-hud-internal-bot": TOKEN}
SHA = "c" * 40

PULL: dict[str, Any] = {
    "action": "synchronize",
    "number": 12,
    "repository": {"full_name": UPSTREAM},
    "pull_request": {
        "number": 12,
        "title": "Fuse it",
        "user": {"login": "ada"},
        "head": {"sha": SHA, "ref": "fuse"},
    },
}


def envelope(status: str = "completed", **workflow: Any) -> dict[str, Any]:
    result = {"conclusion": "success"} if status == "completed" else {}
    run = {"status": status, "name": "CI", "run_id": "77", "run_attempt": "1", "job_name": "build", **result}
    payload = {"event_type": "pull_request", "delivery_id": "d-1", "payload": copy.deepcopy(PULL)}
    return {
        "trusted": {
            "verified_repo": BACKEND,
            "downstream_repo_level": "L2",
            "ci_metrics": {"queue_time": 3.5, "execution_time": 60 if result else None},
        },
        "untrusted": {"callback_payload": {**payload, "workflow": {**run, **workflow}}},
    }


@asynccontextmanager
async def ingesting_relay(folder: Path, allowlist: Any = LISTED, **more: Any) -> AsyncIterator[RunningRelay]:
    async with running_relay(folder, allowlist, CRCR_HUD_INGEST_TOKEN=TOKEN, **more) as relay:
        yield relay


async def send(relay: RunningRelay, body: Any, **headers: str) -> httpx.Response:
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    return await relay.http.post(ADDRESS, content=content, headers=headers or HEADERS)


def ingested_rows(relay: RunningRelay) -> list[dict[str, Any]]:
    return relay.rows("SELECT * FROM ingested ORDER BY delivery, workflow_name, job_name, check_run")


def ingested_sums(relay: RunningRelay, *names: str) -> list[tuple[Any, ...]]:
    return [
        tuple(row[name] for name in names)
        for row in relay.rows("SELECT * FROM hours WHERE kind = 'ingested'")
    ]


async def test_a_result_is_stored_counted_and_published_to_open_pages(tmp_path: Path) -> None:
    async with ingesting_relay(tmp_path) as relay:
        answer = await send(
            relay, envelope(url="https://ci.test/77", test_results={"passed": 4, "failed": 0})
        )
        [row] = ingested_rows(relay)
        sums = ingested_sums(
            relay, "upstream", "downstream", "success", "failure", "queue_sum_s", "execution_sum_s"
        )
        changes = relay.rows("SELECT * FROM changes WHERE kind = 'ingested'")

    assert answer.status_code == 200
    assert answer.json() == {"ok": True, "status": "completed", "repeat": False, "shown": True}
    payload_fields = {
        "number": 12,
        "head_sha": SHA,
        "title": "Fuse it",
        "author": "ada",
        "action": "synchronize",
    }
    assert {name: row[name] for name in payload_fields} == payload_fields
    assert (row["downstream"], row["name"], row["upstream"]) == ("org/backend", BACKEND, UPSTREAM)
    assert (row["check_run"], row["origin"], row["level"], row["tests_passed"]) == ("77-1", "127.0.0.1", 2, 4)
    assert sums == [(UPSTREAM, "org/backend", 1, 0, 3.5, 60.0)]
    assert [(change["downstream"], change["delivery"], change["number"]) for change in changes] == [
        ("org/backend", "d-1", 12)
    ]


async def test_a_repeated_result_is_answered_200_and_changes_nothing(tmp_path: Path) -> None:
    async with ingesting_relay(tmp_path) as relay:
        await send(relay, envelope())
        before = ingested_rows(relay), ingested_sums(relay, "success"), relay.rows("SELECT * FROM changes")
        relay.clock.advance(90)
        answer = await send(relay, envelope())
        after = ingested_rows(relay), ingested_sums(relay, "success"), relay.rows("SELECT * FROM changes")

    assert answer.json()["repeat"] is True
    assert [{**row, "updated_at": 0} for row in after[0]] == [{**row, "updated_at": 0} for row in before[0]]
    assert after[1:] == before[1:]


async def test_fault_30_the_ingest_accepts_no_bearer_token_no_cookie_and_no_wrong_token(
    tmp_path: Path,
) -> None:
    admin = "admin-token-0123456789abcdef"
    digest = "3b6f" + "0" * 60
    async with ingesting_relay(tmp_path, CRCR_ADMIN_TOKENS=f"ann=sha256:{digest}") as relay:
        answers = [
            await send(relay, envelope(), Authorization=f"Bearer {given}") for given in (admin, TOKEN, "")
        ]
        answers += [
            await send(relay, envelope(), Cookie=f"crcr_session={TOKEN}; x-hud-internal-bot={TOKEN}"),
            await send(relay, envelope(), **{"x-hud-internal-bot": ""}),
            await send(relay, envelope(), **{"x-hud-internal-bot": f"{TOKEN}x"}),
            await send(relay, envelope(), **{"x-hud-internal-bot": TOKEN[:-1]}),
            await relay.http.post(f"{ADDRESS}?x-hud-internal-bot={TOKEN}", json=envelope()),
            await relay.http.post(ADDRESS, content=b"", headers=[(b"x-hud-internal-bot", b"\xff\xe9")]),
        ]
        kept = ingested_rows(relay)

    assert {refusal_code(answer) for answer in answers} == {(401, "not_authentic")}
    assert kept == []


async def test_the_ingest_rejects_an_administrators_session_and_token(tmp_path: Path) -> None:
    admin = "admin-token-0123456789abcdef"
    setting = f"ann=sha256:{sha256(admin.encode()).hexdigest()}"
    async with ingesting_relay(tmp_path, CRCR_ADMIN_TOKENS=setting) as relay:
        signed_in = await relay.http.post(
            "/crcr/login", data={"token": admin}, headers={"Origin": "http://relay.test"}
        )
        by_session = await relay.http.post(ADDRESS, json=envelope())  # the client keeps its cookies
        by_token = await send(relay, envelope(), Authorization=f"Bearer {admin}")

    assert signed_in.cookies
    assert refusal_code(by_session) == refusal_code(by_token) == (401, "not_authentic")


async def test_without_a_configured_token_the_ingest_path_is_not_found(tmp_path: Path) -> None:
    async with running_relay(tmp_path, LISTED) as relay:
        assert refusal_code(await send(relay, envelope())) == (404, "not_found")
        assert refusal_code(await send(relay, envelope(), **{"x-hud-internal-bot": ""})) == (404, "not_found")


async def test_the_ingest_needs_no_reader_token_when_the_pages_need_one(tmp_path: Path) -> None:
    tokens = f"ann=sha256:{sha256(b'reader-token-0123456789').hexdigest()}"
    async with ingesting_relay(tmp_path, CRCR_HUD_ACCESS="token", CRCR_HUD_TOKENS=tokens) as relay:
        assert (await send(relay, envelope())).status_code == 200
        assert (await relay.http.get("/api/v1/summary")).status_code == 401


@pytest.mark.parametrize("method", ["GET", "PUT", "DELETE", "PATCH", "OPTIONS"])
async def test_other_methods_get_405_with_the_allowed_method(tmp_path: Path, method: str) -> None:
    async with ingesting_relay(tmp_path) as relay:
        answer = await relay.http.request(method, ADDRESS, headers=HEADERS)
    assert refusal_code(answer) == (405, "method_not_allowed")
    assert answer.headers["allow"] == "POST"


async def test_a_body_over_the_size_limit_is_refused_with_or_without_content_length(tmp_path: Path) -> None:
    async def endless() -> AsyncIterator[bytes]:
        for _ in range(40):
            yield b" " * 65_536

    async with ingesting_relay(tmp_path) as relay:
        announced = await send(relay, b" " * (2 * 1024 * 1024 + 1))
        streamed = await relay.http.post(ADDRESS, content=endless(), headers=HEADERS)
    assert refusal_code(announced) == refusal_code(streamed) == (413, "too_large")


async def test_a_body_just_under_the_size_limit_is_accepted(tmp_path: Path) -> None:
    body = envelope()
    body["untrusted"]["callback_payload"]["payload"]["padding"] = "x" * (2 * 1024 * 1024 - 2_000)
    async with ingesting_relay(tmp_path) as relay:
        assert (await send(relay, body)).status_code == 200
        assert ingested_rows(relay)[0]["title"] == "Fuse it"


def envelope_with(path: str, value: Any) -> dict[str, Any]:
    """An envelope with one field set, or removed when the value is `...`."""
    body = envelope()
    *parents, name = path.split(".")
    part = body
    for parent in parents:
        part = part[parent]
    if value is ...:
        del part[name]
    else:
        part[name] = value
    return body


_CALLBACK = "untrusted.callback_payload"


@pytest.mark.parametrize(
    ("path", "value", "named"),
    [
        ("trusted", ..., "trusted"),
        ("trusted", [], "trusted"),
        ("trusted.verified_repo", ..., "trusted.verified_repo"),
        ("trusted.verified_repo", None, "trusted.verified_repo"),
        ("trusted.verified_repo", "", "trusted.verified_repo"),
        ("trusted.verified_repo", 5, "trusted.verified_repo"),
        ("trusted.verified_repo", "no-slash", "trusted.verified_repo"),
        ("trusted.verified_repo", "a/b/../c", "trusted.verified_repo"),
        ("untrusted", None, "untrusted"),
        (_CALLBACK, "text", _CALLBACK),
        (f"{_CALLBACK}.delivery_id", "", "delivery_id"),
        (f"{_CALLBACK}.delivery_id", "x" * 101, "delivery_id"),
        (f"{_CALLBACK}.workflow", ..., "workflow"),
        (f"{_CALLBACK}.workflow.status", "queued", "workflow.status"),
        (f"{_CALLBACK}.workflow.name", None, "workflow.name"),
        (f"{_CALLBACK}.workflow.job_name", "x" * 257, "workflow.job_name"),
        (f"{_CALLBACK}.workflow.job_name", "nul\0", "workflow.job_name"),
        (f"{_CALLBACK}.workflow.run_id", -4, "workflow.run_id"),
        (f"{_CALLBACK}.workflow.run_attempt", 0, "workflow.run_attempt"),
        (f"{_CALLBACK}.workflow.run_attempt", 10**30, "workflow.run_attempt"),
        (f"{_CALLBACK}.workflow.conclusion", "fine", "workflow.conclusion"),
    ],
)
async def test_an_invalid_identifying_field_is_refused_with_its_name(
    tmp_path: Path, path: str, value: Any, named: str
) -> None:
    async with ingesting_relay(tmp_path) as relay:
        answer = await send(relay, envelope_with(path, value))
        kept = ingested_rows(relay)
    assert refusal_code(answer) == (400, "bad_report")
    assert named in answer.json()["error"]["detail"]
    assert kept == []


@pytest.mark.parametrize(
    "body",
    [b"", b"{", b"[]", b"null", b"\xff\xfe", b'"text"', b"[" * 100_000, b'{"trusted": {"ci_metrics": NaN}}'],
    ids=range(8),
)
async def test_a_body_that_is_not_an_envelope_is_a_bad_report(tmp_path: Path, body: bytes) -> None:
    async with ingesting_relay(tmp_path) as relay:
        assert refusal_code(await send(relay, body)) == (400, "bad_report")


@pytest.mark.parametrize(
    ("written", "kept"),
    [("null", None), ('""', None), ("-1", None), ("1e999", None), ("1e300", None), ("true", None), ('"9"', None),
     ("[1]", None), ("-0.0", 0.0), ("0", 0.0), ("12.5", 12.5)],
)  # fmt: skip
async def test_an_invalid_duration_is_stored_as_unknown(
    tmp_path: Path, written: str, kept: float | None
) -> None:
    body = json.dumps(envelope()).replace('"queue_time": 3.5', f'"queue_time": {written}')
    async with ingesting_relay(tmp_path) as relay:
        answer = await send(relay, body.encode())
        [row] = ingested_rows(relay)
        sums = ingested_sums(relay, "queue_sum_s", "execution_sum_s")
    assert answer.status_code == 200
    assert (row["queue_s"], row["execution_s"]) == (kept, 60.0)
    assert sums == [(kept or 0.0, 60.0)]


async def test_invalid_descriptive_fields_are_dropped(tmp_path: Path) -> None:
    body = envelope(
        url="javascript:alert(1)",
        artifact_url=5,
        started_at="tomorrow",
        completed_at="9999-12-31T23:59:59-23:59",
        test_results={"passed": -1, "failed": "x", "total": 1e40},
        failed_tests="none",
        environment=[],
        check_run_id={"a": 1},
    )
    body["trusted"] |= {"downstream_repo_level": "L9", "ci_metrics": []}
    body["untrusted"]["callback_payload"]["payload"] = {
        "action": 5,
        "number": -3,
        "ref": ["x"],
        "repository": "text",
        "sender": None,
        "pull_request": {"number": True, "title": {}, "user": [], "head": {"sha": "not a commit"}},
    }
    async with ingesting_relay(tmp_path) as relay:
        assert (await send(relay, body)).status_code == 200
        [row] = ingested_rows(relay)
    empty = ("url", "artifact_url", "started_at", "tests_passed", "tests_total", "failed_tests", "environment", "level",
             "queue_s", "action", "number", "ref", "title", "author", "head_sha")  # fmt: skip
    assert {row[name] for name in empty} == {None}
    assert row["check_run"] == "77-1"


async def test_a_result_with_a_lone_surrogate_in_its_payload_is_stored(tmp_path: Path) -> None:
    body = json.dumps(envelope()).replace('"Fuse it"', r'"half \ud800 pair"')
    async with ingesting_relay(tmp_path) as relay:
        assert (await send(relay, body.encode())).status_code == 200
        assert ingested_rows(relay)[0]["title"] == "half \ufffd pair"


@pytest.mark.parametrize("text", HOSTILE, ids=range(len(HOSTILE)))
async def test_hostile_text_in_any_field_is_stored_as_text_or_refused(tmp_path: Path, text: str) -> None:
    names = [
        "status",
        "name",
        "job_name",
        "run_id",
        "check_run_id",
        "url",
        "artifact_url",
        "started_at",
        "note",
    ]
    async with ingesting_relay(tmp_path) as relay:
        for name in names:
            answer = await send(relay, envelope(**{name: text}))
            assert answer.status_code in {200, 400}
        for name in ("event_type", "delivery_id"):
            answer = await send(relay, envelope_with(f"{_CALLBACK}.{name}", text))
            assert answer.status_code in {200, 400}
        text = text[:200_000]  # seven of them must fit into one body
        payload = {"action": text, "ref": text, "sender": {"login": text}, "repository": {"full_name": text}}
        pull = {"title": text, "user": {"login": text}, "head": {"sha": text}}
        answer = await send(relay, envelope_with(f"{_CALLBACK}.payload", {**payload, "pull_request": pull}))
        assert answer.status_code == 200
        for body in (
            envelope_with("trusted.verified_repo", text),
            envelope_with("trusted.downstream_repo_level", text),
        ):
            assert (await send(relay, body)).status_code in {200, 400}
        assert all(
            len(row["title"] or "") <= 256 and "\0" not in (row["title"] or "")
            for row in ingested_rows(relay)
        )
        assert all(row["url"] is None or row["url"].startswith("http") for row in ingested_rows(relay))


@pytest.mark.parametrize(
    ("repository", "why"),
    [
        ("org/stranger", "not on the allowlist"),
        ("org/named", "without showing"),
        ("org/notified", "without showing"),
    ],
)
async def test_a_result_of_a_backend_without_a_page_is_stored_with_a_hint_that_it_is_not_shown(
    tmp_path: Path, repository: str, why: str
) -> None:
    async with ingesting_relay(tmp_path) as relay:
        answer = await send(relay, envelope_with("trusted.verified_repo", repository))
        assert len(ingested_rows(relay)) == 1
    assert (answer.status_code, answer.json()["shown"]) == (200, False)
    assert why in answer.json()["hint"]


async def test_a_result_belongs_to_the_upstream_that_it_names_or_that_lists_its_backend(
    tmp_path: Path,
) -> None:
    lists = {"first/up": "L2:\n  - org/other\n", "second/up": f"L2:\n  - {BACKEND}\n"}
    named, unnamed, foreign = envelope(), envelope(), envelope()
    named["untrusted"]["callback_payload"] |= {
        "payload": {"repository": {"full_name": "First/Up"}},
        "delivery_id": "a",
    }
    unnamed["untrusted"]["callback_payload"] |= {"payload": None, "delivery_id": "b"}
    foreign["untrusted"]["callback_payload"]["delivery_id"] = "c"
    foreign["trusted"]["verified_repo"] = "org/nowhere"
    async with ingesting_relay(tmp_path, lists) as relay:
        for body in (named, unnamed, foreign):
            assert (await send(relay, body)).status_code == 200
        assert [row["upstream"] for row in ingested_rows(relay)] == ["first/up", "second/up", "first/up"]


def envelope_with_outcome(number: int, conclusion: str, *, disputed: bool = False) -> dict[str, Any]:
    """A result of a relay that numbers the outcomes of each job."""
    body = envelope(conclusion=conclusion)
    body["trusted"]["outcome"] = {"number": number, "disputed": disputed}
    return body


async def test_numbered_outcomes_apply_in_their_order_and_only_a_marked_one_is_a_dispute(
    tmp_path: Path,
) -> None:
    stories = {
        "late": [envelope_with_outcome(2, "timed_out"), envelope_with_outcome(3, "success")],
        "out of order": [envelope_with_outcome(3, "success"), envelope_with_outcome(2, "timed_out")],
        "disputed": [envelope_with_outcome(2, "success"), envelope_with_outcome(3, "failure", disputed=True)],
    }
    async with ingesting_relay(tmp_path) as relay:
        for name, sent in stories.items():
            for body in sent:
                body["untrusted"]["callback_payload"]["workflow"]["job_name"] = name
                assert (await send(relay, body)).status_code == 200
        shown = {
            row["job_name"]: (row["conclusion"], row["disputed_conclusion"]) for row in ingested_rows(relay)
        }

    assert shown == {
        "late": ("success", None),
        "out of order": ("success", None),
        "disputed": ("failure", "success"),
    }


async def test_an_ingested_result_decides_nothing_and_is_not_forwarded(tmp_path: Path) -> None:
    more = {
        "CRCR_HUD_FORWARD_URL": "https://far.test/api",
        "CRCR_HUD_FORWARD_TOKEN": "forward-token-0123456789",
    }
    tables = ("effects", "jobs", "runs", "gates", "checks", "repositories", "dispatches", "audit")
    listed = "L4:\n  - Org/Backend: oncall\n"
    async with ingesting_relay(tmp_path, listed, **more) as relay:
        before = {name: relay.rows(f"SELECT * FROM {name}") for name in tables}  # noqa: S608
        await send(relay, envelope("in_progress"))
        await send(relay, envelope(conclusion="failure"))
        assert {name: relay.rows(f"SELECT * FROM {name}") for name in tables} == before  # noqa: S608
        assert await relay.drain() == 0


async def test_fault_44_a_result_whose_start_arrives_later_is_stored_and_counted(tmp_path: Path) -> None:
    async with ingesting_relay(tmp_path) as relay:
        await send(relay, envelope(conclusion="failure", started_at="2025-12-31T23:10:00Z"))
        late = await send(relay, envelope("in_progress", url="https://ci.test/77"))
        [row] = ingested_rows(relay)
        sums = ingested_sums(relay, "failure", "success")
    assert late.json() == {"ok": True, "status": "in_progress", "repeat": False, "shown": True}
    assert (row["state"], row["conclusion"], row["url"]) == ("completed", "failure", "https://ci.test/77")
    assert sums == [(1, 0)]


async def test_the_recorded_origin_is_the_client_address_behind_a_trusted_proxy(tmp_path: Path) -> None:
    async with (
        ingesting_relay(tmp_path, CRCR_TRUSTED_PROXIES="192.0.2.1") as relay,
        client_from(relay.app) as http,
    ):
        await http.post(ADDRESS, json=envelope(), headers={**HEADERS, "x-forwarded-for": "198.51.100.7"})
        assert ingested_rows(relay)[0]["origin"] == "198.51.100.7"


async def test_the_upstreams_default_branch_is_learned_from_its_webhooks(tmp_path: Path) -> None:
    async with ingesting_relay(tmp_path) as relay:
        await relay.github.open_pr(UPSTREAM)
        [row] = relay.rows("SELECT default_branch FROM upstreams")
    assert row["default_branch"] == "main"


async def test_the_page_and_the_badge_show_the_same_success_rate_of_ingested_results(tmp_path: Path) -> None:
    async with ingesting_relay(tmp_path) as relay:
        for number, conclusion in enumerate(("success", "failure", "success")):
            await send(relay, envelope(job_name=f"job {number}", conclusion=conclusion))
        page = await relay.http.get("/crcr/org/backend?kind=ingested")
        badge = await relay.http.get("/badge/org/backend.svg?kind=ingested")
        pushes = await relay.http.get("/badge/org/backend.svg")
        hidden_badges = [await relay.http.get(f"/badge/org/{name}.svg") for name in ("named", "nobody")]

    assert "Fuse it" in page.text
    assert "66.6%" in page.text
    assert "failing · 66.6%" in badge.text
    assert "no results" in pushes.text
    assert [badge_answer.status_code for badge_answer in hidden_badges] == [404, 404]
    assert hidden_badges[0].content == hidden_badges[1].content


@pytest.mark.parametrize("field", ["run_attempt", "run_id", "check_run_id", "whatever", "test_results"])
async def test_a_number_out_of_range_is_refused_with_the_field_name(tmp_path: Path, field: str) -> None:
    async with ingesting_relay(tmp_path) as relay:
        value: Any = {"passed": "here"} if field == "test_results" else "here"
        body = json.dumps(envelope("completed", **{field: value})).replace('"here"', "1e400").encode()
        answer = await send(relay, body)
        assert answer.status_code == 400
        assert f"workflow.{field}: Number out of range" in answer.json()["error"]["detail"]
