"""Whether a relay can be reached from here: name, TLS, its answer, its clock."""

from collections.abc import Iterator
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime

import httpx

from crcr.cli.http_client import is_private_connection
from crcr.join.findings.finding import SetupFinding, ok, problem, warning

_SKEW_WARNING_S = 10
_SKEW_PROBLEM_S = 60


def check_reachable(http: httpx.Client, now: datetime) -> tuple[SetupFinding, ...]:
    """`now` is read just before it is asked."""
    try:
        answer = http.get("/healthz")
    except httpx.HTTPError as error:
        return (unreachable_finding(str(http.base_url), error),)
    return tuple(_answered(http, answer, now))


def unreachable_finding(url: str, error: httpx.HTTPError) -> SetupFinding:
    said = str(error)
    if "CERTIFICATE" in said.upper() or "SSL" in said.upper():
        return problem(
            "reachable",
            f"Its certificate is not trusted: {said[:200]}",
            "have the certificate renewed, or the right name used",
        )
    if isinstance(error, httpx.TimeoutException):
        return problem("reachable", f"{url} did not answer in time.", "is a firewall or a proxy between?")
    return problem(
        "reachable", f"{url} cannot be reached: {said[:200]}", "check the address, and that the relay runs"
    )


def _answered(http: httpx.Client, answer: httpx.Response, now: datetime) -> Iterator[SetupFinding]:
    version = parse_version(answer)
    if answer.is_redirect:
        there = answer.headers.get("location", "")[:200].removesuffix("/healthz")
        yield problem("reachable", f"It leads elsewhere: {there}", "give that address, if it is the relay's")
        return
    if version is None:
        yield problem(
            "reachable",
            f"Something else than a relay answers there ({answer.status_code}).",
            "give the relay's own address, without a path",
        )
        return
    if is_private_connection(str(http.base_url)):
        yield ok("reachable", f"It answers, as crcr {version}.")
    else:
        yield warning(
            "reachable",
            f"It answers, as crcr {version}, without TLS.",
            "tokens would travel readable: use https://",
        )
    said_at = parse_date_header(answer)
    if said_at is not None:
        yield clock_finding(said_at, now, "the relay's", fatal=False)


def parse_version(answer: httpx.Response) -> str | None:
    """The release that a `/healthz` names; None when that is none of ours."""
    try:
        found = answer.json()
    except (ValueError, RecursionError):
        return None
    told = found.get("version") if answer.is_success and isinstance(found, dict) and found.get("ok") else None
    return told[:40] if isinstance(told, str) else None


def parse_date_header(answer: httpx.Response) -> datetime | None:
    try:
        return parsedate_to_datetime(answer.headers.get("date", "")).astimezone(UTC)
    except (ValueError, TypeError, OverflowError):
        return None


def clock_finding(said_at: datetime, now: datetime, whose: str, *, fatal: bool) -> SetupFinding:
    """Whole seconds, less the one that a `Date` header leaves open."""
    off_s = max(abs((said_at - now).total_seconds()) - 1, 0.0)
    text = f"Our clock and {whose} are {off_s:.0f} s apart"
    if off_s > _SKEW_PROBLEM_S and fatal:
        return problem("clock", f"{text}: tokens are refused.", "set this machine's clock (NTP)")
    if off_s > _SKEW_WARNING_S:
        return warning("clock", f"{text}.", "one of them is wrong: set it (NTP); tokens live for minutes")
    return ok("clock", f"Our clock and {whose} agree.")
