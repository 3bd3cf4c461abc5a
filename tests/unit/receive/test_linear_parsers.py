"""Parsers of untrusted text take linear time: eight times the text takes about eight times as long.

Cost is measured in executed lines of Python, which is exact, and in processor time, which includes regular expressions. The time is
the best of several runs, so that a busy machine does not fail the test; a quadratic parser takes 64 times as long, and 20 times are
allowed.
"""

import gc
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import timedelta
from ipaddress import ip_network
from types import FrameType
from typing import Any

import pytest

from crcr.decide.checks.commit import FailedTestExcerpt
from crcr.decide.checks.text import markdown
from crcr.decide.checks.text.check import annotations
from crcr.decide.commands.comment_lines import command_lines
from crcr.decide.commands.grammar import has_command, parse_commands
from crcr.decide.dispatch.payload import encode_json, trim_payload
from crcr.decide.dispatch.plan import queued_pull_number
from crcr.decide.failures.fingerprint import fingerprint_failure, normal_line
from crcr.decide.failures.history import BackendHour, BaseResult, RecordedFailure
from crcr.decide.github.workflow_runs import delivery_ids_in, parse_check_run_id, path_without_ref
from crcr.decide.globs import name_glob, path_glob
from crcr.decide.jobs.log_excerpt import clean_line, mask_secrets
from crcr.decide.jobs.report import FailedTest
from crcr.decide.model import RepoName
from crcr.deliver.handlers.workflow_yaml import workflow_facts
from crcr.errors import CrcrError
from crcr.github.api.request_response import Response, find_next_link
from crcr.log import clean_block, clean_text
from crcr.receive.allowlist_yaml import read_allowlist
from crcr.receive.callback.parse_report import parse_report
from crcr.receive.http.client_address import client_address
from crcr.receive.oidc.claims_to_identity import _workflow_ref
from crcr.receive.webhook.parse import parse_event
from crcr.record.views.search.search_terms import history_search_text
from crcr.show.csv.writer import file_name, format_cell
from crcr.show.render.matrix import parse_shard, shorten_names
from crcr.show.render.safe_text import safe_link, visible
from crcr.show.urls.cursors import decode
from support.downstream.reporter import reporter
from support.failures.judged_failures import NOON, judge, other

GROWTH = 8
TOO_STEEP = 20.0
"""The most that eight times the text may cost; a square would be 64."""
_SHORTEST_S = 0.0005
"""What is faster is not measured exactly."""
_TRIES = 6

UPSTREAM = RepoName("org/up")
PROXIES = (ip_network("10.0.0.0/8"),)
STARS = "*a" * 60


@dataclass(frozen=True)
class Parser:
    name: str
    parse: Callable[[Any], object]
    shapes: dict[str, Callable[[int], Any]]
    """Hostile texts of a size, by what is hostile about them."""
    size: int = 2_048


