#!/usr/bin/env python3
"""Reports a CI job to a CRCR relay: `report.py --status in_progress`, later `report.py --status completed`.

One file, Python 3.8 or newer, standard library only: it can be downloaded alone and run. It reads the variables of the CI
(GitHub Actions, Buildkite, GitLab CI, CircleCI; any other CI by flags or CRCR_* variables), requests an OIDC token from
that CI, sends the report, retries while that can help, and explains a refusal. It never follows redirects, and sends the
token only to a relay that the workflow pins (`--relays`): a dispatch only selects one of those. Without a pinned relay it
exits with 1; nothing else fails the build unless `--strict` is set.
"""

from __future__ import annotations

import argparse
import email.utils
import http.client
import ipaddress
import json
import math
import os
import random
import re
import ssl
import stat
import subprocess
import sys
import threading
import time
import unicodedata
import urllib.error
import urllib.parse
import urllib.request
from collections import deque
from dataclasses import dataclass, field, replace
from typing import Any, BinaryIO, Callable, Dict, Iterable, Iterator, Mapping, Sequence, TextIO
from xml.parsers import expat

Json = Dict[str, Any]

BUDGET_S = 300.0
REQUEST_S = 30.0
PROGRAM_S = 60.0
LONGEST_PAUSE_S = 30.0
TOKEN_STAYS_FRESH_S = 240.0
LONGEST_JOB_S = 6 * 24 * 3600.0
TIME_FORM = r"[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}(\.[0-9]{1,9})?(Z|[+-][0-9]{2}:?[0-9]{2})"
MAX_ANSWER_BYTES = 64 * 1024
MAX_EVENT_BYTES = 16 * 1024 * 1024
MAX_BODY_BYTES = 2 * 1024 * 1024 - 64 * 1024
MAX_NAME_CHARS = 256
MAX_TEXT_BYTES = 1024
MAX_FAILED_TESTS = 1_000
MAX_JUNIT_BYTES = 64 * 1024 * 1024
MAX_JUNIT_BYTES_IN_ALL = 256 * 1024 * 1024
MAX_JUNIT_FILES = 1_000
MAX_JUNIT_DEPTH = 100
MAX_XML_TOKEN_BYTES = 4 * 1024 * 1024
MAX_PATHS_VISITED = 200_000
JUNIT_S = 60.0

SELF_REPORTS = ("nightly", "periodic")
CONCLUSIONS = ("success", "failure", "cancelled", "skipped", "neutral", "timed_out", "action_required")
WITHOUT_LOG = ("success", "skipped", "neutral")
CONCLUSION_WORDS = {
    **dict.fromkeys(("passed", "pass", "ok", "succeeded", "successful", "0"), "success"),
    **dict.fromkeys(("failed", "fail", "error", "errored", "broken", "startup_failure"), "failure"),
    **dict.fromkeys(("canceled", "cancel", "canceling", "cancelling", "aborted"), "cancelled"),
    **dict.fromkeys(("timedout", "timeout", "timed out"), "timed_out"),
}
# The options and their meaning; shown in the help and in the README.
OPTIONS = dict(
    line.split(": ", 1)
    for line in """\
status: in_progress when the job starts, completed when it has ended; on GitHub also test, to request a test dispatch
conclusion: how the job ended, in the words or exit codes of any CI; only with completed
job-name: the job's name on the dashboard, the same at start and end; default: the CI's name for it
workflow-name: the workflow's name; default: the CI's
test-results: counts as a JSON object with passed, failed and skipped; not needed with JUnit files
failed-tests: failed tests as a JSON list of objects with name, file and message; not needed with JUnit files
log: a file with the job's log: if the job failed, its first error line and last lines are sent, masked. See the README first
artifact-url: where logs and other files of the job can be seen
event-type: the event type; default: the dispatch's. For results without a dispatch: nightly or periodic
delivery-id: the delivery id of the dispatch; default: of the dispatch that started the run
relays: the relays that may get a report, one per line: callback address, a space, audience. Required, and written out in the workflow
callback-url: selects one of the relays by its address; default: the dispatch's
audience: selects one of the relays by its audience; default: the dispatch's
upstream: for nightly and periodic, the upstream that was tested, as owner/name
head-sha: for nightly and periodic, the upstream commit that was tested, all 40 digits
started-at: when the job started, as 2026-08-03T09:00:00Z; default: the CI's. A nightly or periodic report always has it
run-id: the run's id; default: the CI's
run-attempt: the number of the run's attempt; default: the CI's
url: the run's page; default: the CI's
check-run-id: the id of the job's check run on GitHub
environment: facts such as versions as a JSON object, shown with the job
token-file: a file with the OIDC token, for any other CI
token-env: the name of a variable with the OIDC token, for any other CI
max-time: seconds in total, including all retries; default: 300
""".splitlines()
)
SWITCHES = {
    "junit": "JUnit XML files, ** for any number of folders; may be repeated; in the variable one per line",
    "strict": "exit with 1 when the report is not recorded",
    "dry-run": "print what would be sent, and where; request no token",
}


class Problem(Exception):
    """The report cannot be made or was not recorded; the text says why and what to do."""


class WrongUse(Problem):
    """The arguments are invalid."""


class NotPinned(Problem):
    """No pinned relay was selected: no token is requested, nothing is sent, and the job's step fails."""

    def __init__(self, text: str, lines: Sequence[str] = ()) -> None:
        super().__init__(text)
        self.lines = lines
        """The lines to add, for people to read; never text from outside."""


# ------------------------------------------------------------------------------------------------------ the job's log


def clean_text(text: object, limit: int = 600) -> str:
    """Return untrusted text on one line, without anything that a terminal or a CI's log could run as a command."""
    letters = [" " if unicodedata.category(c)[0] in "CZ" else c for c in str(text)[: 4 * limit]]
    line = " ".join("".join(letters).split()).replace("##[", "## [").replace("::", ": :")
    return line if len(line) <= limit else line[: limit - 1] + "…"


@dataclass
class JobOutput:
    """Writes lines to the job's log; on GitHub, notices and above become annotations."""

    out: TextIO
    annotate: bool = False
    strict: bool = False

    def info(self, text: str) -> None:
        self._line("", text)

    def notice(self, text: str) -> None:
        self._line("notice", text)

    def warn(self, text: str) -> None:
        self._line("warning", text)

    def problem(self, text: str) -> None:
        self._line("error" if self.strict else "warning", text)

    def refuse(self, text: str, lines: Sequence[str]) -> None:
        self._line("error", text)
        for line in lines:
            self._write(line)

    def mask(self, secret: str) -> None:
        """Make GitHub hide this text in the log from now on."""
        if self.annotate:
            self._write(f"::add-mask::{secret}")

    def _line(self, level: str, text: str) -> None:
        one_line = " ".join(text.split())
        if not level:
            self._write(f"crcr: {one_line}")
        elif self.annotate:
            self._write(f"::{level} title=CRCR relay::{one_line.replace('%', '%25')}")
        else:
            self._write(f"crcr: {level}: {one_line}")

    def _write(self, line: str) -> None:
        self.out.write(line + "\n")
        self.out.flush()


# ---------------------------------------------------------------------------------- network, programs and the machine


@dataclass(frozen=True)
class HttpAnswer:
    status: int
    """0 without an answer; `fault` then says why, and `final` whether a retry is pointless."""
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes = b""
    fault: str = ""
    final: bool = False

    def json(self) -> Json:
        try:
            value = json.loads(self.body.decode("utf-8", "replace"))
        except (ValueError, RecursionError):
            return {}
        return value if isinstance(value, dict) else {}


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """A redirect must not carry a token to another address."""

    def redirect_request(self, *_: Any, **__: Any) -> None:
        return None


def is_loopback(host: str) -> bool:
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def fetch(request: urllib.request.Request, timeout_s: float) -> HttpAnswer:
    """Send one request within a time-out for all of it: a DNS look-up has no time-out of its own."""
    answers: list[HttpAnswer] = []
    worker = threading.Thread(target=lambda: answers.append(_fetch(request, timeout_s)), daemon=True)
    worker.start()
    worker.join(timeout_s + 1)
    return answers[0] if answers else HttpAnswer(0, fault=f"no answer within {timeout_s:.0f} s")


def _fetch(request: urllib.request.Request, timeout_s: float) -> HttpAnswer:
    https = urllib.request.HTTPSHandler(context=ssl.create_default_context())
    direct = [urllib.request.ProxyHandler({})] if is_loopback(_host_of_url(request.full_url)) else []
    opener = urllib.request.build_opener(_NoRedirects(), https, *direct)
    try:
        with opener.open(request, timeout=timeout_s) as response:
            return _read(response.status, response)
    except urllib.error.HTTPError as refused:
        with refused:
            return _read(refused.code, refused)
    except (OSError, http.client.HTTPException, ValueError) as fault:
        reason = getattr(fault, "reason", None) or fault
        untrusted = isinstance(reason, ssl.SSLCertVerificationError)
        return HttpAnswer(0, fault=clean_text(f"{type(reason).__name__}: {reason}", 200), final=untrusted)


def _read(status: int, response: Any) -> HttpAnswer:
    headers = {name.lower(): value for name, value in response.headers.items()}
    try:
        body = response.read(MAX_ANSWER_BYTES)
        promised = min(int(headers.get("content-length", "0")), MAX_ANSWER_BYTES)
    except (OSError, http.client.HTTPException, ValueError):
        return HttpAnswer(0, fault="the answer broke off")
    # A read with a size does not fail when less arrives than promised.
    return HttpAnswer(status, headers, body) if len(body) >= promised else HttpAnswer(0, fault="the answer broke off")


def _host_of_url(address: str) -> str:
    try:
        return urllib.parse.urlsplit(address).hostname or ""
    except ValueError:
        return ""


