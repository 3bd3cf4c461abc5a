#!/usr/bin/env python3
"""Tells a CRCR relay how a CI job stands: `report.py --status in_progress`, later `report.py --status completed`.

One file, Python 3.8 or newer, standard library only: it can be fetched alone and run. It reads what the CI tells
(GitHub Actions, Buildkite, GitLab CI, CircleCI; anything else by flags or CRCR_* variables), asks that CI for an OIDC
token, sends the report, tries again while that can help, and says in words what a refusal means. It never follows
redirects, and never shows the token to anybody but a relay that the workflow pins (`--relays`): a dispatch only
selects one of those. A relay that is not pinned ends it with 1; nothing else fails the build unless it is told to
(`--strict`).
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
from dataclasses import dataclass, field
from typing import Any, Callable, Dict, Iterator, Mapping, Sequence, TextIO
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
CONCLUSION_WORDS = {
    **dict.fromkeys(("passed", "pass", "ok", "succeeded", "successful", "0"), "success"),
    **dict.fromkeys(("failed", "fail", "error", "errored", "broken", "startup_failure"), "failure"),
    **dict.fromkeys(("canceled", "cancel", "canceling", "cancelling", "aborted"), "cancelled"),
    **dict.fromkeys(("timedout", "timeout", "timed out"), "timed_out"),
}
# What can be said, and what it means; in the help and in the README.
OPTIONS = dict(
    line.split(": ", 1)
    for line in """\
status: in_progress when the job begins, completed when it has ended
conclusion: how the job ended, in the words or exit codes of any CI; only with completed
job-name: the job's name on the dashboard, the same at start and end; else the CI's name for it
workflow-name: the workflow's name; else the CI's
test-results: counts as a JSON object with passed, failed and skipped; not needed with JUnit files
failed-tests: failed tests as a JSON list of objects with name, file and message; not needed with JUnit files
artifact-url: where logs and other files of the job can be seen
event-type: what started it all; else the dispatch's. For results without a dispatch: nightly or periodic
delivery-id: the dispatch that is answered; else the one that started the run
relays: the relays that may get a report, one a line: callback address, a space, audience. Required, and fixed in the workflow
callback-url: selects one of the relays by its address; else the dispatch's does
audience: selects one of the relays by its audience; else the dispatch's does
upstream: for nightly and periodic, the upstream that was tested, as owner/name
head-sha: for nightly and periodic, the upstream commit that was tested, all 40 digits
started-at: when the job began, as 2026-08-03T09:00:00Z; else the CI's. A nightly or periodic report always has it
run-id: the run's id; else the CI's
run-attempt: which attempt of the run it is; else the CI's
url: the run's page; else the CI's
check-run-id: the id of the job's check run on GitHub
environment: versions and the like as a JSON object, shown with the job
token-file: a file that holds the OIDC token, for a CI that is not known here
token-env: the name of a variable that holds the OIDC token, for a CI that is not known here
max-time: seconds for everything, with all retries; else 300
""".splitlines()
)
SWITCHES = {
    "junit": "JUnit XML files, ** for any number of folders; may be repeated, in the variable one a line",
    "strict": "exit with 1 when the report is not recorded",
    "dry-run": "print what would be sent, and to where; ask for no token",
}


class Problem(Exception):
    """The report cannot be made or was not recorded; the text says why and what to do."""


class WrongUse(Problem):
    """The command was called in a way that makes no sense."""


class NotPinned(Problem):
    """No relay that the workflow pins is meant: no token is requested, nothing is sent, and the job's step fails."""

    def __init__(self, text: str, lines: Sequence[str] = ()) -> None:
        super().__init__(text)
        self.lines = lines
        """What to add, for people to read; text of ours only."""


# ---------------------------------------------------------------------------------------------------- speaking


def plain(text: object, limit: int = 600) -> str:
    """Text of others on one line, without anything that a terminal or a CI's log could take for a command."""
    letters = [" " if unicodedata.category(c)[0] in "CZ" else c for c in str(text)[: 4 * limit]]
    line = " ".join("".join(letters).split()).replace("##[", "## [").replace("::", ": :")
    return line if len(line) <= limit else line[: limit - 1] + "…"


@dataclass
class Voice:
    """One line for each thing that happens; on GitHub, what matters becomes an annotation."""

    out: TextIO
    annotate: bool = False
    strict: bool = False

    def say(self, text: str) -> None:
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
        """From here on GitHub hides it, whoever prints it."""
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


# ------------------------------------------------------------------------------------------ the world around us


@dataclass(frozen=True)
class Answer:
    status: int
    """0 when there was no answer; `fault` then says why, and `final` whether asking again is of no use."""
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes = b""
    fault: str = ""
    final: bool = False

    def json(self) -> Json:
        try:
            found = json.loads(self.body.decode("utf-8", "replace"))
        except (ValueError, RecursionError):
            return {}
        return found if isinstance(found, dict) else {}


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """A token goes to the address that it was meant for, and to no other."""

    def redirect_request(self, *_: Any, **__: Any) -> None:
        return None


def is_loopback(host: str) -> bool:
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def fetch(request: urllib.request.Request, timeout_s: float) -> Answer:
    """One request within a time that holds for all of it: looking a name up has no time-out of its own."""
    found: list[Answer] = []
    worker = threading.Thread(target=lambda: found.append(_fetch(request, timeout_s)), daemon=True)
    worker.start()
    worker.join(timeout_s + 1)
    return found[0] if found else Answer(0, fault=f"no answer within {timeout_s:.0f} s")


def _fetch(request: urllib.request.Request, timeout_s: float) -> Answer:
    https = urllib.request.HTTPSHandler(context=ssl.create_default_context())
    direct = [urllib.request.ProxyHandler({})] if is_loopback(_host(request.full_url)) else []
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
        return Answer(0, fault=plain(f"{type(reason).__name__}: {reason}", 200), final=untrusted)


def _read(status: int, response: Any) -> Answer:
    headers = {name.lower(): value for name, value in response.headers.items()}
    try:
        body = response.read(MAX_ANSWER_BYTES)
        promised = min(int(headers.get("content-length", "0")), MAX_ANSWER_BYTES)
    except (OSError, http.client.HTTPException, ValueError):
        return Answer(0, fault="the answer broke off")
    # A read that is given a size says nothing when less arrives than was promised.
    return Answer(status, headers, body) if len(body) >= promised else Answer(0, fault="the answer broke off")