def repeat(piece: str, *, before: str = "", after: str = "") -> Callable[[int], str]:
    """The piece repeated up to a number of characters."""
    return lambda size: before + (piece * (size // len(piece) + 1))[:size] + after


def runs_of_backticks(size: int) -> str:
    """Runs of all lengths, of which none closes another."""
    text, length = "", 1
    while len(text) < size:
        text += "`" * length + " "
        length = length % 300 + 1
    return f"{text[:size]}\n/crcr status\n"


def pairs_of_backticks(size: int) -> str:
    return "`" + "a` ``b`` `" * (size // 10) + "\n/crcr status\n`"


def repeated_lines(piece: str) -> Callable[[int], str]:
    def text(size: int) -> str:
        line = (piece * (40 // len(piece)))[:40]
        return "\n".join([line] * (size // 41)) + "\n\n/crcr status"

    return text


COMMENTS = {
    "backtick runs of many lengths": runs_of_backticks,
    "code spans": pairs_of_backticks,
    "lone backticks": repeat("` ``\n``` ", after="\n/crcr status"),
    "one run": repeat("`", after="x`\n/crcr status"),
    "backslashes": repeat("\\", after="`\n/crcr status"),
    "lines of code spans": repeated_lines("`a` "),
    "lines of open code": repeated_lines("`a "),
    "fences": repeated_lines("```"),
    "tildes": repeat("~~~ ~", after="\n/crcr status"),
    "comments": repeat("<!-- -->", after="\n/crcr status"),
    "open comments": repeat("<!--", after="\n/crcr status"),
    "tags": repeat("<pre></pre>", after="\n/crcr status"),
    "open tags": repeat("<pre>", after="\n/crcr status"),
    "attributes": repeat("""<b title='">'>""", after="\n/crcr status"),
    "links": repeat("[a](b) ", after="\n/crcr status"),
    "open links": repeat("](", after="\n/crcr status"),
    "pictures": repeat("![", after="\n/crcr status"),
    "spaces": repeat(" ", after="\n/crcr status"),
    "quotes": repeated_lines("> "),
    "commands": repeated_lines("/crcr status "),
}
COMMANDS = {
    "quotes": repeat('"', before="/crcr waive o/r:"),
    "until": repeat("until ", before="/crcr waive o/r:", after="because x"),
    "at": repeat("at  ", before="/crcr waive o/r:", after="because x"),
    "heads": repeat("at 1a2b3c4 ", before="/crcr waive o/r:", after="because x"),
    "because": repeat("because ", before="/crcr waive o/r:"),
    "digits": repeat("0", before="/crcr waive o/r until ", after=" because x"),
    "spaces": repeat(" ", before="/crcr waive o/r:", after="x"),
    "direction marks": repeat("\u202e", before="/crcr waive o/r because "),
    "is": repeat("is ", before="/crcr verdict o/r ", after="because x"),
    "is and blanks": repeat(" is  ", before="/crcr verdict o/r a", after="because x"),
    "kinds": repeat("is new ", before="/crcr verdict o/r a ", after="because x"),
    "words": repeat("a ", before="/crcr waive o/r "),
}
YAML = {
    "flow lists": repeat("["),
    "flow maps": repeat("{a: "),
    "closed flow lists": lambda size: "a: " + "[" * (size // 2) + "]" * (size // 2),
    "keys": lambda size: "".join(f"k{n}: {n}\n" for n in range(size // 8)),
    "same keys": repeat("a: 1\n"),
    "merges": lambda size: (
        "x: &x {a: 1}\ny:\n" + "".join(f"  k{n}: 1\n  <<: *x\n" for n in range(size // 20))
    ),
    "a merge of many": lambda size: f"x: &x {{a: 1}}\ny:\n  <<: [{', '.join(['*x'] * (size // 4))}]\n",
    "aliases": lambda size: "x: &x [a, b]\ny:\n" + "- *x\n" * (size // 5),
    "jobs by alias": lambda size: (
        "jobs:\n  a: &a\n    steps:\n"
        + "    - run: crcr\n" * (size // 32)
        + "".join(f"  a{n}: *a\n" for n in range(size // 20))
    ),
    "anchors": lambda size: "".join(f"- &a{n} x\n" for n in range(size // 8)),
    "a long text": repeat("a b: ", before="x: |\n  "),
    "a long number": repeat("1:1", before="x: "),
    "colons": repeat("1:", before="x: '", after="'"),
    "indents": lambda size: "".join(" " * depth + "a:\n" for depth in range(int((2 * size) ** 0.5))),
    "comments": repeat("#\n"),
    "quotes": repeat('""', before="x: "),
}
NAMES = {
    "brackets": repeat("["),
    "closed brackets": repeat("[a]"),
    "separators": repeat("-", after="a-"),
    "digits": repeat("1 "),
    "slashes": repeat("/a"),
    "one long folder": repeat("a", before="/"),
    "hex": repeat("0a"),
    "numbers": repeat("1.1,"),
    "links": repeat("http://"),
    "backticks": repeat("` ``"),
    "direction marks": repeat("\u202e"),
    "shards": repeat("shard 1 of "),
    "lines": repeat("a\n"),
    "colons": repeat("a:1:"),
    "keys": repeat("-----BEGIN RSA PRIVATE KEY-----"),
    "ends of keys": repeat("-----END ", before="-----BEGIN PRIVATE KEY-----"),
    "secrets": repeat("token="),
    "bearers": repeat("bearer "),
    "addresses": repeat("://"),
    "tokens": repeat("eyJ.", before="eyJ"),
    "guids": repeat("01234567-0123-0123-0123-0123456789ab"),
    "nearly guids": repeat("01234567-0123-0123-0123-"),
    "refs": repeat("@refs/a", before="o/r/", after="\n"),
    "workflows": repeat(".yml@", after="\n"),
    "queues": repeat("/pr-1-", before="refs/heads/gh-readonly-queue/", after="x"),
    "check runs": repeat("/check-runs/1"),
    "commas": repeat(",1"),
    "semicolons": repeat('; rel="next', before="<a>"),
    "relations": repeat("<a>; "),
    "spaces": repeat(" ", before="<a>;", after="x"),
}


def _failed_tests(names: Callable[[int], str]) -> Callable[[int], Any]:
    """Failed tests with texts as long as a report may contain."""

    def made(size: int) -> Any:
        text = names(1_000)
        return [FailedTest(f"{n // 2}{text}", None, text) for n in range(size // 64)]

    return made


def _junit(text: bytes) -> object:
    reader = reporter.JunitReader()
    try:
        for start in range(0, len(text), 65_536):
            reader.feed(text[start : start + 65_536])
        reader.feed(b"", last=True)
    except reporter.Unreadable:
        return None
    return reader.tally


def _xml(piece: str, *, before: str = "<testsuite>", after: str = "</testsuite>") -> Callable[[int], bytes]:
    return lambda size: (before + piece * (size // len(piece)) + after).encode()


JUNIT = {
    "cases": _xml("<testcase name='a'><failure>x</failure></testcase>"),
    "texts in pieces": _xml("a&amp;", before="<testcase><failure>", after="</failure></testcase>"),
    "depth": _xml("<testsuite file='a'>"),
    "attributes": lambda size: (
        "<testcase " + " ".join(f"a{n}='b'" for n in range(size // 8)) + "/>"
    ).encode(),
    "one attribute": _xml("a", before="<testcase name='", after="'/>"),
    "an open tag": _xml("a ", before="<testcase "),
    "failures of one case": _xml("<failure message=' '/>", before="<testcase>", after="</testcase>"),
    "entities": _xml("<!ENTITY a 'aaaa'>", before="<!DOCTYPE a [", after="]><a/>"),
    "comments": _xml("<!-- -->"),
}
JSON = {
    "lists": repeat("["),
    "objects": repeat('{"a":'),
    "surrogates": repeat(r"\ud83d", before='{"status": "', after='"}'),
    "backslashes": repeat("\\\\", before='{"status": "', after='"}'),
    "keys": lambda size: "{" + ",".join(f'"k{n}": 1' for n in range(size // 10)) + "}",
    "digits": repeat("1", before='{"run_attempt": ', after="}"),
    "failed tests": repeat('{"name": "a"},', before='{"failed_tests_detail": [', after='"b"]}'),
}


def _report(text: str) -> object:
    try:
        return parse_report(text.encode("utf-8", "replace"))
    except CrcrError as refusal:
        return refusal


def _event(text: str) -> object:
    try:
        return parse_event("pull_request", text.encode("utf-8", "replace"))
    except CrcrError as refusal:
        return refusal


def _cursor(text: str) -> object:
    try:
        return decode(text)
    except CrcrError as refusal:
        return refusal


def _trimmed(text: str) -> object:
    payload = {
        "pull_request": {"body": text, "title": text, "labels": [{"name": text[:50], "color": ""}] * 9}
    }
    return trim_payload(payload, encode_json(payload), 2_000)


def _annotated(text: str) -> object:
    tests = (FailedTestExcerpt(name=text, file=file, message=text) for file in ("a.py:1", text, text[:400]))
    return annotations(tests)


def _link_header(text: str) -> str | None:
    return find_next_link(Response(200, {"link": text}, b""))


def _judged(history: tuple[list[BaseResult], list[RecordedFailure]]) -> object:
    results, failed = history
    return judge(None, results, *failed, hour=BackendHour(failed=tuple(failed)))


def _nights(size: int) -> tuple[list[BaseResult], list[RecordedFailure]]:
    """Results of the base branch that name no commit."""
    at = [NOON - timedelta(minutes=number) for number in range(size // 32)]
    return [BaseResult(sha=None, position=None, at=one, nightly=True, passed=True) for one in at], []


def _failures_of_an_hour(size: int) -> tuple[list[BaseResult], list[RecordedFailure]]:
    """On as many unrelated pull requests."""
    return [], [other(number + 8, at=NOON) for number in range(size // 32)]


SECRETS = {
    text: repeat(text)
    for text in ("token", "token = ", "://a:", "--", 'password="\\', "ghp_", "eyJ.", "-----BEGIN A-----", "\x1b[0", "aB3/",
                 "-----END A-----", "authorization", "basic a", "-u a", "&sig=", "token:\n", "sk-", "ABCD1")
}  # fmt: skip
LOGS = {text: repeat(text) for text in ("a\n", "x", "1%\r", "err\n", "::add-mask::abcd\n", "##[error")}


def _scanned(text: str) -> object:
    """Feed the text in chunks of an odd size, as from a file."""
    scan, data = reporter.LogScan(), text.encode()
    for start in range(0, len(data), 999):
        scan.feed(data[start : start + 999])
    return scan.last_lines(), scan.first_error()


PARSERS = (
    Parser("command lines", lambda text: list(command_lines(text)), COMMENTS),
    Parser("a comment of a webhook", has_command, COMMENTS),
    Parser("commands", parse_commands, COMMENTS | COMMANDS),
    Parser("one line", markdown.one_line, NAMES),
    Parser("code span", lambda text: markdown.code(text, 10**9), NAMES),
    Parser("prose", lambda text: markdown.prose(text, 10**9), NAMES),
    Parser("link", lambda text: markdown.link("run", text), NAMES),
    Parser("annotations", _annotated, NAMES),
    Parser("path glob", path_glob(f"**/{STARS}/**/{STARS}b").matches, {"a": repeat("a"), "a/": repeat("a/")}),
    Parser("name glob", name_glob(f"{STARS}b").matches, {"a": repeat("a"), "ab": repeat("ab")}),
    Parser("allowlist", read_allowlist, YAML, size=4_096),
    Parser("workflow", lambda text: workflow_facts("a.yml", "", f"on: push\n{text}"), YAML, size=4_096),
    Parser("run name", delivery_ids_in, NAMES),
    Parser("workflow path", path_without_ref, NAMES),
    Parser("workflow ref", _workflow_ref, NAMES),
    Parser("check run's address", parse_check_run_id, NAMES),
    Parser("queue's ref", queued_pull_number, NAMES),
    Parser("normal line", normal_line, NAMES),
    Parser("fingerprints", fingerprint_failure, {name: _failed_tests(made) for name, made in NAMES.items()}),
    Parser("verdict", _judged, {"nights": _nights, "an hour of failures": _failures_of_an_hour}),
    Parser("names of failed tests", lambda text: fingerprint_failure([FailedTest(text, None, None)]), NAMES),
    Parser("visible text", lambda text: visible(text, 10**9), NAMES),
    Parser("safe link", safe_link, NAMES),
    Parser("search", lambda text: history_search_text(text, UPSTREAM), NAMES),
    Parser("cursor", _cursor, NAMES | JSON),
    Parser("shard", parse_shard, NAMES),
    Parser("heads of a matrix", lambda text: shorten_names([f"{text}a", f"{text}b"]), NAMES),
    Parser("csv cell", format_cell, NAMES),
    Parser("csv file name", file_name, NAMES),
    Parser("forwarded for", lambda text: client_address("10.0.0.1", [text], PROXIES), NAMES | {"hops": repeat("10.0.0.1,")}),
    Parser("link header", _link_header, NAMES),
    Parser("log line", clean_text, NAMES),
    Parser("traceback", clean_block, NAMES),
    Parser("report", _report, JSON),
    Parser("webhook", _event, JSON),
    Parser("trimmed payload", _trimmed, NAMES),
    Parser("reporter's line", lambda text: reporter.clean_text(text, 10**9), NAMES),
    Parser("reporter's glob", reporter.PathPattern("**/" + "*a" * 12 + "b").matches, {"a": repeat("a", after="b"), "a/": repeat("a/")}),
    Parser("junit", _junit, JUNIT, size=16_384),
    Parser("masked log", lambda text: mask_secrets(clean_line(text)), SECRETS, size=2_048),
    Parser("scanned log", _scanned, LOGS, size=4_096),
)  # fmt: skip
CASES = [
    pytest.param(parser, make, id=f"{parser.name}: {shape}")
    for parser in PARSERS
    for shape, make in parser.shapes.items()
]


@pytest.fixture(autouse=True)
def _no_collection() -> Iterator[None]:
    """A garbage collection during one of two runs would be counted in its time."""
    gc.disable()
    yield
    gc.enable()


@pytest.mark.parametrize(("parser", "make"), CASES)
def test_parsing_time_grows_linearly_with_the_text(parser: Parser, make: Callable[[int], Any]) -> None:
    small, large = make(parser.size), make(parser.size * GROWTH)
    assert _steepness(parser.parse, small, large) < TOO_STEEP
    few, many = _count_lines(parser.parse, small), _count_lines(parser.parse, large)
    assert many < TOO_STEEP * max(few, 200)


def _steepness(parse: Callable[[Any], object], small: Any, large: Any) -> float:
    """How much more processor time the large text takes, by the best time of each; repeated until it is below the limit."""
    best_small, best_large = float("inf"), float("inf")
    for _ in range(_TRIES):
        best_small = min(best_small, _took_s(parse, small))
        best_large = min(best_large, _took_s(parse, large))
        if best_large < TOO_STEEP * max(best_small, _SHORTEST_S):
            break
    return best_large / max(best_small, _SHORTEST_S)


def _took_s(parse: Callable[[Any], object], text: Any) -> float:
    started = time.process_time()
    parse(text)
    return time.process_time() - started


def _count_lines(parse: Callable[[Any], object], text: Any) -> int:
    count = 0

    def trace(_: FrameType, event: str, __: Any) -> Any:
        nonlocal count
        count += event == "line"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        parse(text)
    finally:
        sys.settrace(before)
    return count


def test_the_measurement_tells_quadratic_from_linear_growth() -> None:
    def square(text: str) -> int:
        return sum(text.count(letter, index) for index, letter in enumerate(text))

    text = repeat("ab")
    assert _steepness(square, text(2_048), text(2_048 * GROWTH)) > TOO_STEEP
    assert _steepness(str.split, text(2_048), text(2_048 * GROWTH)) < TOO_STEEP
