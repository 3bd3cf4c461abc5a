"""Parts of the doctor: clock skew, webhooks in GitHub's log, and the summary of a list of findings."""

import sqlite3
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
import typer

from crcr.cli.doctor.downstream.relay_api import parse_relay_url
from crcr.cli.doctor.output import format_summary
from crcr.cli.doctor.reachability import check_reachable, clock_finding, parse_version
from crcr.cli.doctor.relay.examine import role_finding
from crcr.cli.doctor.relay.github_app import _log
from crcr.cli.doctor.relay.store import sqlite_findings
from crcr.cli.http_client import (
    CertificateNotTrusted,
    HttpClient,
    HttpError,
    HttpRequest,
    HttpResponse,
    TimedOut,
)
from crcr.decide.github.requests_and_answers import DeliveryLogPage, LoggedDelivery
from crcr.join.findings.finding import SetupFinding, State
from crcr.record.migrations.run import head
from crcr.settings import load_settings
from support.data.operator_database import relay_environment
from support.downstream.relay_answers import answer

NOW = datetime(2026, 8, 3, 12, tzinfo=UTC)


@pytest.mark.parametrize(
    ("off_s", "fatal", "state"),
    [
        (0, True, State.OK),
        (11, True, State.OK),  # a `Date` header is whole seconds
        (12, True, State.WARNING),
        (-61, True, State.WARNING),
        (62, True, State.PROBLEM),
        (-3600, True, State.PROBLEM),
        (3600, False, State.WARNING),
    ],
)
def test_the_severity_of_clock_skew_depends_on_its_size(off_s: int, fatal: bool, state: State) -> None:
    assert clock_finding(NOW + timedelta(seconds=off_s), NOW, "GitHub's", fatal=fatal).state is state


@pytest.mark.parametrize(
    ("revision", "state", "hint"),
    [
        (None, State.WARNING, "crcr migrate"),
        ("0001", State.WARNING, "crcr migrate"),
        (head(), State.OK, ""),
        ("9999", State.PROBLEM, "install that release again, restore a backup"),
    ],
)
def test_a_schema_of_a_newer_release_is_a_problem_and_an_older_one_is_a_warning(
    tmp_path: Path, revision: str | None, state: State, hint: str
) -> None:
    path = tmp_path / "crcr.db"
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("CREATE TABLE alembic_version (version_num TEXT)")
        if revision:
            connection.execute("INSERT INTO alembic_version VALUES (?)", (revision,))
    store = next(finding for finding in sqlite_findings(path) if finding.name == "store")
    assert (store.state, hint in (store.hint or "")) == (state, True)


def logged_delivery(guid: str, *, ok: bool, hours: float = 1) -> LoggedDelivery:
    at = NOW - timedelta(hours=hours)
    return LoggedDelivery(
        log_id=1,
        guid=guid,
        delivered_at=at,
        redelivery=False,
        ok=ok,
        event="push",
        action=None,
        repository_id=1,
    )


@pytest.mark.parametrize(
    ("entries", "state", "words"),
    [
        ((), State.UNKNOWN, "no webhook"),
        ((logged_delivery("a", ok=True), logged_delivery("b", ok=True)), State.OK, "last 2 webhooks"),
        ((logged_delivery("a", ok=True), logged_delivery("a", ok=False)), State.OK, "last 1 webhooks"),
        ((logged_delivery("a", ok=True), logged_delivery("b", ok=False)), State.WARNING, "1 of the last 2"),
        (
            (logged_delivery("a", ok=True), logged_delivery("b", ok=False, hours=30)),
            State.OK,
            "last 1 webhooks",
        ),
    ],
)
def test_webhooks_that_never_arrived_are_counted_once(
    entries: tuple[LoggedDelivery, ...], state: State, words: str
) -> None:
    finding = _log(DeliveryLogPage(entries, None), NOW)
    assert (finding.state, words in finding.text) == (state, True), finding.text