def _host(address: str) -> str:
    try:
        return urllib.parse.urlsplit(address).hostname or ""
    except ValueError:
        return ""


def run_program(words: Sequence[str], timeout_s: float) -> str:
    """Return what a program of the CI printed; raise `Problem` when it does not work."""
    try:
        done = subprocess.run(  # noqa: S603  words of our own, without a shell
            list(words), stdin=subprocess.DEVNULL, capture_output=True, timeout=timeout_s, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as fault:
        raise Problem(f"`{words[0]}` could not be run: {type(fault).__name__}") from None
    if done.returncode != 0:
        why = plain(done.stderr.decode("utf-8", "replace"), 200)
        raise Problem(f"`{' '.join(words[:3])}` ended with {done.returncode}: {why}")
    return done.stdout.decode("utf-8", "replace")


@dataclass(frozen=True)
class Machine:
    """Time, chance, the network and other programs; tests bring their own."""

    clock: Callable[[], float] = time.monotonic
    now: Callable[[], float] = time.time
    sleep: Callable[[float], None] = time.sleep
    chance: Callable[[], float] = random.random
    fetch: Callable[[urllib.request.Request, float], Answer] = fetch
    run: Callable[[Sequence[str], float], str] = run_program


# ---------------------------------------------------------------------------------------------------- what is asked


@dataclass(frozen=True)
class Asked:
    """Flags, and CRCR_* variables where a flag is absent; an empty text is absent too."""

    values: Mapping[str, str]
    junit: Sequence[str]
    strict: bool
    dry_run: bool
    unknown: Sequence[str]

    def get(self, name: str, *otherwise: str) -> str:
        return next((text for text in (self.values.get(name, ""), *otherwise) if text), "")


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> Any:
        raise WrongUse(f"{message}. See `report.py --help`.")


def parse(argv: Sequence[str], env: Mapping[str, str]) -> Asked:
    parser = _Parser(
        prog="report.py",
        allow_abbrev=False,
        description="Report a CI job to a CRCR relay. Every flag can also be given as a variable: --job-name is "
        "CRCR_JOB_NAME. What is left out is taken from the CI and from the dispatch that started the run.",
    )
    for name, meaning in OPTIONS.items():
        also = ["--failed-tests-detail"] if name == "failed-tests" else []
        parser.add_argument(f"--{name}", *also, default="", metavar="TEXT", help=meaning)
    parser.add_argument("--junit", action="append", metavar="GLOB", default=[], help=SWITCHES["junit"])
    for name in ("strict", "dry-run"):
        parser.add_argument(f"--{name}", action="store_true", help=SWITCHES[name])
    flags, unknown = parser.parse_known_args(list(argv))
    given = {name: getattr(flags, name.replace("-", "_")) or env.get(variable(name), "") for name in OPTIONS}
    junit = flags.junit or env.get("CRCR_JUNIT", "").splitlines()
    return Asked(
        values={name: text.strip() for name, text in given.items()},
        junit=[pattern.strip() for pattern in junit if pattern.strip()],
        strict=flags.strict or is_true(env.get("CRCR_STRICT", "")),
        dry_run=flags.dry_run or is_true(env.get("CRCR_DRY_RUN", "")),
        unknown=unknown,
    )


def variable(name: str) -> str:
    return "CRCR_" + name.upper().replace("-", "_")


def is_true(text: str) -> bool:
    return text.strip().lower() in ("1", "true", "yes", "on")


def seconds(text: str, voice: Voice) -> float:
    try:
        found = float(text or BUDGET_S)
    except ValueError:
        found = math.nan
    if found >= 0 and math.isfinite(found):
        return found
    voice.warn(f"--max-time {plain(text, 40)!r} is not a number of seconds; {BUDGET_S:.0f} are used")
    return BUDGET_S


# ------------------------------------------------------------------------------------------------ what the CI tells


@dataclass(frozen=True)
class Ci:
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
    """Written when the job began."""


def recognise(env: Mapping[str, str]) -> Ci:
    """The CI that runs us. Variables of several may be set, by hand or by one CI inside another: what one of them
    gives to jobs only (its token, then its run) tells more than the name of another.
    """

    def told(*names: str) -> str:
        return next((env[name].strip() for name in names if env.get(name, "").strip()), "")

    found = [(told(*gives) != "", read(told)) for flag, gives, read in KNOWN_CIS if is_true(told(flag))]
    return max(found, key=lambda each: (each[0], each[1].run_id != ""), default=(False, Ci()))[1]


def _github(told: Callable[..., str]) -> Ci:
    run, attempt = told("GITHUB_RUN_ID"), told("GITHUB_RUN_ATTEMPT")
    page = f"{told('GITHUB_SERVER_URL')}/{told('GITHUB_REPOSITORY')}/actions/runs/{run}"
    page += f"/attempts/{attempt}" if attempt not in ("", "1") else ""
    by_dispatch = told("GITHUB_EVENT_NAME") == "repository_dispatch"
    workflow, job = told("GITHUB_WORKFLOW"), told("GITHUB_JOB")
    event_file = told("GITHUB_EVENT_PATH")
    return Ci("GitHub Actions", run, attempt, workflow, job, page, dispatched=by_dispatch, event_file=event_file)


def _buildkite(told: Callable[..., str]) -> Ci:
    run, attempt = told("BUILDKITE_BUILD_ID"), _one_more(told("BUILDKITE_RETRY_COUNT"))
    job = told("BUILDKITE_LABEL", "BUILDKITE_STEP_KEY")
    job = _leg(job, told("BUILDKITE_PARALLEL_JOB"), told("BUILDKITE_PARALLEL_JOB_COUNT"))
    page = "#".join(filter(None, (told("BUILDKITE_BUILD_URL"), told("BUILDKITE_JOB_ID"))))
    ended = told("BUILDKITE_COMMAND_EXIT_STATUS")
    return Ci("Buildkite", run, attempt, told("BUILDKITE_PIPELINE_SLUG"), job, page, ended)


def _gitlab(told: Callable[..., str]) -> Ci:
    # Only `after_script` knows how the job went; elsewhere its status is "running".
    ended = told("CI_JOB_STATUS").replace("running", "")
    workflow, page = told("CI_PROJECT_PATH", "CI_PIPELINE_NAME"), told("CI_JOB_URL", "CI_PIPELINE_URL")
    run, job = told("CI_PIPELINE_ID"), told("CI_JOB_NAME")
    return Ci("GitLab CI", run, "", workflow, job, page, ended, told("CI_JOB_STARTED_AT"))


def _circleci(told: Callable[..., str]) -> Ci:
    run, workflow = told("CIRCLE_WORKFLOW_ID"), told("CIRCLE_PROJECT_REPONAME")
    job = _leg(told("CIRCLE_JOB"), told("CIRCLE_NODE_INDEX"), told("CIRCLE_NODE_TOTAL"))
    return Ci("CircleCI", run, "", workflow, job, told("CIRCLE_BUILD_URL"))


KNOWN_CIS: Sequence[tuple[str, Sequence[str], Callable[[Callable[..., str]], Ci]]] = (
    ("GITHUB_ACTIONS", ("ACTIONS_ID_TOKEN_REQUEST_URL",), _github),
    ("BUILDKITE", ("BUILDKITE_AGENT_ACCESS_TOKEN",), _buildkite),
    ("GITLAB_CI", ("CI_JOB_TOKEN", "CRCR_ID_TOKEN"), _gitlab),
    ("CIRCLECI", ("CIRCLE_OIDC_TOKEN_V2", "CIRCLE_OIDC_TOKEN"), _circleci),
)
"""What says that it is this one, what it gives to its jobs alone, and how it is read."""


def _one_more(count: str) -> str:
    return str(int(count) + 1) if re.fullmatch(r"[0-9]{1,6}", count) else ""


def _leg(job: str, index: str, count: str) -> str:
    """Parallel copies of one job have one name; each is reported for itself."""
    return f"{job} ({_one_more(index)}/{count})" if job and _one_more(index) and count not in ("", "1") else job


def read_dispatch(env: Mapping[str, str], voice: Voice) -> dict[str, str]:
    """What the dispatch says, from GitHub's event file: by itself, or handed on as inputs of a second workflow."""
    path = env.get("GITHUB_EVENT_PATH", "")
    if not path:
        return {}
    try:
        with open(path, "rb") as file:
            event = json.loads(file.read(MAX_EVENT_BYTES).decode("utf-8", "replace"))
    except (OSError, ValueError, RecursionError) as fault:
        voice.warn(f"the event file of this run cannot be read ({type(fault).__name__}); going on without it")
        return {}
    top = _object(event)
    payload, inputs = _object(top.get("client_payload")), _object(top.get("inputs"))
    relay = _object(payload.get("relay"))
    names = ("delivery_id", "event_type", "callback_url", "audience", "upstream", "head_sha")
    handed_on = {name: inputs.get(name) or inputs.get(name.replace("_", "-")) for name in names}
    own = {
        "delivery_id": payload.get("delivery_id"),
        "event_type": payload.get("event_type") or (top.get("action") if payload else None),
        **{name: relay.get(name) for name in ("callback_url", "audience", "upstream")},
    }
    found = {**handed_on, **{name: value for name, value in own.items() if value}}
    return {name: value.strip() for name, value in found.items() if isinstance(value, str) and value.strip()}


def _object(value: object) -> Json:
    return value if isinstance(value, dict) else {}


# ---------------------------------------------------------------------------------------------------------- patience


def worth_another_try(answer: Answer) -> bool:
    return not answer.final and (answer.status in (0, 408, 425, 429) or answer.status >= 500)


def retry_after(answer: Answer, now: float) -> float:
    """Seconds that the other side asks us to wait; a date is read by its own clock where it tells that."""
    text = answer.headers.get("retry-after", "").strip()
    if re.fullmatch(r"[0-9]{1,9}", text):
        return float(text)
    until, since = _moment(text), _moment(answer.headers.get("date", ""))
    return max(0.0, until - (now if since is None else since)) if until is not None else 0.0


def _moment(text: str) -> float | None:
    try:
        return email.utils.parsedate_to_datetime(text).timestamp()
    except (TypeError, ValueError, IndexError, OverflowError):
        return None


@dataclass
class Line:
    """Asks until an answer counts: full-jitter exponential pauses, what the other side asks for, one budget for all."""

    machine: Machine
    voice: Voice
    budget_s: float = BUDGET_S

    def __post_init__(self) -> None:
        self._ends_at = self.machine.clock() + self.budget_s

    def ask(self, who: str, make: Callable[[], urllib.request.Request]) -> Answer:
        tries = 0
        while True:
            request, left = make(), self._ends_at - self.machine.clock()
            answer = self.machine.fetch(request, min(REQUEST_S, max(5.0, left)))
            tries += 1
            wait = self._pause(tries, retry_after(answer, self.machine.now()))
            if not worth_another_try(answer) or wait is None:
                return answer
            why = answer.fault or f"it answered {answer.status} {plain(_error(answer).get('code', ''), 40)}".strip()
            self.voice.say(f"{who} cannot take it now ({why}); trying again in {wait:.1f} s")
            self.machine.sleep(wait)

    def _pause(self, tries: int, asked_s: float) -> float | None:
        """Seconds until the next try; None when time is up. The last try is made when the budget ends."""
        left = self._ends_at - self.machine.clock()
        jitter = self.machine.chance() * min(LONGEST_PAUSE_S, 2.0 ** min(tries, 10))
        return min(left, max(0.1, asked_s + jitter)) if left > 0 else None


def _error(answer: Answer) -> Json:
    return _object(answer.json().get("error"))


def address_problem(address: str) -> str | None:
    """Why a token must not be sent there."""
    try:
        parts = urllib.parse.urlsplit(address)
        host, _ = parts.hostname or "", parts.port
    except ValueError:
        return "it is no address"
    if not host or parts.username is not None or not address.isascii() or re.search(r"[\x00-\x20\x7f]", address):
        return "it is no plain address"
    if parts.scheme == "https" or (parts.scheme == "http" and is_loopback(host)):
        return None
    return "only https:// is used, because the report carries a token"


# ---------------------------------------------------------------------------------------------------- which relay

PIN_EXAMPLE = '"https://RELAY/github/callback AUDIENCE"'
# Where the two lines go, for each CI. GitLab's variables give way to those of a trigger; a flag gives way to nothing.
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
class Relay:
    """A pair that the workflow pins: where reports may go, and the audience that tokens may have."""

    url: str
    audience: str

    def __str__(self) -> str:
        return f"{plain(self.url, 200)} with the audience {plain(self.audience, 200)}"


def pinned_relays(text: str) -> list[Relay]:
    """The pairs, one a line: an address, a space, an audience."""
    pins = []
    for line in filter(None, map(str.strip, text.splitlines())):
        address, *rest = line.split(None, 1)
        url, audience = callback_address(address), "".join(rest)
        wrong = address_problem(url) or ("" if audience else "its audience is missing")
        if wrong:
            raise NotPinned(
                f"the line {plain(line, 300)!r} of relays (CRCR_RELAYS) pins nothing: {wrong}. "
                f"Write {PIN_EXAMPLE}, one relay a line."
            )
        pins.append(Relay(url, audience))
    return list(dict.fromkeys(pins))


def choose_relay(asked: Asked, ci: Ci, dispatch: Mapping[str, str]) -> Relay:
    """The pinned relay that is meant. Whatever names it (dispatch, inputs, flags) selects and adds nothing: everyone
    who may write to the repository can send a dispatch, and a token is good wherever its audience is believed.
    """
    pins = pinned_relays(asked.get("relays"))
    if not pins:
        raise NotPinned(
            "no relay is pinned in this workflow, so no token was requested and nothing was sent. "
            "Add the two lines below, with your relay's address and audience.",
            (*PIN_LINES.get(ci.name, ANYWHERE_LINES), *WHERE_TO_FIND),
        )
    url = callback_address(asked.get("callback-url", dispatch.get("callback_url", "")))
    audience = asked.get("audience", dispatch.get("audience", ""))
    meant = [pin for pin in pins if url in ("", pin.url) and audience in ("", pin.audience)]
    if len(meant) == 1:
        return meant[0]
    named = f"{plain(url, 200) or '(no address)'} with the audience {plain(audience, 200) or '(none)'}"
    pinned = f"Pinned in relays (CRCR_RELAYS): {'; '.join(map(str, pins))}."
    if meant:
        raise NotPinned(
            f"several relays are pinned, and the dispatch names {named}, which does not tell which is meant: nothing "
            f"was sent. {pinned} Pass callback-url and audience of one of them."
        )
    raise NotPinned(
        f"the dispatch asks for a report to {named}, which this workflow does not pin: no token was requested and "
        f"nothing was sent. {pinned} If your relay has moved, pin what its operator tells you; if not, somebody who "
        "may send dispatches here wants a token of yours."
    )


def callback_address(address: str) -> str:
    """An address as it is compared and used: one slash at the end does not count, and a relay's bare address is enough.
    Nothing else is made alike; upper case, ports and paths count as they are written.
    """
    plain_end = address[:-1] if address.endswith("/") else address
    return plain_end + "/github/callback" if re.fullmatch(r"https?://[^/?#]+", plain_end) else plain_end


# ------------------------------------------------------------------------------------------------------------ tokens


def is_token(text: str) -> bool:
    return re.fullmatch(r"[A-Za-z0-9_=-]+(\.[A-Za-z0-9_=-]+){2}", text) is not None


@dataclass
class Tokens:
    """The job's OIDC token, asked for again when it grows old."""

    source: Callable[[], str]
    machine: Machine
    voice: Voice

    def __post_init__(self) -> None:
        self._token = ""
        self._since = 0.0

    def current(self) -> str:
        if not self._token:
            self._ask()
        elif self.machine.clock() - self._since > TOKEN_STAYS_FRESH_S:
            try:
                self._ask()
            except Problem as problem:
                self.voice.say(f"no new token ({problem}); the old one is used")
        return self._token

    def renew(self) -> bool:
        """Whether there is a new token; a CI that gives one for the whole job gives the same again."""
        before = self._token
        try:
            self._ask()
        except Problem as problem:
            self.voice.say(f"no new token ({problem})")
        return self._token != before

    def _ask(self) -> None:
        token = self.source().strip()
        if not is_token(token):
            raise Problem("what the CI gave is not an OIDC token (three parts with dots between them)")
        self._token, self._since = token, self.machine.clock()


def token_source(asked: Asked, ci: Ci, env: Mapping[str, str], relay: Relay, line: Line) -> Callable[[], str]:
    """How this CI gives a token for the relay; each call asks anew."""
    if asked.get("token-file"):
        return lambda: _token_file(asked.get("token-file"))
    named = asked.get("token-env", "CRCR_ID_TOKEN" if env.get("CRCR_ID_TOKEN") else "")
    if named or ci.name not in ("GitHub Actions", "Buildkite", "CircleCI"):
        return lambda: _token_variable(named, ci, env)
    if ci.name == "GitHub Actions":
        return lambda: _github_token(env, relay, line)
    run = line.machine.run
    if ci.name == "Buildkite":
        return lambda: _buildkite_token(relay, run)
    claims = json.dumps({"aud": relay.audience})
    return lambda: run(["circleci", "run", "oidc", "get", "--claims", claims], PROGRAM_S)


def _token_file(path: str) -> str:
    try:
        with open(path, encoding="utf-8") as file:
            return file.read(MAX_ANSWER_BYTES)
    except (OSError, ValueError) as fault:
        raise Problem(f"the token file cannot be read: {type(fault).__name__}") from None


def _token_variable(name: str, ci: Ci, env: Mapping[str, str]) -> str:
    if name and env.get(name):
        return env[name]
    if name:
        raise Problem(f"the variable {plain(name, 100)}, which should hold the token, is empty")
    if ci.name == "GitLab CI":
        raise Problem(
            "there is no token: declare `id_tokens: {CRCR_ID_TOKEN: {aud: <the relay's audience>}}` in the job"
        )
    raise Problem("this CI is not known, so its token must be given: pass --token-file or --token-env")


def _github_token(env: Mapping[str, str], relay: Relay, line: Line) -> str:
    address, key = env.get("ACTIONS_ID_TOKEN_REQUEST_URL", ""), env.get("ACTIONS_ID_TOKEN_REQUEST_TOKEN", "")
    if not address or not key:
        raise Problem("this job may not ask for a token: give it `permissions: id-token: write`")
    if address_problem(address):
        raise Problem(f"the token's address is not used: {address_problem(address)}")
    whole = f"{address}{'&' if '?' in address else '?'}audience={urllib.parse.quote(relay.audience, safe='')}"
    headers = {"Authorization": f"Bearer {key}", "Accept": "application/json", "User-Agent": "crcr-reporter"}
    answer = line.ask("GitHub's token service", lambda: urllib.request.Request(whole, headers=headers))
    token = answer.json().get("value")
    if answer.status == 200 and isinstance(token, str):
        # Only who gave it reads this as a command: in the log of another CI it would be the token itself.
        line.voice.mask(token.strip()) if is_token(token.strip()) else None
        return token
    raise Problem(
        f"GitHub gave no token ({answer.fault or answer.status}); has the job `permissions: id-token: write`?"
    )


def _buildkite_token(relay: Relay, run: Callable[[Sequence[str], float], str]) -> str:
    words = ["buildkite-agent", "oidc", "request-token", "--audience", relay.audience]
    try:
        return run([*words, "--claim", "organization_id,pipeline_id"], PROGRAM_S)
    except Problem:  # an older agent cannot add claims; a registration by slugs still knows its token
        return run(words, PROGRAM_S)


# ------------------------------------------------------------------------------------------------------- JUnit files


@dataclass
class Tally:
    passed: int = 0
    failed: int = 0
    skipped: int = 0
    failures: list[dict[str, str]] = field(default_factory=list)

    def add(self, other: Tally) -> None:
        self.passed += other.passed
        self.failed += other.failed
        self.skipped += other.skipped
        self.failures += other.failures[: MAX_FAILED_TESTS - len(self.failures)]

    def counts(self) -> dict[str, int]:
        total = self.passed + self.failed + self.skipped
        return {"passed": self.passed, "failed": self.failed, "skipped": self.skipped, "total": total}


class Unreadable(Exception):
    """A file that is not read as JUnit XML, and why."""


def short(text: str) -> str:
    """At most 1 KiB, cut between characters."""
    return text[:MAX_TEXT_BYTES].encode("utf-8", "replace")[:MAX_TEXT_BYTES].decode("utf-8", "ignore")


def failed_test(told: Json) -> dict[str, str]:
    """Name, file and message, as far as they are told."""
    texts = {name: value for name, value in told.items() if isinstance(value, str)}
    name, group = texts.get("name", ""), texts.get("classname", "")
    texts["name"] = (name if not group or name.startswith(group) else f"{group}.{name}") or "(no name)"
    texts["message"] = texts.get("message") or texts.get("stacktrace", "")
    return {key: short(texts[key]) for key in ("name", "file", "message") if texts.get(key)}


class JunitReader:
    """One file, as a stream. Test cases are counted one by one, because the totals in attributes are often wrong."""

    def __init__(self) -> None:
        self.tally = Tally()
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
        # JUnit needs no document type, and entities are how a small file becomes a huge or a foreign one.
        self._parser.StartDoctypeDeclHandler = self._refuse
        self._parser.EntityDeclHandler = self._refuse

    def feed(self, data: bytes, *, last: bool = False) -> None:
        try:
            self._parser.Parse(data, last)
        except (expat.ExpatError, ValueError, LookupError) as fault:
            raise Unreadable(f"it is no well-formed XML ({plain(fault, 100)})") from None
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
        # Reruns and flaky failures are children of other names: what counts is how the case ended.

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
        return failed_test({**case["attributes"], "file": file, "message": case["message"]})


def read_junit(
    patterns: Sequence[str], voice: Voice, machine: Machine, room: int = MAX_JUNIT_BYTES_IN_ALL
) -> Tally | None:
    """Counts of all files that match; None when nothing could be read. Broken files are left out and told."""
    whole, read, left_out, until = Tally(), 0, 0, machine.clock() + JUNIT_S
    for number, path in enumerate(matching_files(patterns, voice)):
        if number == MAX_JUNIT_FILES or machine.clock() > until:
            voice.warn(f"there are too many test files, or they take too long: only the first {number} were read")
            break
        try:
            tally, size = read_file(path, room)
        except (Unreadable, OSError) as fault:
            left_out += 1
            why = fault if isinstance(fault, Unreadable) else type(fault).__name__
            voice.warn(f"test file {plain(path, 200)} was left out: {why}") if left_out <= 5 else None
            continue
        whole.add(tally)
        read, room = read + 1, room - size
    if not read and not left_out:
        voice.warn(f"no test file matches {plain(', '.join(patterns), 200)}")
    elif left_out:
        voice.warn(f"{left_out} of {read + left_out} test files were left out; their tests are not counted")
    return whole if read else None


def read_file(path: str, room: int) -> tuple[Tally, int]:
    # A link or a pipe may have been put in the place of the file since it was found.
    flags = os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
    with os.fdopen(os.open(path, flags), "rb") as file:
        found = os.fstat(file.fileno())
        if not stat.S_ISREG(found.st_mode):
            raise Unreadable("it is not a regular file")
        if found.st_size > MAX_JUNIT_BYTES:
            raise Unreadable(f"it is larger than {MAX_JUNIT_BYTES >> 20} MiB")
        reader, size = JunitReader(), 0
        while size <= min(room, MAX_JUNIT_BYTES):
            data = file.read(64 * 1024)
            if not data:
                reader.feed(b"", last=True)
                return reader.tally, size
            size += len(data)
            reader.feed(data)
    raise Unreadable(f"the files together are larger than {MAX_JUNIT_BYTES_IN_ALL >> 20} MiB, or it grows")


def matching_files(patterns: Sequence[str], voice: Voice) -> Iterator[str]:
    """Regular files that match, each once; links are not followed, so no folder can lead round in a circle."""
    seen = set()
    for pattern in patterns:
        wanted = os.path.normpath(pattern).replace(os.sep, "/")
        wanted += "/**/*.xml" if os.path.isdir(wanted) else ""
        fixed = re.split(r"[*?\[]", wanted, maxsplit=1)[0]
        folder = fixed.rpartition("/")[0] or ("/" if fixed.startswith("/") else ".")
        matches = Glob(wanted).matches
        for path in [wanted] if fixed == wanted else walk(folder, voice):
            if path not in seen and matches(path) and _is_regular(path):
                seen.add(path)
                yield path


def walk(folder: str, voice: Voice, most: int = MAX_PATHS_VISITED) -> Iterator[str]:
    visited = 0
    for place, folders, files in os.walk(folder, followlinks=False):
        folders.sort()
        visited += len(folders) + len(files)
        if visited > most:
            voice.warn(f"more than {most} files below {plain(folder, 200)}; name a smaller folder")
            return
        for name in sorted(files):
            yield os.path.normpath(os.path.join(place, name)).replace(os.sep, "/")


def _is_regular(path: str) -> bool:
    try:
        return stat.S_ISREG(os.lstat(path).st_mode)
    except (OSError, ValueError):
        return False


class Glob:
    """`*` and `?` stay within a folder, `**/` is any number of folders, `**` is anything, `[ab]` is one of these.

    A path is matched in one pass, with all ways of reading it side by side: the code under test chooses the names of
    its files, and no name may make the match slow.
    """

    def __init__(self, pattern: str) -> None:
        self._steps = re.findall(r"\*\*/|\*\*|\*|\?|\[!?[^]/]+\]|.", pattern, re.DOTALL)
        wild = [place for place, step in enumerate(self._steps) if len(step) > 1 or step in "*?"] or [len(self._steps)]
        self._start = "".join(self._steps[: wild[0]])
        self._end = "".join(self._steps[wild[-1] + 1 :])

    def matches(self, path: str) -> bool:
        if not path.startswith(self._start) or not path.endswith(self._end):
            return False
        places = self._onward({(0, False)})
        for character in path:
            places = self._onward({after for place in places for after in self._take(place, character)})
        return (len(self._steps), False) in places

    def _take(self, at: tuple[int, bool], character: str) -> Iterator[tuple[int, bool]]:
        """The places after a character; `inside` a folder, `**/` waits for its end."""
        place, inside = at
        step = self._steps[place] if place < len(self._steps) else ""
        if step == "**/":
            if inside or character != "/":
                yield place, character != "/"
        elif step == "**" or (step == "*" and character != "/"):
            yield place, False
        elif step and self._is_one(step, character):
            yield place + 1, False

    def _onward(self, places: set[tuple[int, bool]]) -> set[tuple[int, bool]]:
        """Add the places behind what may stand for nothing."""
        found = set(places)
        for place, inside in places:
            while not inside and place < len(self._steps) and self._steps[place] in ("**/", "**", "*"):
                place += 1  # noqa: PLW2901  the next place has the same rule
                found.add((place, False))
        return found

    @staticmethod
    def _is_one(step: str, character: str) -> bool:
        if step == "?":
            return character != "/"
        if len(step) == 1:
            return step == character
        chosen = step[1:-1].lstrip("!")
        ranges = re.findall(r"(.)-(.)|(.)", chosen, re.DOTALL)
        found = any(low <= character <= high if high else character == one for low, high, one in ranges)
        return found != (step[1] == "!")


# -------------------------------------------------------------------------------------------------------- the report


@dataclass(frozen=True)
class Report:
    body: Json

    @property
    def workflow(self) -> Json:
        return _object(self.body["workflow"])

    def bytes(self) -> bytes:
        """The body as it is sent; failed tests are cut until it fits, because the counts say the same."""
        while True:
            text = json.dumps(self.body, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "replace")
            tests = self.workflow.get("failed_tests")
            if len(text) <= MAX_BODY_BYTES or not tests:
                return text
            del tests[len(tests) // 2 :]

    def late_start(self) -> Report:
        """The start that got lost, sent after the fact: its times measure nothing."""
        kept = (
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
        own = {name: self.workflow[name] for name in kept if name in self.workflow}
        return Report({**self.body, "workflow": {**own, "status": "in_progress", "late": True}})

    def without_tests(self) -> Report:
        own = {name: value for name, value in self.workflow.items() if name != "failed_tests"}
        return Report({**self.body, "workflow": own})


def make_report(asked: Asked, ci: Ci, dispatch: Mapping[str, str], voice: Voice, machine: Machine) -> Report | None:
    """The report, or None when there is nothing to report."""
    status = asked.get("status")
    if status not in ("in_progress", "completed"):
        raise WrongUse(f"--status is {plain(status, 40)!r}; it must be in_progress or completed")
    event = asked.get("event-type", dispatch.get("event_type", ""))
    commit = asked.get("head-sha", dispatch.get("head_sha", ""))
    if ci.dispatched and event in SELF_REPORTS and not asked.get("event-type"):
        raise Problem(
            f"the dispatch calls itself {event}, and nothing was sent: a dispatch is answered under its delivery's id. "
            f"If this workflow tests the upstream by itself, write event-type (CRCR_EVENT_TYPE) {event} into it."
        )
    if event in SELF_REPORTS and status == "in_progress":
        voice.notice(f"a {event} report is sent once, when it is completed: nothing to send now")
        return None
    own_id = commit or f"{event}-{asked.get('run-id', ci.run_id)}" if event in SELF_REPORTS else ""
    delivery = asked.get("delivery-id", dispatch.get("delivery_id", ""), own_id)
    if not delivery:
        _no_delivery(ci, voice)
        return None
    upstream = asked.get("upstream", dispatch.get("upstream", ""))
    return Report(
        {
            "event_type": event,
            "delivery_id": delivery,
            "payload": _payload(upstream, commit) if event in SELF_REPORTS else {},
            "workflow": {
                **_workflow(status, asked, ci, voice, machine),
                **start_of(asked, ci, voice, machine, status=status, event=event),
            },
        }
    )


def _no_delivery(ci: Ci, voice: Voice) -> None:
    if ci.dispatched:
        raise Problem("the dispatch that started this run has no delivery_id, so it is not one of the relay's")
    voice.notice(
        "this run was not started by a dispatch of the relay (there is no delivery id): nothing to report. "
        "In a workflow that another one starts, pass delivery-id on."
    )


def _workflow(status: str, asked: Asked, ci: Ci, voice: Voice, machine: Machine) -> Json:
    """What is told of the job; what is not known is left out."""
    workflow: Json = {
        "schema_version": "1",
        "status": status,
        "name": _name(asked.get("workflow-name", ci.workflow, ci.name, "CI"), "workflow-name", voice),
        "url": asked.get("url", ci.url),
        "run_id": asked.get("run-id", ci.run_id),
        "run_attempt": asked.get("run-attempt", ci.run_attempt),
        "job_name": _name(asked.get("job-name", ci.job), "job-name", voice),
        "check_run_id": asked.get("check-run-id"),
        "artifact_url": asked.get("artifact-url"),
        "environment": _json_of(asked, "environment", dict, voice),
        "completed_at": _stamp(machine.now()) if status == "completed" else "",
    }
    if status == "completed":
        workflow.update(_result(asked, ci, voice, machine))
    for name in ("run_id", "job_name"):
        if not workflow[name]:
            raise WrongUse(f"--{name.replace('_', '-')} is needed: this CI is not known, so it must be given")
    return {name: value for name, value in workflow.items() if value not in ("", None)}


def _payload(upstream: str, commit: str) -> Json:
    """Dispatched runs echo nothing: the relay knows what it sent. A nightly says what it tested."""
    repository = {"repository": {"full_name": upstream}} if upstream else {}
    return {**({"head_sha": commit} if commit else {}), **repository}


def _result(asked: Asked, ci: Ci, voice: Voice, machine: Machine) -> Json:
    tally = read_junit(asked.junit, voice, machine) if asked.junit else None
    counts = _json_of(asked, "test-results", dict, voice) or (tally.counts() if tally else None)
    told = (_json_of(asked, "failed-tests", list, voice) or [])[:MAX_FAILED_TESTS]
    named = [failed_test({"name": each} if isinstance(each, str) else _object(each)) for each in told]
    failures = named or (tally.failures if tally else [])
    if counts:
        said = ", ".join(f"{plain(count, 20)} {plain(name, 20)}" for name, count in list(counts.items())[:8])
        voice.say(f"tests: {said}")
    conclusion = conclusion_of(asked.get("conclusion", ci.conclusion), voice)
    return {"conclusion": conclusion, "test_results": counts, "failed_tests": failures or None}


def start_of(asked: Asked, ci: Ci, voice: Voice, machine: Machine, *, status: str, event: str) -> Json:
    """When the job began. Of a dispatched job the relay heard at its start; a nightly is found by this alone."""
    given, now = asked.get("started-at"), machine.now()
    if given and not re.fullmatch(TIME_FORM, given):
        voice.warn(f"--started-at {plain(given, 40)!r} is no time such as {_stamp(now)}; it is left out")
        given = ""
    known = given or (ci.started_at if status == "completed" else _stamp(now))
    if not known and event in SELF_REPORTS:
        known = _stamp(_written_at(ci.event_file, now))
    return {"started_at": known} if known else {}


def _written_at(path: str, now: float) -> float:
    """When a file was written; now, when that cannot be told."""
    try:
        at = os.stat(path).st_mtime
    except (OSError, ValueError):
        return now
    return at if now - LONGEST_JOB_S < at < now else now


def conclusion_of(word: str, voice: Voice) -> str:
    """One of the legal conclusions for the words and exit codes of any CI; "" when it is none."""
    plain_word = word.strip().lower()
    if plain_word in CONCLUSIONS:
        return plain_word
    if plain_word in CONCLUSION_WORDS:
        return CONCLUSION_WORDS[plain_word]
    if re.fullmatch(r"-?[0-9]{1,10}", plain_word):
        return "failure"
    said = f"{plain(word, 40)!r} is no conclusion" if word else "no conclusion is given"
    voice.warn(f"{said}, so the relay counts the job as failed. Legal are {', '.join(CONCLUSIONS)}.")
    return ""


def _json_of(asked: Asked, name: str, kind: type, voice: Voice) -> Any:
    text = asked.get(name)
    if not text:
        return None
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        found = None
    if isinstance(found, kind):
        return found
    voice.warn(f"--{name} is not a JSON {'object' if kind is dict else 'list'}; the report is sent without it")
    return None


def _name(text: str, flag: str, voice: Voice) -> str:
    if len(text) > MAX_NAME_CHARS:
        voice.warn(f"--{flag} has {len(text)} characters; the first {MAX_NAME_CHARS} are used")
    return text[:MAX_NAME_CHARS]


def _stamp(at: float) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(at))


# ---------------------------------------------------------------------------------------------- sending, explaining

# What a refusal means, and what to do about it.
MEANING = dict(
    line.split(": ", 1)
    for line in """\
not_authentic: the relay does not accept this job's token. Use the relay's audience; on GitHub the job needs `permissions: id-token: write`.
not_registered: the relay knows this CI, but not this pipeline. Send the ids that it names to its operator, who registers the pipeline.
identity_changed: the repository's name now belongs to another repository id. If it was made anew on purpose, its operator can accept that.
not_allowlisted: this repository is not on the upstream's allowlist. Ask the upstream's maintainers for an entry; a fork needs its own.
suspended: an operator has suspended this repository. Ask the relay's operator why.
rate_limited: this repository sends more reports than the relay takes. Start fewer jobs at once, give max-time more seconds, or ask for a higher limit.
unknown_delivery: the relay has not dispatched this delivery to this repository. Pass the dispatch's delivery_id on unchanged, in the repository that got it.
claim_mismatch: the report names another run than the token proves. Report from the run that did the work; do not set run-id or run-attempt by hand.
wrong_event: runs that this event starts may not report. Start the workflow by repository_dispatch, or ask for `allow_events` in the allowlist entry.
wrong_ref: this run is of another branch or tag than the default branch. Start the workflow on the default branch, or ask for `report_refs` in the allowlist entry for nightly reports of another ref.
run_bound_elsewhere: this run already answers another delivery. Use one run for each delivery, and see that delivery-id is not a fixed value.
ambiguous_job: several jobs of this run have this name. Give each its own job-name, in a matrix with the values of the leg in it.
no_in_progress: the relay never heard that this job began. Send in_progress first, with the same job-name as completed.
conflicting_result: this job was reported before with another result, and the worse one counts. Report each job once, under a job-name of its own.
bad_report: the relay cannot read the report. Correct the field that it names; if you did not set it, update the reporter.
bad_request: the relay cannot read the report. Update the reporter.
too_large: the report is larger than the relay takes. Send fewer failed tests.
not_found: no relay is at this address. Check its address in relays, which ends with /github/callback.
method_not_allowed: this address takes no reports. Check its address in relays, which ends with /github/callback.
""".splitlines()
)
BUSY = "the relay could not take it in the time that there was. Run the job again if its result matters."
REFUSED = "the relay refuses the report. Do what it says, or ask its operator."


@dataclass
class Sending:
    relay: Relay
    tokens: Tokens
    line: Line
    voice: Voice

    def __post_init__(self) -> None:
        self._renewed = False

    def deliver(self, report: Report) -> Answer:
        """Send it; where the relay says what is missing, send that first. Both may happen once."""
        answer = self._post(report)
        if answer.status == 413 and "failed_tests" in report.workflow:
            self.voice.notice("the report is too large on its way: it is sent again without the failed tests")
            report = report.without_tests()
            answer = self._post(report)
        if _error(answer).get("code") != "no_in_progress" or report.workflow["status"] != "completed":
            return answer
        self.voice.notice("the relay does not know that this job began: that is sent now, marked late")
        late = self._post(report.late_start())
        return self._post(report) if 200 <= late.status < 300 else late

    def _post(self, report: Report) -> Answer:
        body = report.bytes()
        answer = self.line.ask("the relay", lambda: self._request(body))
        refused = answer.status == 401 and _error(answer).get("code") == "not_authentic"
        if refused and not self._renewed and self.tokens.renew():
            self._renewed = True
            self.voice.say("the relay does not take the token; trying once more with a new one")
            answer = self.line.ask("the relay", lambda: self._request(body))
        return answer

    def _request(self, body: bytes) -> urllib.request.Request:
        headers = {
            "Authorization": f"Bearer {self.tokens.current()}",
            "Content-Type": "application/json",
            "Accept": "application/json",
            "User-Agent": "crcr-reporter",
        }
        return urllib.request.Request(self.relay.url, data=body, headers=headers, method="POST")


def explain(answer: Answer, report: Report, voice: Voice) -> None:
    """Say what became of the report; raise `Problem` when it was not recorded."""
    told, own = answer.json(), report.workflow
    if not (200 <= answer.status < 300 and told and told.get("ok") is not False):
        raise Problem(refusal(answer))
    hint = f" {plain(told['hint'])}" if told.get("hint") else ""
    if told.get("status") == "ignored":
        voice.notice(f"the relay ignores this report: {plain(told.get('reason', 'it gives no reason'))}.{hint}")
        return
    result = f" ({own['conclusion']})" if own.get("conclusion") else ""
    again = "; it was already recorded" if told.get("repeat") is True else ""
    voice.say(f"recorded: {plain(own['job_name'], 100)} is {own['status']}{result}{again}")
    if told.get("warning"):
        named = f" It is recorded as {plain(told['job_name'], 260)!r}." if told.get("job_name") else ""
        voice.notice(f"the relay says: {plain(told['warning'])}.{named}")
    if told.get("sandbox"):
        voice.notice(f"this went into the relay's sandbox, where it counts for nothing and is removed soon.{hint}")


def refusal(answer: Answer) -> str:
    if answer.final:
        return f"not recorded: the relay's certificate is not trusted ({answer.fault}). Check its address in relays and the clock."
    if answer.status == 0:
        return f"not recorded: the relay cannot be reached ({answer.fault}). Check its address in relays, proxy and network."
    if 300 <= answer.status < 400:
        return f"not recorded: the address answers with a redirect ({answer.status}), which is never followed. Correct it in relays."
    if answer.status < 300:
        return f"not recorded: what answered ({answer.status}) is no relay. Check its address in relays."
    error = _error(answer)
    code = plain(error.get("code") or "", 60)
    otherwise = BUSY if worth_another_try(answer) else MEANING["not_found"] if answer.status == 404 else REFUSED
    said = [f"The relay says: {plain(error['detail'])}."] if error.get("detail") else []
    said += [f"Its hint: {plain(error['hint'])}."] if error.get("hint") else []
    said += [f"Request {plain(error['request_id'], 80)}."] if error.get("request_id") else []
    return " ".join([f"not recorded ({answer.status} {code}): {MEANING.get(code, otherwise)}", *said])


# -------------------------------------------------------------------------------------------------------------- main


def run(asked: Asked, env: Mapping[str, str], voice: Voice, machine: Machine) -> None:
    """Report once; return when that is done or there is nothing to do, raise `Problem` otherwise."""
    if asked.unknown:
        voice.warn(f"not understood and left out: {plain(' '.join(asked.unknown), 200)}")
    ci, dispatch = recognise(env), read_dispatch(env, voice)
    report = make_report(asked, ci, dispatch, voice, machine)
    if report is None:
        return
    relay = choose_relay(asked, ci, dispatch)
    if asked.dry_run:
        show(report, relay, voice)
        return
    line = Line(machine, voice, seconds(asked.get("max-time"), voice))
    tokens = Tokens(token_source(asked, ci, env, relay, line), machine, voice)
    explain(Sending(relay, tokens, line, voice).deliver(report), report, voice)


def show(report: Report, relay: Relay, voice: Voice) -> None:
    voice.say(f"would be sent to {plain(relay.url)}")
    voice.say(f"with a token for {plain(relay.audience)}")
    said = [_object(report.body["payload"]).get("head_sha", ""), report.body["delivery_id"]]
    if report.body["event_type"] in SELF_REPORTS and not any(re.fullmatch("[0-9a-fA-F]{40}", each) for each in said):
        shown = plain(said[0] or said[1], 80)
        voice.warn(f"{shown!r} is not a commit (40 hex digits), so the result would stand for none: pass head-sha")
    report.bytes()
    # ASCII keeps hostile text harmless, and this escape is the same JSON without GitHub's older command marker.
    text = json.dumps(report.body, indent=2).replace("##[", r"#\u0023[")
    voice.out.write(text + "\n")


def main(
    argv: Sequence[str] | None = None,
    env: Mapping[str, str] | None = None,
    machine: Machine | None = None,
    out: TextIO | None = None,
) -> int:
    """The exit code: 1 when no pinned relay is meant; else 0, or with --strict 1 when the report is not recorded and 2
    when the call makes no sense.
    """
    words = sys.argv[1:] if argv is None else argv
    environ = os.environ if env is None else env
    strict = "--strict" in words or is_true(environ.get("CRCR_STRICT", ""))
    on_github = recognise(environ).name == "GitHub Actions"
    voice = Voice(out or sys.stdout, annotate=on_github, strict=strict)
    try:
        run(parse(words, environ), environ, voice, machine or Machine())
    except NotPinned as problem:
        voice.refuse(str(problem), problem.lines)
        return 1
    except WrongUse as problem:
        voice.problem(str(problem))
        return 2 if strict else 0
    except Problem as problem:
        voice.problem(str(problem))
    except Exception as fault:  # noqa: BLE001  a fault of the reporter must not turn anybody's build red
        voice.problem(f"the reporter itself failed: {plain(f'{type(fault).__name__}: {fault}', 200)}")
    else:
        return 0
    return 1 if strict else 0


if __name__ == "__main__":
    if hasattr(sys.stdout, "reconfigure"):
        sys.stdout.reconfigure(errors="backslashreplace")
    sys.exit(main())