def run_program(arguments: Sequence[str], timeout_s: float) -> str:
    """Return the output of a program of the CI; raise `Problem` when it fails."""
    try:
        finished = subprocess.run(  # noqa: S603  fixed arguments, without a shell
            list(arguments), stdin=subprocess.DEVNULL, capture_output=True, timeout=timeout_s, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as fault:
        raise Problem(f"`{arguments[0]}` could not be run: {type(fault).__name__}") from None
    if finished.returncode != 0:
        why = clean_text(finished.stderr.decode("utf-8", "replace"), 200)
        raise Problem(f"`{' '.join(arguments[:3])}` ended with {finished.returncode}: {why}")
    return finished.stdout.decode("utf-8", "replace")


@dataclass(frozen=True)
class Machine:
    """Clock, random numbers, network and programs; tests replace them."""

    clock: Callable[[], float] = time.monotonic
    now: Callable[[], float] = time.time
    sleep: Callable[[float], None] = time.sleep
    chance: Callable[[], float] = random.random
    fetch: Callable[[urllib.request.Request, float], HttpAnswer] = fetch
    run: Callable[[Sequence[str], float], str] = run_program


# ---------------------------------------------------------------------------------------------------------- options


@dataclass(frozen=True)
class ReporterOptions:
    """The flags, and CRCR_* variables where a flag is absent; an empty text counts as absent."""

    values: Mapping[str, str]
    junit: Sequence[str]
    strict: bool
    dry_run: bool
    unknown: Sequence[str]
    secrets: Iterable[str] = ()
    """Values of the environment that are masked in a log."""

    def get(self, name: str, *otherwise: str) -> str:
        return next((text for text in (self.values.get(name, ""), *otherwise) if text), "")


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> Any:
        raise WrongUse(f"{message}. See `report.py --help`.")


def parse(argv: Sequence[str], env: Mapping[str, str]) -> ReporterOptions:
    parser = _Parser(
        prog="report.py",
        allow_abbrev=False,
        description="Report a CI job to a CRCR relay. Every flag can also be given as a variable: --job-name is "
        "CRCR_JOB_NAME. Missing values come from the CI and from the dispatch that started the run.",
    )
    for name, meaning in OPTIONS.items():
        also = ["--failed-tests-detail"] if name == "failed-tests" else []
        parser.add_argument(f"--{name}", *also, default="", metavar="TEXT", help=meaning)
    parser.add_argument("--junit", action="append", metavar="GLOB", default=[], help=SWITCHES["junit"])
    for name in ("strict", "dry-run"):
        parser.add_argument(f"--{name}", action="store_true", help=SWITCHES[name])
    flags, unknown = parser.parse_known_args(list(argv))
    texts = {name: getattr(flags, name.replace("-", "_")) or env.get(variable_name(name), "") for name in OPTIONS}
    junit = flags.junit or env.get("CRCR_JUNIT", "").splitlines()
    return ReporterOptions(
        values={name: text.strip() for name, text in texts.items()},
        junit=[pattern.strip() for pattern in junit if pattern.strip()],
        strict=flags.strict or is_true(env.get("CRCR_STRICT", "")),
        dry_run=flags.dry_run or is_true(env.get("CRCR_DRY_RUN", "")),
        unknown=unknown,
        secrets=secret_values(env),
    )


def variable_name(name: str) -> str:
    return "CRCR_" + name.upper().replace("-", "_")


def is_true(text: str) -> bool:
    return text.strip().lower() in ("1", "true", "yes", "on")


def parse_max_time(text: str, output: JobOutput) -> float:
    try:
        number = float(text or BUDGET_S)
    except ValueError:
        number = math.nan
    if number >= 0 and math.isfinite(number):
        return number
    output.warn(f"--max-time {clean_text(text, 40)!r} is not a number of seconds; {BUDGET_S:.0f} are used")
    return BUDGET_S


# ------------------------------------------------------------------------------------------------- facts about the CI


@dataclass(frozen=True)
class CiJob:
    name: str = ""
    run_id: str = ""
    run_attempt: str = ""
    workflow: str = ""
    job: str = ""
    url: str = ""
    conclusion: str = ""
    started_at: str = ""
    dispatched: bool = False
    event_file: str = ""
    """GitHub writes it when the job starts."""


def detect_ci(env: Mapping[str, str]) -> CiJob:
    """Return the CI that runs this job. Variables of several may be set, by hand or by one CI inside another: the one that
    provides a token, then the one that has a run, wins.
    """

    def read_variable(*names: str) -> str:
        return next((env[name].strip() for name in names if env.get(name, "").strip()), "")

    candidates = [
        (read_variable(*gives) != "", read(read_variable))
        for flag, gives, read in KNOWN_CIS
        if is_true(read_variable(flag))
    ]
    return max(candidates, key=lambda candidate: (candidate[0], candidate[1].run_id != ""), default=(False, CiJob()))[1]


def _read_github(read: Callable[..., str]) -> CiJob:
    run, attempt = read("GITHUB_RUN_ID"), read("GITHUB_RUN_ATTEMPT")
    page = f"{read('GITHUB_SERVER_URL')}/{read('GITHUB_REPOSITORY')}/actions/runs/{run}"
    page += f"/attempts/{attempt}" if attempt not in ("", "1") else ""
    by_dispatch = read("GITHUB_EVENT_NAME") == "repository_dispatch"
    workflow, job = read("GITHUB_WORKFLOW"), read("GITHUB_JOB")
    event_file = read("GITHUB_EVENT_PATH")
    return CiJob("GitHub Actions", run, attempt, workflow, job, page, dispatched=by_dispatch, event_file=event_file)


def _read_buildkite(read: Callable[..., str]) -> CiJob:
    run, attempt = read("BUILDKITE_BUILD_ID"), _increment(read("BUILDKITE_RETRY_COUNT"))
    job = read("BUILDKITE_LABEL", "BUILDKITE_STEP_KEY")
    job = _name_parallel_job(job, read("BUILDKITE_PARALLEL_JOB"), read("BUILDKITE_PARALLEL_JOB_COUNT"))
    page = "#".join(filter(None, (read("BUILDKITE_BUILD_URL"), read("BUILDKITE_JOB_ID"))))
    exit_status = read("BUILDKITE_COMMAND_EXIT_STATUS")
    return CiJob("Buildkite", run, attempt, read("BUILDKITE_PIPELINE_SLUG"), job, page, exit_status)


def _read_gitlab(read: Callable[..., str]) -> CiJob:
    # Only `after_script` has the job's result; elsewhere its status is "running".
    status = read("CI_JOB_STATUS").replace("running", "")
    workflow, page = read("CI_PROJECT_PATH", "CI_PIPELINE_NAME"), read("CI_JOB_URL", "CI_PIPELINE_URL")
    run, job = read("CI_PIPELINE_ID"), read("CI_JOB_NAME")
    return CiJob("GitLab CI", run, "", workflow, job, page, status, read("CI_JOB_STARTED_AT"))


def _read_circleci(read: Callable[..., str]) -> CiJob:
    run, workflow = read("CIRCLE_WORKFLOW_ID"), read("CIRCLE_PROJECT_REPONAME")
    job = _name_parallel_job(read("CIRCLE_JOB"), read("CIRCLE_NODE_INDEX"), read("CIRCLE_NODE_TOTAL"))
    return CiJob("CircleCI", run, "", workflow, job, read("CIRCLE_BUILD_URL"))


KNOWN_CIS: Sequence[tuple[str, Sequence[str], Callable[[Callable[..., str]], CiJob]]] = (
    ("GITHUB_ACTIONS", ("ACTIONS_ID_TOKEN_REQUEST_URL",), _read_github),
    ("BUILDKITE", ("BUILDKITE_AGENT_ACCESS_TOKEN",), _read_buildkite),
    ("GITLAB_CI", ("CI_JOB_TOKEN", "CRCR_ID_TOKEN"), _read_gitlab),
    ("CIRCLECI", ("CIRCLE_OIDC_TOKEN_V2", "CIRCLE_OIDC_TOKEN"), _read_circleci),
)
"""For each CI: the variable that identifies it, the variables that only its jobs have, and its reader."""


def _increment(count: str) -> str:
    return str(int(count) + 1) if re.fullmatch(r"[0-9]{1,6}", count) else ""


def _name_parallel_job(job: str, index: str, count: str) -> str:
    """Parallel copies of a job share a name; add the number, so that each is reported separately."""
    return f"{job} ({_increment(index)}/{count})" if job and _increment(index) and count not in ("", "1") else job


def read_dispatch(env: Mapping[str, str], output: JobOutput) -> dict[str, str]:
    """Return the fields of the dispatch from GitHub's event file: of its payload, or inputs of a second workflow."""
    path = env.get("GITHUB_EVENT_PATH", "")
    if not path:
        return {}
    try:
        with open(path, "rb") as file:
            event = json.loads(file.read(MAX_EVENT_BYTES).decode("utf-8", "replace"))
    except (OSError, ValueError, RecursionError) as fault:
        output.warn(f"the event file of this run cannot be read ({type(fault).__name__}); continuing without it")
        return {}
    document = _object(event)
    payload, inputs = _object(document.get("client_payload")), _object(document.get("inputs"))
    relay = _object(payload.get("relay"))
    names = ("delivery_id", "event_type", "callback_url", "audience", "upstream", "head_sha")
    from_inputs = {name: inputs.get(name) or inputs.get(name.replace("_", "-")) for name in names}
    from_payload = {
        "delivery_id": payload.get("delivery_id"),
        "event_type": payload.get("event_type") or (document.get("action") if payload else None),
        **{name: relay.get(name) for name in ("callback_url", "audience", "upstream")},
    }
    fields = {**from_inputs, **{name: value for name, value in from_payload.items() if value}}
    return {name: value.strip() for name, value in fields.items() if isinstance(value, str) and value.strip()}


def _object(value: object) -> Json:
    return value if isinstance(value, dict) else {}


# ----------------------------------------------------------------------------------------------------------- retries


def is_retryable(answer: HttpAnswer) -> bool:
    return not answer.final and (answer.status in (0, 408, 425, 429) or answer.status >= 500)


def read_retry_after(answer: HttpAnswer, now: float) -> float:
    """Return the seconds of `Retry-After`; a date is compared with the server's own `Date` if it sends one."""
    text = answer.headers.get("retry-after", "").strip()
    if re.fullmatch(r"[0-9]{1,9}", text):
        return float(text)
    until, since = _parse_http_date(text), _parse_http_date(answer.headers.get("date", ""))
    return max(0.0, until - (now if since is None else since)) if until is not None else 0.0


def _parse_http_date(text: str) -> float | None:
    try:
        return email.utils.parsedate_to_datetime(text).timestamp()
    except (TypeError, ValueError, IndexError, OverflowError):
        return None


@dataclass
class RetryingClient:
    """Sends requests with retries: exponential pauses with full jitter, `Retry-After`, one time budget for all."""

    machine: Machine
    output: JobOutput
    budget_s: float = BUDGET_S

    def __post_init__(self) -> None:
        self._ends_at = self.machine.clock() + self.budget_s

    def send(self, service: str, make_request: Callable[[], urllib.request.Request]) -> HttpAnswer:
        tries = 0
        while True:
            request, left_s = make_request(), self._ends_at - self.machine.clock()
            answer = self.machine.fetch(request, min(REQUEST_S, max(5.0, left_s)))
            tries += 1
            wait = self._pause(tries, read_retry_after(answer, self.machine.now()))
            if not is_retryable(answer) or wait is None:
                return answer
            why = (
                answer.fault or f"it answered {answer.status} {clean_text(_error(answer).get('code', ''), 40)}".strip()
            )
            self.output.info(f"{service} is not available ({why}); retrying in {wait:.1f} s")
            self.machine.sleep(wait)

    def _pause(self, tries: int, retry_after_s: float) -> float | None:
        """Return the seconds until the next try; None when the time is up. The last try is at the end of the budget."""
        left_s = self._ends_at - self.machine.clock()
        jitter = self.machine.chance() * min(LONGEST_PAUSE_S, 2.0 ** min(tries, 10))
        return min(left_s, max(0.1, retry_after_s + jitter)) if left_s > 0 else None


def _error(answer: HttpAnswer) -> Json:
    return _object(answer.json().get("error"))


def find_address_problem(address: str) -> str | None:
    """Return why a token must not be sent to this address; None if it may."""
    try:
        parts = urllib.parse.urlsplit(address)
        host, _ = parts.hostname or "", parts.port
    except ValueError:
        return "it is not an address"
    if not host or parts.username is not None or not address.isascii() or re.search(r"[\x00-\x20\x7f]", address):
        return "it is not a plain address"
    if parts.scheme == "https" or (parts.scheme == "http" and is_loopback(host)):
        return None
    return "only https:// is used, because the report carries a token"


# ------------------------------------------------------------------------------------------------------ pinned relays

PIN_EXAMPLE = '"https://RELAY/github/callback AUDIENCE"'
# The lines to add, for each CI. At GitLab a trigger's variables override those of the file; nothing overrides a flag.
PIN_LINES = {
    "GitHub Actions": ("At the top level of the workflow:", "env:", f"  CRCR_RELAYS: {PIN_EXAMPLE}"),
    "Buildkite": ("In each step that reports:", "    env:", f"      CRCR_RELAYS: {PIN_EXAMPLE}"),
    "GitLab CI": (
        "In each job that reports:",
        "  script:",
        f"    - python3 .crcr/report.py --relays {PIN_EXAMPLE}",
    ),
    "CircleCI": ("In the job that reports:", "    environment:", f"      CRCR_RELAYS: {PIN_EXAMPLE}"),
}
ANYWHERE_LINES = ("Before the reporter runs:", f"CRCR_RELAYS={PIN_EXAMPLE}", "export CRCR_RELAYS")
WHERE_TO_FIND = (
    "RELAY and AUDIENCE are what the relay's page /crcr/onboarding and `crcr init` write into their files.",
    "Do not take them from a dispatch: everyone who may write to the repository can send one.",
)


@dataclass(frozen=True)
class PinnedRelay:
    """A relay that the workflow pins: the address for reports, and the audience for tokens."""

    url: str
    audience: str

    def __str__(self) -> str:
        return f"{clean_text(self.url, 200)} with the audience {clean_text(self.audience, 200)}"


def parse_relays(text: str) -> list[PinnedRelay]:
    """Parse the relays, one per line: an address, a space, an audience."""
    pins = []
    for line in filter(None, map(str.strip, text.splitlines())):
        address, *rest = line.split(None, 1)
        url, audience = callback_address(address), "".join(rest)
        wrong = find_address_problem(url) or ("" if audience else "its audience is missing")
        if wrong:
            raise NotPinned(
                f"the line {clean_text(line, 300)!r} of relays (CRCR_RELAYS) pins nothing: {wrong}. "
                f"Write {PIN_EXAMPLE}, one relay per line."
            )
        pins.append(PinnedRelay(url, audience))
    return list(dict.fromkeys(pins))


def choose_relay(options: ReporterOptions, ci: CiJob, dispatch: Mapping[str, str]) -> PinnedRelay:
    """Return the selected relay. Dispatch, inputs and flags only select one of the pinned relays and add none: everyone
    who may write to the repository can send a dispatch, and a token is valid wherever its audience is accepted.
    """
    pins = parse_relays(options.get("relays"))
    if not pins:
        raise NotPinned(
            "no relay is pinned in this workflow, so no token was requested and nothing was sent. "
            "Add the two lines below, with your relay's address and audience.",
            (*PIN_LINES.get(ci.name, ANYWHERE_LINES), *WHERE_TO_FIND),
        )
    url = callback_address(options.get("callback-url", dispatch.get("callback_url", "")))
    audience = options.get("audience", dispatch.get("audience", ""))
    matching = [pin for pin in pins if url in ("", pin.url) and audience in ("", pin.audience)]
    if len(matching) == 1:
        return matching[0]
    requested = f"{clean_text(url, 200) or '(no address)'} with the audience {clean_text(audience, 200) or '(none)'}"
    pinned = f"Pinned in relays (CRCR_RELAYS): {'; '.join(map(str, pins))}."
    if matching:
        raise NotPinned(
            f"several relays are pinned, and the dispatch names {requested}, which matches more than one of them: nothing "
            f"was sent. {pinned} Pass callback-url and audience of one of them."
        )
    raise NotPinned(
        f"the dispatch asks for a report to {requested}, which this workflow does not pin: no token was requested and "
        f"nothing was sent. {pinned} If your relay has moved, pin what its operator tells you; if not, somebody who "
        "may send dispatches here wants a token of yours."
    )


def callback_address(address: str) -> str:
    """Normalize an address: remove one slash at the end, and complete a relay's bare address. Nothing else is changed:
    upper case, ports and paths are compared as written.
    """
    trimmed = address[:-1] if address.endswith("/") else address
    return trimmed + "/github/callback" if re.fullmatch(r"https?://[^/?#]+", trimmed) else trimmed


# ------------------------------------------------------------------------------------------------------------ tokens


def is_token(text: str) -> bool:
    return re.fullmatch(r"[A-Za-z0-9_=-]+(\.[A-Za-z0-9_=-]+){2}", text) is not None


@dataclass
class JobToken:
    """The job's OIDC token, requested again before it expires."""

    source: Callable[[], str]
    machine: Machine
    output: JobOutput

    def __post_init__(self) -> None:
        self._token = ""
        self._since = 0.0

    def current(self) -> str:
        if not self._token:
            self._request()
        elif self.machine.clock() - self._since > TOKEN_STAYS_FRESH_S:
            try:
                self._request()
            except Problem as problem:
                self.output.info(f"no new token ({problem}); the old one is used")
        return self._token

    def renew(self) -> bool:
        """Request a new token; return whether it differs: some CIs issue one token for the whole job."""
        before = self._token
        try:
            self._request()
        except Problem as problem:
            self.output.info(f"no new token ({problem})")
        return self._token != before

    def _request(self) -> None:
        token = self.source().strip()
        if not is_token(token):
            raise Problem("the CI's token is not an OIDC token (three parts with dots between them)")
        self._token, self._since = token, self.machine.clock()


def choose_token_source(
    options: ReporterOptions, ci: CiJob, env: Mapping[str, str], relay: PinnedRelay, client: RetryingClient
) -> Callable[[], str]:
    """Return the function that requests a token for the relay from this CI."""
    if options.get("token-file"):
        return lambda: _read_token_file(options.get("token-file"))
    variable = options.get("token-env", "CRCR_ID_TOKEN" if env.get("CRCR_ID_TOKEN") else "")
    if variable or ci.name not in ("GitHub Actions", "Buildkite", "CircleCI"):
        return lambda: _read_token_variable(variable, ci, env)
    if ci.name == "GitHub Actions":
        return lambda: _request_github_token(env, relay, client)
    run = client.machine.run
    if ci.name == "Buildkite":
        return lambda: _request_buildkite_token(relay, run)
    claims = json.dumps({"aud": relay.audience})
    return lambda: run(["circleci", "run", "oidc", "get", "--claims", claims], PROGRAM_S)


def _read_token_file(path: str) -> str:
    try:
        with open(path, encoding="utf-8") as file:
            return file.read(MAX_ANSWER_BYTES)
    except (OSError, ValueError) as fault:
        raise Problem(f"the token file cannot be read: {type(fault).__name__}") from None


def _read_token_variable(name: str, ci: CiJob, env: Mapping[str, str]) -> str:
    if name and env.get(name):
        return env[name]
    if name:
        raise Problem(f"the variable {clean_text(name, 100)}, which should hold the token, is empty")
    if ci.name == "GitLab CI":
        raise Problem(
            "there is no token: declare `id_tokens: {CRCR_ID_TOKEN: {aud: <the relay's audience>}}` in the job"
        )
    raise Problem("this CI is not known, so its token must be given: pass --token-file or --token-env")


def _request_github_token(env: Mapping[str, str], relay: PinnedRelay, client: RetryingClient) -> str:
    address, key = env.get("ACTIONS_ID_TOKEN_REQUEST_URL", ""), env.get("ACTIONS_ID_TOKEN_REQUEST_TOKEN", "")
    if not address or not key:
        raise Problem("this job may not ask for a token: give it `permissions: id-token: write`")
    if find_address_problem(address):
        raise Problem(f"the token's address is not used: {find_address_problem(address)}")
    url = f"{address}{'&' if '?' in address else '?'}audience={urllib.parse.quote(relay.audience, safe='')}"
    headers = {"Authorization": f"Bearer {key}", "Accept": "application/json", "User-Agent": "crcr-reporter"}
    answer = client.send("GitHub's token service", lambda: urllib.request.Request(url, headers=headers))
    token = answer.json().get("value")
    if answer.status == 200 and isinstance(token, str):
        # Only GitHub reads this line as a command: in the log of another CI it would print the token.
        client.output.mask(token.strip()) if is_token(token.strip()) else None
        return token
    raise Problem(
        f"GitHub gave no token ({answer.fault or answer.status}); has the job `permissions: id-token: write`?"
    )


def _request_buildkite_token(relay: PinnedRelay, run: Callable[[Sequence[str], float], str]) -> str:
    arguments = ["buildkite-agent", "oidc", "request-token", "--audience", relay.audience]
    try:
        return run([*arguments, "--claim", "organization_id,pipeline_id"], PROGRAM_S)
    except Problem:  # an older agent cannot add claims; a registration by slugs accepts its token
        return run(arguments, PROGRAM_S)


# ------------------------------------------------------------------------------------------------------- JUnit files


@dataclass
class JunitCounts:
    passed: int = 0
    failed: int = 0
    skipped: int = 0
    failures: list[dict[str, str]] = field(default_factory=list)

    def add(self, other: JunitCounts) -> None:
        self.passed += other.passed
        self.failed += other.failed
        self.skipped += other.skipped
        self.failures += other.failures[: MAX_FAILED_TESTS - len(self.failures)]

    def counts(self) -> dict[str, int]:
        total = self.passed + self.failed + self.skipped
        return {"passed": self.passed, "failed": self.failed, "skipped": self.skipped, "total": total}


class Unreadable(Exception):
    """The file is not JUnit XML; the text says why."""


def cut_text(text: str) -> str:
    """Return at most 1 KiB of the text, cut between characters."""
    return text[:MAX_TEXT_BYTES].encode("utf-8", "replace")[:MAX_TEXT_BYTES].decode("utf-8", "ignore")


def describe_failed_test(fields: Json) -> dict[str, str]:
    """Return name, file and message, as far as they are known."""
    texts = {name: value for name, value in fields.items() if isinstance(value, str)}
    name, group = texts.get("name", ""), texts.get("classname", "")
    texts["name"] = (name if not group or name.startswith(group) else f"{group}.{name}") or "(no name)"
    texts["message"] = texts.get("message") or texts.get("stacktrace", "")
    return {key: cut_text(texts[key]) for key in ("name", "file", "message") if texts.get(key)}


class JunitReader:
    """Parses one file as a stream. Test cases are counted one by one: the totals in attributes are often wrong."""

    def __init__(self) -> None:
        self.tally = JunitCounts()
        self._names: list[str] = []
        self._files: list[str] = []
        self._case: Json | None = None
        self._text = ""
        self._fed = 0
        self._parser = expat.ParserCreate()
        self._parser.buffer_text = True
        self._parser.StartElementHandler = self._start
        self._parser.EndElementHandler = self._end
        self._parser.CharacterDataHandler = self._data
        # JUnit needs no document type, and entities can expand a small file or include another one.
        self._parser.StartDoctypeDeclHandler = self._refuse
        self._parser.EntityDeclHandler = self._refuse

    def feed(self, data: bytes, *, last: bool = False) -> None:
        try:
            self._parser.Parse(data, last)
        except (expat.ExpatError, ValueError, LookupError) as fault:
            raise Unreadable(f"it is not well-formed XML ({clean_text(fault, 100)})") from None
        self._fed += len(data)
        if self._fed - max(self._parser.CurrentByteIndex, 0) > MAX_XML_TOKEN_BYTES:
            raise Unreadable("a single piece of it is too large")

    def _refuse(self, *_: Any) -> None:
        raise Unreadable("it declares a document type or entities")

    def _start(self, qualified: str, attributes: dict[str, str]) -> None:
        name = qualified.rpartition(":")[2]
        self._names.append(name)
        if len(self._names) > MAX_JUNIT_DEPTH:
            raise Unreadable("it is nested too deeply")
        if name == "testsuite":
            self._files.append(attributes.get("file", ""))
        elif name == "testcase":
            left_out = attributes.get("status") in ("notrun", "disabled", "skipped")
            left_out = left_out or attributes.get("result") in ("skipped", "suppressed")
            self._case = {"attributes": attributes, "failed": False, "skipped": left_out, "message": ""}
        elif self._case is not None and name in ("failure", "error"):
            self._case["failed"] = True
            self._case["message"] = self._case["message"] or attributes.get("message", "").strip()
            self._text = ""
        elif self._case is not None and name == "skipped":
            self._case["skipped"] = True
        # Reruns and flaky failures are children with other names: the final result of the case counts.

    def _data(self, text: str) -> None:
        if self._case is not None and self._names[-1] in ("failure", "error") and len(self._text) < MAX_TEXT_BYTES:
            self._text += text[:MAX_TEXT_BYTES]

    def _end(self, _: str) -> None:
        name = self._names.pop()
        if name == "testsuite":
            self._files.pop()
        elif name == "testcase" and self._case is not None:
            self._count(self._case)
            self._case = None
        elif name in ("failure", "error") and self._case is not None:
            self._case["message"] = self._case["message"] or self._text.strip()

    def _count(self, case: Json) -> None:
        if case["failed"]:
            self.tally.failed += 1
            if len(self.tally.failures) < MAX_FAILED_TESTS:
                self.tally.failures.append(self._failure(case))
        elif case["skipped"]:
            self.tally.skipped += 1
        else:
            self.tally.passed += 1

    def _failure(self, case: Json) -> dict[str, str]:
        file = case["attributes"].get("file") or next(filter(None, reversed(self._files)), "")
        return describe_failed_test({**case["attributes"], "file": file, "message": case["message"]})


def read_junit(
    patterns: Sequence[str], output: JobOutput, machine: Machine, bytes_left: int = MAX_JUNIT_BYTES_IN_ALL
) -> JunitCounts | None:
    """Return the counts of all matching files; None when none could be read. Broken files are skipped with a warning."""
    total, read, left_out, until = JunitCounts(), 0, 0, machine.clock() + JUNIT_S
    for number, path in enumerate(find_files(patterns, output)):
        if number == MAX_JUNIT_FILES or machine.clock() > until:
            output.warn(f"there are too many test files, or they take too long: only the first {number} were read")
            break
        try:
            tally, size = read_file(path, bytes_left)
        except (Unreadable, OSError) as fault:
            left_out += 1
            why = fault if isinstance(fault, Unreadable) else type(fault).__name__
            output.warn(f"test file {clean_text(path, 200)} was left out: {why}") if left_out <= 5 else None
            continue
        total.add(tally)
        read, bytes_left = read + 1, bytes_left - size
    if not read and not left_out:
        output.warn(f"no test file matches {clean_text(', '.join(patterns), 200)}")
    elif left_out:
        output.warn(f"{left_out} of {read + left_out} test files were left out; their tests are not counted")
    return total if read else None


def read_file(path: str, bytes_left: int) -> tuple[JunitCounts, int]:
    # The file may have been replaced by a link or a pipe since it was listed.
    with open_regular(path) as file:
        file_stat = os.fstat(file.fileno())
        if file_stat.st_size > MAX_JUNIT_BYTES:
            raise Unreadable(f"it is larger than {MAX_JUNIT_BYTES >> 20} MiB")
        reader, size = JunitReader(), 0
        while size <= min(bytes_left, MAX_JUNIT_BYTES):
            data = file.read(64 * 1024)
            if not data:
                reader.feed(b"", last=True)
                return reader.tally, size
            size += len(data)
            reader.feed(data)
    raise Unreadable(f"the files together are larger than {MAX_JUNIT_BYTES_IN_ALL >> 20} MiB, or it grows")


def find_files(patterns: Sequence[str], output: JobOutput) -> Iterator[str]:
    """Yield the regular files that match, each once; links are not followed, so that there are no cycles."""
    yielded = set()
    for pattern in patterns:
        normalized = os.path.normpath(pattern).replace(os.sep, "/")
        normalized += "/**/*.xml" if os.path.isdir(normalized) else ""
        fixed = re.split(r"[*?\[]", normalized, maxsplit=1)[0]
        folder = fixed.rpartition("/")[0] or ("/" if fixed.startswith("/") else ".")
        matches = PathPattern(normalized).matches
        for path in [normalized] if fixed == normalized else walk_files(folder, output):
            if path not in yielded and matches(path) and _is_regular(path):
                yielded.add(path)
                yield path


def walk_files(folder: str, output: JobOutput, most: int = MAX_PATHS_VISITED) -> Iterator[str]:
    visited = 0
    for directory, folders, files in os.walk(folder, followlinks=False):
        folders.sort()
        visited += len(folders) + len(files)
        if visited > most:
            output.warn(f"more than {most} files below {clean_text(folder, 200)}; name a smaller folder")
            return
        for name in sorted(files):
            yield os.path.normpath(os.path.join(directory, name)).replace(os.sep, "/")


def _is_regular(path: str) -> bool:
    try:
        return stat.S_ISREG(os.lstat(path).st_mode)
    except (OSError, ValueError):
        return False


class PathPattern:
    """`*` and `?` match within a folder, `**/` any number of folders, `**` anything, `[ab]` one of these.

    A path is matched in one pass with a set of states, because the code under test chooses the names of its files, and
    no name may make the match slow.
    """

    def __init__(self, pattern: str) -> None:
        self._steps = re.findall(r"\*\*/|\*\*|\*|\?|\[!?[^]/]+\]|.", pattern, re.DOTALL)
        wildcards = [index for index, step in enumerate(self._steps) if len(step) > 1 or step in "*?"] or [
            len(self._steps)
        ]
        self._start = "".join(self._steps[: wildcards[0]])
        self._end = "".join(self._steps[wildcards[-1] + 1 :])

    def matches(self, path: str) -> bool:
        if not path.startswith(self._start) or not path.endswith(self._end):
            return False
        states = self._skip_wildcards({(0, False)})
        for character in path:
            states = self._skip_wildcards({after for state in states for after in self._advance(state, character)})
        return (len(self._steps), False) in states

    def _advance(self, state: tuple[int, bool], character: str) -> Iterator[tuple[int, bool]]:
        """Yield the states after a character; `inside` a folder name, `**/` waits for its end."""
        index, inside = state
        step = self._steps[index] if index < len(self._steps) else ""
        if step == "**/":
            if inside or character != "/":
                yield index, character != "/"
        elif step == "**" or (step == "*" and character != "/"):
            yield index, False
        elif step and self._matches_step(step, character):
            yield index + 1, False

    def _skip_wildcards(self, states: set[tuple[int, bool]]) -> set[tuple[int, bool]]:
        """Add the states after wildcards that may match nothing."""
        reachable = set(states)
        for index, inside in states:
            while not inside and index < len(self._steps) and self._steps[index] in ("**/", "**", "*"):
                index += 1  # noqa: PLW2901  the next step has the same rule
                reachable.add((index, False))
        return reachable

    @staticmethod
    def _matches_step(step: str, character: str) -> bool:
        if step == "?":
            return character != "/"
        if len(step) == 1:
            return step == character
        chosen = step[1:-1].lstrip("!")
        ranges = re.findall(r"(.)-(.)|(.)", chosen, re.DOTALL)
        matches = any(low <= character <= high if high else character == single for low, high, single in ranges)
        return matches != (step[1] == "!")


# ------------------------------------------------------------------------------------------------------ log excerpts

MOST_ERROR_BYTES = 1024
MOST_TAIL_BYTES = 7 * 1024
MOST_TAIL_LINES = 60
MAX_LOG_BYTES = 256 * 1024 * 1024
LOG_S = 30.0
LOG_CHUNK_BYTES = 64 * 1024
MAX_LOG_LINE_BYTES = 8 * 1024
LOG_END_BYTES = 64 * 1024
LOG_END_LINES = 500
LOG_LOOKED_AT_BYTES = 1024
MAX_MASK_CHARS = 64 * 1024
SHORTEST_MASK = 4
NO_SECRETS = ("true", "false", "none", "null", "undefined")
SECRET_VARIABLE = re.compile(
    r"(?i)token|secret|passw(?:or)?d|passphrase|credential|cookie|auth(?!or)|_pwd$|(?:api|access|private|account|signing|"
    r"encryption|deploy|ssh|master|client)_?key"
)
GITHUB_TIME = re.compile(r"\ufeff?[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}\.[0-9]{1,9}Z ")
GITHUB_COMMAND = re.compile(r"(?:##\[(?P<old>[a-z-]{1,20})\]|::(?P<name>[a-z-]{1,20})(?: [^:]{0,500})?::)(?P<text>.*)")
SAYS_NOTHING = re.compile(r"(?i)exit(?:ed)?(?: with)? (?:code|status)|failed with exit|error: task failed")
NO_ERROR = re.compile(
    r"(?i)(?<![0-9.])(?:0|no) (?:errors?|failures?|failed)\b|-w(?:no-)?error|(?:errors?|failures?)\s?[:=]\s?0\b|^\++ "
)
MASK_HINT = b"add-mask"
# Each line that the two patterns below match has one of these in it, in small letters.
ERROR_HINTS = (
    *(
        b"err",
        b"fail",
        b"exception",
        b"fatal",
        b"panic",
        b"fault",
        b"core dumped",
        b"undefined",
        b"assertion",
        b"memory",
    ),
    *(b"not ok", b"*** ", b"stopped", b"killed", b"aborted", b"cannot", b"denied", b"timed out", b"not found", b"e   "),
    *(b"no such file", b"exit"),
)
SURE_ERROR = re.compile(
    r"(?i:(?:^|[\s:>(\]])(?:fatal )?error(?: ?\[?[a-z]{0,6}[0-9]{1,6}\]?)?: ?\S)|^E {3,}\S|^(?:FAILED|FAIL:|ERROR|--- FAIL:|not ok)\b"
    r"|(?<![\w.])[\w.]{0,80}(?:Error|Exception)(?: \([^)]{0,80}\))?: |^[\w.]{1,80}(?:Error|Exception)$|^(?:fatal|panic): |npm ERR!"
    r"|CMake Error|Segmentation fault|core dumped|undefined reference to|undefined symbol|panicked at |[Aa]ssertion .{0,200} failed"
    r"|out of memory|Out of memory|^make(?:\[[0-9]{1,3}\])?: \*\*\* |ninja: build stopped"
)
MAYBE_ERROR = re.compile(
    r"(?i)(?<![\w-])(?:errors?|failed|failures?|fatal|exception|killed|aborted|cannot|denied|timed out|not found|no such file"
    r"|exit(?:ed)?(?: with)? (?:code|status) [1-9])(?![\w=])"
)


class LogScan:
    """Reads a log in pieces: the first line that names an error, the last lines, and the values that the log itself masks.

    Memory is bounded, whatever the log holds. Of a line without an end the beginning is kept, up to a blank: half a secret
    could not be recognised.
    """

    def __init__(self) -> None:
        self.masks: set[str] = set()
        self._mask_chars = 0
        self._line, self._is_cut = b"", False
        self._error: tuple[bytes, bool] | None = None
        self._perhaps: tuple[bytes, bool] | None = None
        self._last: deque[tuple[bytes, bool]] = deque()
        self._last_bytes = 0

    def feed(self, data: bytes) -> None:
        *complete, rest = data.split(b"\n")
        for first in complete[:1]:
            self._extend(first)
            self._end_line()
        lines = list(filter(None, complete[1:]))
        # Nearly all of a long log names no error: only the end of such a piece matters.
        searched, hints = data.lower(), (MASK_HINT,) if self._error else (MASK_HINT, *ERROR_HINTS)
        for line in lines if any(hint in searched for hint in hints) else lines[-LOG_END_LINES:]:
            self._extend(line)
            self._end_line()
        self._extend(rest)

    def skip(self) -> None:
        """Forget the line that is not complete: what is fed next is from a later place, in the middle of a line."""
        self._line, self._is_cut = b"", True

    def first_error(self, secrets: Iterable[str] = ()) -> str:
        return "".join(self._clean([line for line in (self._error or self._perhaps,) if line], secrets))

    def last_lines(self, secrets: Iterable[str] = ()) -> list[str]:
        self._end_line()
        return self._clean(self._last, secrets)

    def _clean(self, lines: Iterable[tuple[bytes, bool]], secrets: Iterable[str]) -> list[str]:
        values = self.masks.union(secrets)
        cleaned = ((clean_log_line(line)[0], is_cut) for line, is_cut in lines)
        return [remove_cut_word(text, values) if is_cut else text for text, is_cut in cleaned]

    def _extend(self, piece: bytes) -> None:
        if self._is_cut and b"\r" not in piece:
            return
        line = piece if self._is_cut else self._line + piece
        if self._is_cut or len(line) > MAX_LOG_LINE_BYTES:
            # What a terminal would show of it: progress is written over itself.
            line = line.rstrip(b"\r").rpartition(b"\r")[2]
        self._line, self._is_cut = line[:MAX_LOG_LINE_BYTES], len(line) > MAX_LOG_LINE_BYTES

    def _end_line(self) -> None:
        line = (self._line, self._is_cut)
        self._line, self._is_cut = b"", False
        if not line[0].strip() or (MASK_HINT in line[0] and self._add_mask(line[0])):
            return
        if self._error is None and any(map(line[0][:LOG_LOOKED_AT_BYTES].lower().__contains__, ERROR_HINTS)):
            self._look_for_error(line)
        self._last.append(line)
        self._last_bytes += len(line[0])
        while self._last_bytes > LOG_END_BYTES or len(self._last) > LOG_END_LINES:
            self._last_bytes -= len(self._last.popleft()[0])

    def _add_mask(self, line: bytes) -> bool:
        """Keep the value that GitHub would mask from here on; False if the line is no such command."""
        text, command = clean_log_line(line)
        if command != "add-mask":
            return False
        new = {part for value in (text, urllib.parse.unquote(text)) for part in usable_masks(value)} - self.masks
        self._mask_chars += sum(map(len, new))
        if self._mask_chars <= MAX_MASK_CHARS:
            self.masks.update(new)
        return True

    def _look_for_error(self, line: tuple[bytes, bool]) -> None:
        text, command = clean_log_line(line[0][:LOG_LOOKED_AT_BYTES])
        if NO_ERROR.search(text):
            return
        if SAYS_NOTHING.search(text):
            self._perhaps = self._perhaps or line
        elif command == "error" or SURE_ERROR.search(text):
            self._error = line
        elif self._perhaps is None and MAYBE_ERROR.search(text):
            self._perhaps = line


def clean_log_line(line: bytes) -> tuple[str, str]:
    """Return the text of a line as a terminal shows it, and GitHub's command in it, such as `error`."""
    text = clean_line(line.rstrip(b"\r").rpartition(b"\r")[2].decode("utf-8", "replace"))
    text = GITHUB_TIME.sub("", text, count=1)
    command = GITHUB_COMMAND.match(text.lstrip()) if "##[" in text[:100] or "::" in text[:100] else None
    return (command["text"].strip(), command["old"] or command["name"]) if command else (text, "")


def remove_cut_word(text: str, values: Iterable[str]) -> str:
    """Return the beginning of a line that was cut, without its last word and without the beginning of a secret value."""
    for value in sorted(values, key=len, reverse=True):
        text = text.replace(value, MASK)
    for value in values:
        cut = next((size for size in range(len(value) - 1, 0, -1) if text.endswith(value[:size])), 0)
        text = text[: len(text) - cut]
    return (text.rpartition(" ")[0] + " …").lstrip()


def usable_masks(value: str) -> list[str]:
    """Return the lines of a secret value that are long enough to be masked."""
    lines = (line.strip() for line in value.splitlines())
    return [line for line in lines if len(line) >= SHORTEST_MASK and line.lower() not in NO_SECRETS]


def secret_values(env: Mapping[str, str]) -> set[str]:
    """Return the values of variables whose names look secret."""
    named = (value for name, value in env.items() if SECRET_VARIABLE.search(name))
    return {line for value in named for line in usable_masks(value[:MAX_MASK_CHARS])}


def read_log(path: str, secrets: Iterable[str], output: JobOutput, machine: Machine) -> dict[str, str] | None:
    """Return the first error line and the last lines of a log, masked and cut; None when there are none."""
    try:
        scan = scan_log(path, machine)
    except (Unreadable, OSError, ValueError) as fault:
        why = fault if isinstance(fault, Unreadable) else type(fault).__name__
        output.notice(f"the log {clean_text(path, 200)} is not read: {why}")
        return None
    known = scan.masks.union(secrets)
    values = known.union(urllib.parse.quote(value, safe="") for value in known)
    lines = scan.last_lines(values)
    error = cut_line(mask_secrets(scan.first_error(values), values), MOST_ERROR_BYTES)
    tail = cut_tail(mask_secrets("\n".join(lines), values).split("\n"), MOST_TAIL_BYTES)
    excerpt = {name: text for name, text in (("first_error", error), ("tail", tail)) if text}
    shown = f"first error: {clean_text(error, 200)}" if error else "no line of it names an error"
    output.info(f"log: {shown}; its last {len(tail.splitlines())} lines are sent")
    return excerpt or None


def scan_log(path: str, machine: Machine) -> LogScan:
    """Read a log in one pass; of one that is too large or takes too long, the beginning and the end."""
    scan, until = LogScan(), machine.clock() + LOG_S
    with open_regular(path) as file:
        size, position = os.fstat(file.fileno()).st_size, 0
        while position < min(size, MAX_LOG_BYTES) and machine.clock() <= until:
            data = file.read(LOG_CHUNK_BYTES)
            if not data:
                return scan
            scan.feed(data)
            position += len(data)
        if position < size - LOG_END_BYTES:
            scan.skip()
            file.seek(size - LOG_END_BYTES)
        scan.feed(file.read(LOG_END_BYTES))
    return scan


def open_regular(path: str) -> BinaryIO:
    """Open a file that is no link, pipe or device."""
    flags = os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
    file = os.fdopen(os.open(path, flags), "rb")
    if stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        return file
    file.close()
    raise Unreadable("it is not a regular file")


# The rest of this part is the same text as in the relay, which masks every excerpt again.

MASK = "***"
CONTROL_CODES = re.compile(
    r"(?:\x1b\[|\x9b)[0-?]*(?:[A-HJKSTXfhlmnrsu]| q)?|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)?|\x1b(?:[()*+][0-9AB]|[=>78])?"
)
"""Those that programs write; others lose only their first character, so that they take nothing from the text after them."""
SENSITIVE_NAMES = (
    r"passw(?:or)?d|passphrase|secrets?|tokens?|credentials?|api[_-]?keys?|access[_-]?keys?|private[_-]?key|"
    r"account[_-]?key|signing[_-]?key|encryption[_-]?key|deploy[_-]?key|auth[_-]?key|client[_-]?key|x-amz-signature|"
    r"sharedaccesssignature|_auth"
)
MASKED_FORMS = (
    # Keys and certificates, to their end or to the end of the text.
    (re.compile(r"-----BEGIN [A-Z0-9 ]{1,60}-----.*?(?:-----END [A-Z0-9 ]{1,60}-----|\Z)", re.DOTALL), MASK),
    # Headers, to the end of their line.
    (
        re.compile(r"(?i)\b((?:proxy-)?authorization|(?:set-)?cookie)(['\"]?\s{0,3}[:=]\s{0,3})[^\n]+"),
        rf"\1\2{MASK}",
    ),
    # User and password in an address.
    (re.compile(r"://[^\s/?#\"'<>]*@"), f"://{MASK}@"),
    (re.compile(r"://[^\s/:@\"'<>]*:(?!\d{1,5}(?:[/?#\s]|\Z))[^\s@\"'<>]{1,128}@"), f"://{MASK}@"),
    # What a name calls secret: password=…, "token": "…", --api-key …, and curl's -u user:password.
    (
        re.compile(
            rf"(?i)((?:{SENSITIVE_NAMES})[\w.-]{{0,24}}(?:\\?['\"])?\s{{0,3}}(?::=|=>|=|:)\s{{0,3}})"
            r"(\"(?:[^\"\\\n]|\\[^\n])*\"?|'[^'\n]*'?|\\\"[^\"\n]*\"?|[^\s\"',;&][^\s,;&]*)"
        ),
        rf"\1{MASK}",
    ),
    (
        re.compile(rf"(?i)((?<![\w-])--[\w-]{{0,24}}?(?:{SENSITIVE_NAMES}))(\s{{1,3}})[^\s-][^\s]*"),
        rf"\1\2{MASK}",
    ),
    (re.compile(r"((?<!\S)(?:-u|--user)[ =]?['\"]?)[^\s:'\"]{1,100}:[^\s]+"), rf"\1{MASK}"),
    (re.compile(r"([?&](?:sig|signature|key|code|auth)=)[^\s&\"'<>]+", re.IGNORECASE), rf"\1{MASK}"),
    (re.compile(r"(?i)\b(bearer|negotiate)(\s{1,3})[\w.~+/=-]{8,}"), rf"\1\2{MASK}"),
    (re.compile(r"\b([Bb]asic\s{1,3})[A-Za-z0-9+/]{8,}={0,2}(?<![a-z]{8})"), rf"\1{MASK}"),
    # Tokens with a form of their own: GitHub, GitLab, JSON Web Tokens, AWS, Slack, package indexes and others.
    (
        re.compile(
            r"(?<![A-Za-z0-9])(?:gh[oprsu]_[\w.-]{16,}|github_pat_\w{16,}|v1\.[0-9a-f]{40}|GR1348941[\w-]{16,}"
            r"|gl(?:agent|cbt|dt|ffct|ft|imt|oas|pat|ptt|rtr?|soat|wt)-[\w.-]{16,}|eyJ[\w-]{8,}(?:\.[\w-]*){0,4}"
            r"|(?:AKIA|ASIA|AGPA|AIDA|AIPA|ANPA|ANVA|AROA)[A-Z0-9]{12,}|x(?:ox[a-z]|app)-[\w.-]{8,}|pypi-AgE[\w-]{16,}"
            r"|npm_[A-Za-z0-9]{36}|hf_[A-Za-z0-9]{20,}|dckr_\w{16,}|do[oprt]_v1_\w{16,}|[prsw]k_(?:live|test)_\w{10,}"
            r"|sk-[\w-]{32,}|AIza[\w-]{30,}|ya29\.[\w.-]{16,}|SG\.[\w.-]{16,}|hv[brs]\.[\w-]{16,}|bk(?:aj|ct|ps|ua)_\w{16,}"
            r"|CCIPAT_\w{10,}|AGE-SECRET-KEY-\w{16,}|whsec_\w{16,}|sha256~[\w-]{20,})"
        ),
        MASK,
    ),
    (re.compile(r"https://hooks\.slack\.com/[^\s\"'<>]+"), f"https://hooks.slack.com/{MASK}"),
)
END_OF_KEY = re.compile(r"-----END [A-Z0-9 ]{1,60}-----")
START_OF_KEY = re.compile(r"-----BEGIN [A-Z0-9 ]{1,60}-----")
LONG_RUN = re.compile(r"[A-Za-z0-9+/_=-]{24,}")
PLAIN_RUN = re.compile(
    r"[0-9a-f]{40}|[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}|_{1,3}Z[A-Za-z0-9_]+|[0-9]+|[-=_+/]+"
)
"""A commit, an id, a name as the linker has it, a number, a ruler."""


def clean_line(line: str) -> str:
    """Return a line without colours and other characters that cannot be seen; tabs become blanks."""
    if line.isprintable():
        return line.rstrip()
    plain = CONTROL_CODES.sub("", line).replace("\t", "    ")
    if not plain.isprintable():
        letters = (" " if unicodedata.category(letter)[0] == "Z" else letter for letter in plain)
        plain = "".join(letter for letter in letters if unicodedata.category(letter)[0] != "C")
    return plain.rstrip()


def mask_secrets(text: str, values: Iterable[str] = ()) -> str:
    """Return the text without these values and without what looks like a secret."""
    for value in sorted(set(values), key=len, reverse=True):
        text = text.replace(value, MASK)
    text = _without_open_key(text)
    for pattern, replacement in MASKED_FORMS:
        text = pattern.sub(replacement, text)
    return LONG_RUN.sub(_mask_run, text)


def _without_open_key(text: str) -> str:
    """Mask a key whose first lines are missing: everything up to an end without a beginning."""
    end, start = END_OF_KEY.search(text), START_OF_KEY.search(text)
    return MASK + text[end.end() :] if end and (start is None or start.start() > end.start()) else text


def _mask_run(run: re.Match[str]) -> str:
    """Mask a run of characters as random as those of a key; parts of a path are looked at one by one too."""
    if looks_random(run[0]):
        return MASK
    return "/".join(MASK if looks_random(part) else part for part in run[0].split("/"))


def looks_random(run: str) -> bool:
    """Whether digits, capitals and small letters change as often as chance makes them, and not as in names and words."""
    if len(run) < 24 or PLAIN_RUN.fullmatch(run):
        return False
    kinds = ["d" if one.isdigit() else "u" if one.isupper() else "l" if one.isalpha() else "" for one in run]
    # A capital before small letters begins a word.
    pairs = [kinds[index : index + 2] for index in range(len(kinds) - 1)]
    changes = sum(a != b for a, b in pairs if a and b and (a, b) != ("u", "l"))
    return kinds.count("d") >= 2 and 4 * changes > len(run)


def cut_line(line: str, most_bytes: int) -> str:
    """Cut a masked line between characters."""
    whole = line.encode("utf-8", "replace")
    return line if len(whole) <= most_bytes else whole[: most_bytes - 3].decode("utf-8", "ignore").rstrip() + "…"


def cut_tail(lines: list[str], most_bytes: int) -> str:
    """Return as many of the last masked lines as fit, without blank ones at both ends."""
    kept, size = [], 0
    for line in reversed(lines[-MOST_TAIL_LINES:]):
        shown = cut_line(line, MOST_ERROR_BYTES)
        size += len(shown.encode("utf-8", "replace")) + 1
        if size > most_bytes:
            break
        kept.append(shown)
    return "\n".join(reversed(kept)).strip("\n")


# -------------------------------------------------------------------------------------------------------- the report


@dataclass(frozen=True)
class JobReport:
    body: Json

    @property
    def workflow(self) -> Json:
        return _object(self.body["workflow"])

    def bytes(self) -> bytes:
        """Return the body; failed tests are removed until it fits, because the counts are complete anyway."""
        while True:
            text = json.dumps(self.body, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "replace")
            tests = self.workflow.get("failed_tests")
            if len(text) <= MAX_BODY_BYTES or not tests:
                return text
            del tests[len(tests) // 2 :]

    def late_start(self) -> JobReport:
        """Return the lost start report, marked late: its times are not measured."""
        names = (
            "schema_version",
            "name",
            "url",
            "run_id",
            "run_attempt",
            "job_name",
            "check_run_id",
            "environment",
            "started_at",
        )
        start = {name: self.workflow[name] for name in names if name in self.workflow}
        return JobReport({**self.body, "workflow": {**start, "status": "in_progress", "late": True}})

    def without_tests(self) -> JobReport:
        workflow = {name: value for name, value in self.workflow.items() if name != "failed_tests"}
        return JobReport({**self.body, "workflow": workflow})


def make_report(
    options: ReporterOptions, ci: CiJob, dispatch: Mapping[str, str], output: JobOutput, machine: Machine
) -> JobReport | None:
    """Return the report; None when there is nothing to report."""
    status = options.get("status")
    if status not in ("in_progress", "completed"):
        raise WrongUse(f"--status is {clean_text(status, 40)!r}; it must be in_progress, completed or test")
    event = options.get("event-type", dispatch.get("event_type", ""))
    commit = options.get("head-sha", dispatch.get("head_sha", ""))
    if ci.dispatched and event in SELF_REPORTS and not options.get("event-type"):
        raise Problem(
            f"the dispatch calls itself {event}, and nothing was sent: a dispatch is answered under its delivery's id. "
            f"If this workflow tests the upstream by itself, write event-type (CRCR_EVENT_TYPE) {event} into it."
        )
    if event in SELF_REPORTS and status == "in_progress":
        output.notice(f"a {event} report is sent once, when it is completed: nothing to send now")
        return None
    own_id = commit or f"{event}-{options.get('run-id', ci.run_id)}" if event in SELF_REPORTS else ""
    delivery = options.get("delivery-id", dispatch.get("delivery_id", ""), own_id)
    if not delivery:
        _explain_no_delivery(ci, output)
        return None
    upstream = options.get("upstream", dispatch.get("upstream", ""))
    return JobReport(
        {
            "event_type": event,
            "delivery_id": delivery,
            "payload": _describe_payload(upstream, commit) if event in SELF_REPORTS else {},
            "workflow": {
                **_describe_workflow(status, options, ci, output, machine),
                **find_start(options, ci, output, machine, status=status, event=event),
            },
        }
    )


def _explain_no_delivery(ci: CiJob, output: JobOutput) -> None:
    if ci.dispatched:
        raise Problem("the dispatch that started this run has no delivery_id, so it is not one of the relay's")
    output.notice(
        "this run was not started by a dispatch of the relay (there is no delivery id): nothing to report. "
        "In a workflow that another one starts, pass delivery-id on."
    )


def _describe_workflow(status: str, options: ReporterOptions, ci: CiJob, output: JobOutput, machine: Machine) -> Json:
    """Return the facts about the job; unknown ones are left out."""
    workflow: Json = {
        "schema_version": "1",
        "status": status,
        "name": _name(options.get("workflow-name", ci.workflow, ci.name, "CI"), "workflow-name", output),
        "url": options.get("url", ci.url),
        "run_id": options.get("run-id", ci.run_id),
        "run_attempt": options.get("run-attempt", ci.run_attempt),
        "job_name": _name(options.get("job-name", ci.job), "job-name", output),
        "check_run_id": options.get("check-run-id"),
        "artifact_url": options.get("artifact-url"),
        "environment": _parse_json_option(options, "environment", dict, output),
        "completed_at": _format_time(machine.now()) if status == "completed" else "",
    }
    if status == "completed":
        workflow.update(_describe_result(options, ci, output, machine))
    for name in ("run_id", "job_name"):
        if not workflow[name]:
            raise WrongUse(f"--{name.replace('_', '-')} is needed: this CI is not known, so it must be given")
    return {name: value for name, value in workflow.items() if value not in ("", None)}


def _describe_payload(upstream: str, commit: str) -> Json:
    """Empty for dispatched runs: the relay knows what it sent. A nightly report names what it tested."""
    repository = {"repository": {"full_name": upstream}} if upstream else {}
    return {**({"head_sha": commit} if commit else {}), **repository}


def _describe_result(options: ReporterOptions, ci: CiJob, output: JobOutput, machine: Machine) -> Json:
    tally = read_junit(options.junit, output, machine) if options.junit else None
    counts = _parse_json_option(options, "test-results", dict, output) or (tally.counts() if tally else None)
    items = (_parse_json_option(options, "failed-tests", list, output) or [])[:MAX_FAILED_TESTS]
    listed = [describe_failed_test({"name": item} if isinstance(item, str) else _object(item)) for item in items]
    failures = listed or (tally.failures if tally else [])
    if counts:
        summary = ", ".join(
            f"{clean_text(count, 20)} {clean_text(name, 20)}" for name, count in list(counts.items())[:8]
        )
        output.info(f"tests: {summary}")
    conclusion = parse_conclusion(options.get("conclusion", ci.conclusion), output)
    log = options.get("log") if conclusion not in WITHOUT_LOG else ""
    excerpt = read_log(log, options.secrets, output, machine) if log else None
    return {
        "conclusion": conclusion,
        "test_results": counts,
        "failed_tests": failures or None,
        "log_excerpt": excerpt,
    }


def find_start(
    options: ReporterOptions, ci: CiJob, output: JobOutput, machine: Machine, *, status: str, event: str
) -> Json:
    """Return the start time of the job. The relay has that of a dispatched job; a nightly report is found by it alone."""
    started_at, now = options.get("started-at"), machine.now()
    if started_at and not re.fullmatch(TIME_FORM, started_at):
        output.warn(
            f"--started-at {clean_text(started_at, 40)!r} is not a time such as {_format_time(now)}; it is ignored"
        )
        started_at = ""
    start = started_at or (ci.started_at if status == "completed" else _format_time(now))
    if not start and event in SELF_REPORTS:
        start = _format_time(_modified_at(ci.event_file, now))
    return {"started_at": start} if start else {}


def _modified_at(path: str, now: float) -> float:
    """Return when a file was written; now if that is unknown."""
    try:
        at = os.stat(path).st_mtime
    except (OSError, ValueError):
        return now
    return at if now - LONGEST_JOB_S < at < now else now


def parse_conclusion(word: str, output: JobOutput) -> str:
    """Map the words and exit codes of any CI to a conclusion; "" for an unknown one."""
    plain_word = word.strip().lower()
    if plain_word in CONCLUSIONS:
        return plain_word
    if plain_word in CONCLUSION_WORDS:
        return CONCLUSION_WORDS[plain_word]
    if re.fullmatch(r"-?[0-9]{1,10}", plain_word):
        return "failure"
    reason = f"{clean_text(word, 40)!r} is not a conclusion" if word else "no conclusion is given"
    output.warn(f"{reason}, so the relay counts the job as failed. Valid are {', '.join(CONCLUSIONS)}.")
    return ""


def _parse_json_option(options: ReporterOptions, name: str, kind: type, output: JobOutput) -> Any:
    text = options.get(name)
    if not text:
        return None
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        value = None
    if isinstance(value, kind):
        return value
    output.warn(f"--{name} is not a JSON {'object' if kind is dict else 'list'}; the report is sent without it")
    return None


def _name(text: str, flag: str, output: JobOutput) -> str:
    if len(text) > MAX_NAME_CHARS:
        output.warn(f"--{flag} has {len(text)} characters; the first {MAX_NAME_CHARS} are used")
    return text[:MAX_NAME_CHARS]


def _format_time(at: float) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(at))


# ---------------------------------------------------------------------------------------------- sending, explaining

# What a refusal means, and how to fix it.
MEANING = dict(
    line.split(": ", 1)
    for line in """\
not_authentic: the relay does not accept this job's token. Use the relay's audience; on GitHub the job needs `permissions: id-token: write`.
not_registered: the relay knows this CI, but not this pipeline. Send the ids that it names to its operator, who registers the pipeline.
identity_changed: the repository's name now belongs to another repository id. If it was made anew on purpose, its operator can accept that.
not_allowlisted: this repository is not on the upstream's allowlist. Ask the upstream's maintainers for an entry; a fork needs its own.
suspended: an operator has suspended this repository. Ask the relay's operator why.
rate_limited: this repository sends more reports than the relay accepts. Start fewer jobs at once, give max-time more seconds, or ask for a higher limit.
unknown_delivery: the relay has not dispatched this delivery to this repository. Pass the dispatch's delivery_id on unchanged, in the repository that got it.
claim_mismatch: the report names another run than the token proves. Report from the run that did the work; do not set run-id or run-attempt by hand.
wrong_event: runs that this event starts may not report. Start the workflow by repository_dispatch, or ask for `allow_events` in the allowlist entry.
wrong_ref: this run is of another branch or tag than the default branch. Start the workflow on the default branch, or ask for `report_refs` in the allowlist entry for nightly reports of another ref.
run_bound_elsewhere: this run already answers another delivery. Use one run for each delivery, and see that delivery-id is not a fixed value.
ambiguous_job: several jobs of this run have this name. Give each its own job-name, in a matrix with the values of the leg in it.
no_in_progress: the relay has no start of this job. Send in_progress first, with the same job-name as completed.
conflicting_result: this job was reported before with another result, and the worse one counts. Report each job once, under a job-name of its own.
bad_report: the relay cannot read the report. Correct the field that it names; if you did not set it, update the reporter.
bad_request: the relay cannot read the report. Update the reporter.
too_large: the report is larger than the relay accepts. Send fewer failed tests.
not_found: there is no relay at this address. Check its address in relays, which ends with /github/callback.
method_not_allowed: this address accepts no reports. Check its address in relays, which ends with /github/callback.
""".splitlines()
)
BUSY = "the relay was not available in time. Run the job again if its result matters."
REFUSED = "the relay refuses the report. Do what it says, or ask its operator."


@dataclass
class ReportSender:
    relay: PinnedRelay
    tokens: JobToken
    client: RetryingClient
    output: JobOutput

    def __post_init__(self) -> None:
        self._renewed = False

    def deliver(self, report: JobReport) -> HttpAnswer:
        """Send the report; once without its failed tests if it is too large, and once with its lost start before it."""
        answer = self._post(report)
        if answer.status == 413 and "failed_tests" in report.workflow:
            self.output.notice("the report is too large: it is sent again without the failed tests")
            report = report.without_tests()
            answer = self._post(report)
        if _error(answer).get("code") != "no_in_progress" or report.workflow["status"] != "completed":
            return answer
        self.output.notice("the relay has no start of this job: it is sent now, marked late")
        late = self._post(report.late_start())
        return self._post(report) if 200 <= late.status < 300 else late

    def _post(self, report: JobReport) -> HttpAnswer:
        return self.post(self.relay.url, report.bytes())

    def post(self, url: str, body: bytes) -> HttpAnswer:
        answer = self.client.send("the relay", lambda: self._request(url, body))
        refused = answer.status == 401 and _error(answer).get("code") == "not_authentic"
        if refused and not self._renewed and self.tokens.renew():
            self._renewed = True
            self.output.info("the relay does not accept the token; retrying once with a new one")
            answer = self.client.send("the relay", lambda: self._request(url, body))
        return answer

    def _request(self, url: str, body: bytes) -> urllib.request.Request:
        headers = {
            "Authorization": f"Bearer {self.tokens.current()}",
            "Content-Type": "application/json",
            "Accept": "application/json",
            "User-Agent": "crcr-reporter",
        }
        return urllib.request.Request(url, data=body, headers=headers, method="POST")


def explain(answer: HttpAnswer, report: JobReport, output: JobOutput) -> None:
    """Log the relay's answer; raise `Problem` when the report was not recorded."""
    answer_body, workflow = answer.json(), report.workflow
    if not (200 <= answer.status < 300 and answer_body and answer_body.get("ok") is not False):
        raise Problem(describe_refusal(answer))
    hint = f" {clean_text(answer_body['hint'])}" if answer_body.get("hint") else ""
    if answer_body.get("status") == "ignored":
        output.notice(
            f"the relay ignores this report: {clean_text(answer_body.get('reason', 'it gives no reason'))}.{hint}"
        )
        return
    result = f" ({workflow['conclusion']})" if workflow.get("conclusion") else ""
    again = "; it was already recorded" if answer_body.get("repeat") is True else ""
    output.info(f"recorded: {clean_text(workflow['job_name'], 100)} is {workflow['status']}{result}{again}")
    if answer_body.get("warning"):
        recorded_as = (
            f" It is recorded as {clean_text(answer_body['job_name'], 260)!r}." if answer_body.get("job_name") else ""
        )
        output.notice(f"the relay says: {clean_text(answer_body['warning'])}.{recorded_as}")
    if answer_body.get("sandbox"):
        output.notice(f"this report went into the relay's sandbox: it does not count and is deleted soon.{hint}")


def describe_refusal(answer: HttpAnswer) -> str:
    if answer.final:
        return f"not recorded: the relay's certificate is not trusted ({answer.fault}). Check its address in relays and the clock."
    if answer.status == 0:
        return f"not recorded: the relay cannot be reached ({answer.fault}). Check its address in relays, proxy and network."
    if 300 <= answer.status < 400:
        return f"not recorded: the address answers with a redirect ({answer.status}), which is never followed. Correct it in relays."
    if answer.status < 300:
        return f"not recorded: the server that answered ({answer.status}) is not a relay. Check its address in relays."
    error = _error(answer)
    code = clean_text(error.get("code") or "", 60)
    default_meaning = BUSY if is_retryable(answer) else MEANING["not_found"] if answer.status == 404 else REFUSED
    details = [f"The relay says: {clean_text(error['detail'])}."] if error.get("detail") else []
    details += [f"Its hint: {clean_text(error['hint'])}."] if error.get("hint") else []
    details += [f"Request {clean_text(error['request_id'], 80)}."] if error.get("request_id") else []
    return " ".join([f"not recorded ({answer.status} {code}): {MEANING.get(code, default_meaning)}", *details])


# ------------------------------------------------------------------------------------------------ a requested test

CALLBACK_PATH = "/github/callback"


@dataclass(frozen=True)
class RequestedTest:
    """A test that a person started in the Actions tab, proved by the run's own token.

    The relay sends this repository a test dispatch, which starts another run. To a repository on no allowlist it sends
    nothing: its trial is reported directly, and the relay keeps it in its sandbox.
    """

    options: ReporterOptions
    ci: CiJob
    dispatch: Mapping[str, str]
    env: Mapping[str, str]
    output: JobOutput
    machine: Machine

    def request(self) -> None:
        relay, repository = choose_relay(self.options, self.ci, self.dispatch), self.env.get("GITHUB_REPOSITORY", "")
        if self.ci.name != "GitHub Actions" or not re.fullmatch(r"[\w.-]{1,100}/[\w.-]{1,100}", repository):
            raise WrongUse("--status test works in a job of GitHub Actions only")
        if not relay.url.endswith(CALLBACK_PATH):
            raise Problem(f"the address of the relay does not end with {CALLBACK_PATH}, so a test cannot be requested")
        site = relay.url[: -len(CALLBACK_PATH)]
        upstream = self.options.get("upstream", self.dispatch.get("upstream", ""))
        query = f"?upstream={urllib.parse.quote(upstream)}" if upstream else ""
        address = f"{site}/api/v1/setup/{repository}/test{query}"
        if self.options.dry_run:
            self.output.info(f"would request a test at {clean_text(address)}")
            return
        sender = make_sender(self.options, self.ci, self.env, relay, output=self.output, machine=self.machine)
        answer = sender.post(address, b"")
        if answer.status == 404:
            self.output.notice(
                "this repository is on no allowlist there: a trial is reported instead of a test dispatch"
            )
            self._report_trial(sender)
        elif answer.status != 202:
            raise Problem(f"no test was requested. {describe_refusal(answer)}")
        else:
            delivery = clean_text(answer.json().get("delivery", ""), 60)
            self.output.notice(
                f"the relay sends a test dispatch, {delivery}: it starts another run of this workflow, which builds nothing. "
                f"Its result is on {clean_text(site)}/crcr/deliveries/{delivery}"
            )

    def _report_trial(self, sender: ReportSender) -> None:
        fixed = {"delivery-id": f"trial-{self.ci.run_id}", "event-type": "crcr_test"}
        for status, conclusion in (("in_progress", ""), ("completed", "skipped")):
            values = {**self.options.values, **fixed, "status": status, "conclusion": conclusion}
            report = make_report(replace(self.options, values=values), self.ci, {}, self.output, self.machine)
            if report is not None:
                explain(sender.deliver(report), report, self.output)


# -------------------------------------------------------------------------------------------------------------- main


def run(options: ReporterOptions, env: Mapping[str, str], output: JobOutput, machine: Machine) -> None:
    """Report once; return when that is done or there is nothing to do, raise `Problem` otherwise."""
    if options.unknown:
        output.warn(f"unknown arguments, ignored: {clean_text(' '.join(options.unknown), 200)}")
    ci, dispatch = detect_ci(env), read_dispatch(env, output)
    if options.get("status") == "test":
        RequestedTest(options, ci, dispatch, env, output, machine).request()
        return
    report = make_report(options, ci, dispatch, output, machine)
    if report is None:
        return
    relay = choose_relay(options, ci, dispatch)
    if options.dry_run:
        show(report, relay, output)
        return
    explain(make_sender(options, ci, env, relay, output=output, machine=machine).deliver(report), report, output)


def make_sender(
    options: ReporterOptions,
    ci: CiJob,
    env: Mapping[str, str],
    relay: PinnedRelay,
    *,
    output: JobOutput,
    machine: Machine,
) -> ReportSender:
    client = RetryingClient(machine, output, parse_max_time(options.get("max-time"), output))
    tokens = JobToken(choose_token_source(options, ci, env, relay, client), machine, output)
    return ReportSender(relay, tokens, client, output)


def show(report: JobReport, relay: PinnedRelay, output: JobOutput) -> None:
    output.info(f"would be sent to {clean_text(relay.url)}")
    output.info(f"with a token for {clean_text(relay.audience)}")
    candidates = [_object(report.body["payload"]).get("head_sha", ""), report.body["delivery_id"]]
    if report.body["event_type"] in SELF_REPORTS and not any(
        re.fullmatch("[0-9a-fA-F]{40}", text) for text in candidates
    ):
        subject = clean_text(candidates[0] or candidates[1], 80)
        output.warn(
            f"{subject!r} is not a commit (40 hex digits), so the result would belong to no commit: pass head-sha"
        )
    report.bytes()
    # ASCII makes untrusted text harmless, and this escape is the same JSON without GitHub's older command marker.
    text = json.dumps(report.body, indent=2).replace("##[", r"#\u0023[")
    output.out.write(text + "\n")


def main(
    argv: Sequence[str] | None = None,
    env: Mapping[str, str] | None = None,
    machine: Machine | None = None,
    out: TextIO | None = None,
) -> int:
    """Return the exit code: 1 when no pinned relay is selected; else 0, or with --strict 1 when the report is not recorded
    and 2 when the arguments are invalid.
    """
    arguments = sys.argv[1:] if argv is None else argv
    environ = os.environ if env is None else env
    strict = "--strict" in arguments or is_true(environ.get("CRCR_STRICT", ""))
    on_github = detect_ci(environ).name == "GitHub Actions"
    output = JobOutput(out or sys.stdout, annotate=on_github, strict=strict)
    try:
        run(parse(arguments, environ), environ, output, machine or Machine())
    except NotPinned as problem:
        output.refuse(str(problem), problem.lines)
        return 1
    except WrongUse as problem:
        output.problem(str(problem))
        return 2 if strict else 0
    except Problem as problem:
        output.problem(str(problem))
    except Exception as fault:  # noqa: BLE001  an error of the reporter must not fail the build
        output.problem(f"the reporter itself failed: {clean_text(f'{type(fault).__name__}: {fault}', 200)}")
    else:
        return 0
    return 1 if strict else 0


if __name__ == "__main__":
    if hasattr(sys.stdout, "reconfigure"):
        sys.stdout.reconfigure(errors="backslashreplace")
    sys.exit(main())
