"""Checks that a relay is reachable from here: name, TLS, answer, clock."""

from collections.abc import Iterator
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime

from crcr.cli.http_client import (
    CertificateNotTrusted,
    HttpClient,
    HttpError,
    HttpResponse,
    TimedOut,
    is_private_connection,
)
from crcr.join.findings.finding import SetupFinding, ok, problem, warning

_SKEW_WARNING_S = 10
_SKEW_PROBLEM_S = 60


def check_reachable(http: HttpClient, now: datetime) -> tuple[SetupFinding, ...]:
    """`now` is read just before the request."""
    try:
        answer = http.get("/healthz")
    except HttpError as error:
        return (unreachable_finding(http.base_url, error),)
    return tuple(_answer_findings(http, answer, now))


def unreachable_finding(url: str, error: HttpError) -> SetupFinding:
    if isinstance(error, CertificateNotTrusted):
        return problem(
            "reachable",
            f"The certificate is not trusted: {error.detail}",
            "renew the certificate, or use the host name that it covers; for an authority of your own, set SSL_CERT_FILE",
        )
    if isinstance(error, TimedOut):
        return problem(
            "reachable", f"{url} did not answer in time.", "check for a firewall or a proxy in between"
        )
    return problem(
        "reachable",
        f"{url} cannot be reached: {error.detail}",
        "check the address, and that the relay is running",
    )


def _answer_findings(http: HttpClient, answer: HttpResponse, now: datetime) -> Iterator[SetupFinding]:
    version = parse_version(answer)
    if answer.is_redirect:
        target = answer.headers.get("location", "")[:200].removesuffix("/healthz")
        yield problem("reachable", f"It redirects to {target}", "use that address, if it is the relay's")
        return
    if version is None:
        yield problem(
            "reachable",
            f"The server there is not a relay ({answer.status_code}).",
            "use the relay's own address, without a path",
        )
        return
    if is_private_connection(http.base_url):
        yield ok("reachable", f"It answers: crcr {version}.")
    else:
        yield warning(
            "reachable",
            f"It answers: crcr {version}, without TLS.",
            "tokens would be sent unencrypted; use https://",
        )
    server_time = parse_date_header(answer)
    if server_time is not None:
        yield clock_finding(server_time, now, "the relay's", fatal=False)


def parse_version(answer: HttpResponse) -> str | None:
    """Return the release named by `/healthz`; None when it is not a relay's answer."""
    try:
        body = answer.json()
    except (ValueError, RecursionError):
        return None
    version = body.get("version") if answer.is_success and isinstance(body, dict) and body.get("ok") else None
    return version[:40] if isinstance(version, str) else None


def parse_date_header(answer: HttpResponse) -> datetime | None:
    try:
        return parsedate_to_datetime(answer.headers.get("date", "")).astimezone(UTC)
    except (ValueError, TypeError, OverflowError):
        return None


def clock_finding(server_time: datetime, now: datetime, other_clock: str, *, fatal: bool) -> SetupFinding:
    """Compare in whole seconds, less the one that a `Date` header leaves open."""
    offset_s = max(abs((server_time - now).total_seconds()) - 1, 0.0)
    text = f"Our clock and {other_clock} are {offset_s:.0f} s apart"
    if offset_s > _SKEW_PROBLEM_S and fatal:
        return problem("clock", f"{text}: tokens are refused.", "set this machine's clock with NTP")
    if offset_s > _SKEW_WARNING_S:
        return warning("clock", f"{text}.", "set both clocks with NTP; tokens are valid for minutes")
    return ok("clock", f"Our clock and {other_clock} agree.")