def summary_text(*states: State) -> str:
    return str(format_summary([SetupFinding("x", state, "y") for state in states]))


def test_the_summary_counts_problems_warnings_and_passed_checks() -> None:
    assert summary_text(State.OK, State.OK) == "No problems: 2 of 2 checks passed"
    assert (
        summary_text(State.PROBLEM, State.PROBLEM, State.WARNING, State.OK)
        == "2 problems, 1 warning; 1 of 4 checks passed"
    )
    assert summary_text(State.UNKNOWN, State.UNKNOWN) == "2 unknown; 0 of 2 checks passed"


@pytest.mark.parametrize(
    "url", ["ftp://x", "relay.example.org", "https://", "https://u:p@x", "https://x/?a=b"]
)
def test_an_invalid_relay_url_is_refused(url: str) -> None:
    with pytest.raises(typer.BadParameter):
        parse_relay_url(url)


def test_a_trailing_slash_of_the_relay_url_is_removed() -> None:
    assert parse_relay_url(" https://relay.example.org/ ") == "https://relay.example.org"


@pytest.mark.parametrize(
    "received",
    [
        answer(200, b"<html>"),
        answer(200, ["ok"]),
        answer(200, {"ok": True}),
        answer(500, {"ok": True, "version": "1"}),
        answer(200, {"ok": True, "version": 1}),
    ],
)
def test_another_service_is_not_mistaken_for_a_relay(received: HttpResponse) -> None:
    assert parse_version(received) is None


def check_relay(url: str, received: HttpResponse | HttpError) -> tuple[SetupFinding, ...]:
    def exchange(_: HttpRequest) -> HttpResponse:
        if isinstance(received, HttpError):
            raise received
        return received

    return check_reachable(HttpClient(url, timeout_s=1, exchange=exchange), NOW)


def test_http_is_a_warning_and_an_untrusted_certificate_or_a_timeout_is_a_problem() -> None:
    good = answer(200, {"ok": True, "version": "9"})
    assert [finding.state for finding in check_relay("http://relay.example.org", good)] == [State.WARNING]
    assert [finding.state for finding in check_relay("https://relay.example.org", good)] == [State.OK]
    untrusted = CertificateNotTrusted("[SSL: CERTIFICATE_VERIFY_FAILED] certificate has expired")
    [finding] = check_relay("https://relay.example.org", untrusted)
    assert (finding.state, "certificate" in finding.text) == (State.PROBLEM, True)
    [finding] = check_relay("https://relay.example.org", TimedOut("timed out"))
    assert finding.text == "https://relay.example.org did not answer in time."


def test_a_relay_that_redirects_is_a_problem_with_the_target() -> None:
    moved = answer(301, location="https://new.example.org/healthz")
    [finding] = check_relay("http://old.example.org", moved)
    assert (finding.state, finding.text) == (
        State.PROBLEM,
        "It redirects to https://new.example.org",
    )


@pytest.mark.parametrize(
    ("role", "clickhouse", "state", "words"),
    [
        ("all", None, State.OK, "a process of their own"),
        ("intake", None, State.OK, "pages answer 404"),
        ("hud", "clickhouse://127.0.0.1:8123/crcr", State.OK, "answer 503"),
        ("all", "chdb:///history", State.OK, "same process as the intake"),
        ("hud", "chdb:///history", State.PROBLEM, "does not start"),
    ],
)
def test_the_role_finding_explains_the_role_and_the_limits_of_chdb(
    tmp_path: Path, role: str, clickhouse: str | None, state: State, words: str
) -> None:
    environ = {**relay_environment(tmp_path), "CRCR_ROLE": role}
    if clickhouse:
        environ["CRCR_CLICKHOUSE_URL"] = clickhouse
    finding = role_finding(load_settings(config=None, environ=environ, cwd=tmp_path))
    assert (finding.name, finding.state, words in finding.text) == ("role", state, True), finding
    assert (finding.hint is not None) is (clickhouse == "chdb:///history")
