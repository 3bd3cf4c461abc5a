"""Format of log lines, and the values that are never logged."""

import base64
import io
import json
import logging
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import pytest
import structlog
from hypothesis import given
from hypothesis import strategies as st

from crcr import log
from crcr.log import MAX_TEXT, configure, redact_literals

JWT = "eyJhbGciOiJSUzI1NiJ9.eyJpc3MiOiJodHRwcyJ9.c2lnbmF0dXJl-_x"
PEM_BODY = "MIIEowIBAAKCAQEA7v0pXyZkq1Jx0vXk5m2c3Q8u1r9TtH"
PEM = f"-----BEGIN RSA PRIVATE KEY-----\n{PEM_BODY}\n-----END RSA PRIVATE KEY-----"

SECRETS = [
    (f"ghs_1234_{JWT}", JWT),
    ("before ghs_abcDEF012._- after", "abcDEF012"),
    ("ghp_abcdefghijklmnop", "abcdefghijklmnop"),
    ("github_pat_11ABC_abcdef", "11ABC_abcdef"),
    (f"the token {JWT} was refused", "eyJpc3MiOiJodHRwcyJ9"),
    (f"glued_{JWT[:40]}", "eyJpc3Mi"),
    ("Authorization: Bearer abc.def/ghi==", "abc.def"),
    ("authorization: basic dXNlcjpwYXNz", "dXNlcjpwYXNz"),
    ("(b'authorization', b'Bearer hunter')", "hunter"),
    ("it said Bearer abcdefghijklmnopqrstuvwxyz", "abcdefghijklmnopqrstuvwxyz"),
    ("it said basic eHg6enp6", "eHg6enp6"),  # xx:zzz
    (PEM, PEM_BODY),
    (PEM.replace("\n", "\\n"), PEM_BODY),
    (PEM[:60], PEM_BODY[:20]),
    ("postgresql://user:hunter2@db/crcr", "hunter2"),
    ("redis://:p@ss-hunter2@cache", "hunter2"),
    ("X-Hub-Signature-256: sha256=0123456789abcdef", "0123456789abcdef"),
    ("https://hud.example.org/?token=hunter2&x=1", "hunter2"),
]


@pytest.fixture(autouse=True)
def _restore_logging() -> Iterator[None]:
    """The log is one per process: restore it for the following tests."""
    root, level = logging.getLogger(), logging.getLogger().level
    yield
    for handler in [handler for handler in root.handlers if isinstance(handler, log._Handler)]:
        root.removeHandler(handler)
    root.setLevel(level)
    structlog.reset_defaults()
    log._literals = log._Literals()


def logged_line(format: str, event: str = "job_reported", **fields: Any) -> str:  # noqa: A002
    stream = io.StringIO()
    configure(format, "info", stream)  # type: ignore[arg-type]
    structlog.get_logger().info(event, **fields)
    return stream.getvalue()


def parse_line(text: str) -> dict[str, Any]:
    assert text.count("\n") == 1
    line: dict[str, Any] = json.loads(text)
    return line


def fail(message: str) -> None:
    raise ValueError(message)


def crash_line(format: str, message: str) -> str:  # noqa: A002
    stream = io.StringIO()
    configure(format, "info", stream)  # type: ignore[arg-type]
    local_variable = "a value that only the frame knows"
    try:
        fail(message)
    except ValueError:
        structlog.get_logger().exception("effect_failed", effect=len(local_variable))
    return stream.getvalue()


def test_a_json_line_has_time_level_event_and_fields() -> None:
    line = parse_line(logged_line("json", downstream="org/x", attempt=2, ok=True, took_s=0.5, none=None))
    assert list(line)[:3] == ["time", "level", "event"]
    assert line.pop("time").endswith("Z")
    assert line == {
        "level": "info",
        "event": "job_reported",
        "downstream": "org/x",
        "attempt": 2,
        "ok": True,
        "took_s": 0.5,
        "none": None,
    }


def test_a_console_line_quotes_values_that_look_like_another_field() -> None:
    line = logged_line("console", job="build downstream=evil", plain="org/x")
    assert line.endswith('info     job_reported job="build downstream=evil" plain=org/x\n')


def test_auto_means_json_without_a_terminal() -> None:
    assert logged_line("auto").startswith("{")


def test_lines_below_the_level_are_not_written() -> None:
    stream = io.StringIO()
    configure("json", "warning", stream)
    structlog.get_logger().info("quiet")
    logging.getLogger("alembic").info("quiet")
    assert stream.getvalue() == ""


def test_a_field_named_level_does_not_replace_the_level_of_the_line() -> None:
    line = parse_line(logged_line("json", level="L2"))
    assert (line["level"], line["level_"]) == ("info", "L2")


def test_bound_context_is_in_the_line() -> None:
    with structlog.contextvars.bound_contextvars(delivery="guid"):
        assert parse_line(logged_line("json"))["delivery"] == "guid"


def test_values_of_all_types_become_json() -> None:
    at_midnight = datetime(2026, 1, 2, tzinfo=UTC)
    line = parse_line(
        logged_line(
            "json", at=at_midnight, big=10**5000, nan=float("nan"), raw=b"\n", many=(1, {"a"}), odd=object
        )
    )
    assert line["at"] == "2026-01-02T00:00:00+00:00"
    assert line["big"] == "<16610 bits>"
    assert (line["nan"], line["raw"], line["many"]) == ("nan", "b'\\n'", [1, ["a"]])


def test_a_value_that_contains_itself_is_cut() -> None:
    loop: list[Any] = []
    loop.append(loop)
    assert "…" in json.dumps(parse_line(logged_line("json", loop=loop)), ensure_ascii=False)


@pytest.mark.parametrize("format", ["json", "console"])
@pytest.mark.parametrize(("text", "secret"), SECRETS)
def test_fault_31_a_secret_is_masked_in_every_part_of_a_line(format: str, text: str, secret: str) -> None:  # noqa: A002
    lines = [
        logged_line(format, text),
        logged_line(format, detail=text),
        logged_line(format, nested={"list": [text, {text: text}]}),
        logged_line(format, error=ValueError(text)),
        logged_line(format, raw=text.encode()),
        crash_line(format, text),
    ]
    for line in lines:
        assert secret not in line
        assert "***" in line
    assert secret not in crash_line(format, "x" * 1990 + " " + text)


PROSE = [
    "the Authorization header has no bearer token",
    "bearer tokens only; Bearer authentication, bearer token-based log-ins, a bearer JWT or a bearer of bad news.",
    "use basic authentication, a basic understanding and Basic auth.",
    "the token was refused: its signature does not match, and the secret is unknown",
]


@pytest.mark.parametrize("text", PROSE)
def test_a_sentence_about_tokens_is_not_masked(text: str) -> None:
    line = parse_line(logged_line("json", text, detail=text))
    assert (line["event"], line["detail"]) == (text, text)


_URL_SAFE = st.text(
    "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_", min_size=22, max_size=60
)
_TOKENS = st.one_of(
    _URL_SAFE.map(lambda body: ("bearer ", body)),
    st.text("abcdef0123456789", min_size=32, max_size=64).map(lambda body: ("Bearer ", body)),
    _URL_SAFE.map(lambda body: ("ghs_", body)),
    _URL_SAFE.map(lambda body: ("crcr_", (body * 2)[:43])),
    st.tuples(_URL_SAFE, _URL_SAFE).map(lambda parts: ("eyJ", ".".join(parts))),
    st.tuples(st.text("abcxyz0189", min_size=1), st.text("abcxyz0189", min_size=1)).map(
        lambda pair: ("basic ", base64.b64encode(":".join(pair).encode()).decode())
    ),
)


@given(_TOKENS, st.sampled_from(PROSE), st.sampled_from(PROSE))
def test_every_kind_of_token_between_sentences_is_masked(
    token: tuple[str, str], before: str, after: str
) -> None:
    masked = log.redact(f"{before} {''.join(token)} {after}")
    assert token[1] not in masked
    assert masked.startswith(before)
    assert masked.endswith(after)


@pytest.mark.parametrize(
    "name",
    [
        "token",
        "webhook_secret",
        "Authorization",
        "x-hub-signature-256",
        "private_key",
        "key",
        "password",
        "apiKey",
        "set-cookie",
    ],
)
def test_fault_31_a_field_with_a_secrets_name_is_masked(name: str) -> None:
    line = logged_line("json", **{name: "hunter2"}, headers={name: ["hunter2"]})
    assert "hunter2" not in line


def test_numbers_and_flags_under_a_secrets_name_are_shown() -> None:
    line = parse_line(logged_line("json", tokens=3, token_cached=True))
    assert (line["tokens"], line["token_cached"]) == (3, True)


def test_fault_31_registered_secrets_are_masked_in_every_encoding() -> None:
    secret = 'It\'s a "Secret" to/Everybody'
    redact_literals([secret, "abc"])
    assert secret not in parse_line(logged_line("json", a=f"<{secret}>"))["a"]
    assert "Everybody" not in logged_line("json", a=json.dumps(secret), b=repr(secret), c=[secret], d=object)
    assert "Everybody" not in logged_line(
        "json", url="https://x/?q=It%27s%20a%20%22Secret%22%20to%2FEverybody"
    )
    assert "Everybody" not in crash_line("console", secret)
    assert (
        parse_line(logged_line("json", a="abc"))["a"] == "abc"
    )  # too short to distinguish from ordinary text


def test_fault_31_tracebacks_show_no_local_variables() -> None:
    for format_ in ("json", "console"):
        line = crash_line(format_, "no")
        assert "ValueError: no" in line
        assert "a value that only the frame knows" not in line.replace(
            'local_variable = "a value that only the frame knows"', ""
        )


def test_fault_31_lines_of_libraries_are_masked() -> None:
    stream = io.StringIO()
    configure("json", "info", stream)
    logging.getLogger("uvicorn.error").warning("refused %s", "ghs_abcdef")
    try:
        fail(JWT)
    except ValueError:
        logging.getLogger("asyncio").exception("task died")
    first, second = (json.loads(line) for line in stream.getvalue().splitlines())
    assert (first["event"], first["level"], first["logger"]) == ("refused ***", "warning", "uvicorn.error")
    assert "ValueError: ***" in second["exception"]


def test_fault_31_a_line_that_cannot_be_formatted_hides_its_arguments(
    capsys: pytest.CaptureFixture[str],
) -> None:
    stream = io.StringIO()
    configure("json", "info", stream)
    handler = next(
        root_handler
        for root_handler in logging.getLogger().handlers
        if isinstance(root_handler, log._Handler)
    )
    record = logging.LogRecord("library", logging.WARNING, "x.py", 1, "%d", ("ghs_abcdef",), None)
    handler.handle(record)  # not through the logger: pytest's own handler raises
    assert parse_line(stream.getvalue())["event"] == "log_line_lost"
    assert capsys.readouterr() == ("", "")


def test_access_and_request_lines_of_libraries_are_off() -> None:
    stream = io.StringIO()
    configure("json", "info", stream)
    logging.getLogger("uvicorn.access").info("GET /")
    logging.getLogger("httpx").info("HTTP Request: GET https://api.github.com")
    assert stream.getvalue() == ""
    logging.getLogger("httpx").warning("odd")
    assert parse_line(stream.getvalue())["event"] == "odd"


def test_configuring_twice_does_not_duplicate_lines() -> None:
    first, second = io.StringIO(), io.StringIO()
    configure("json", "info", first)
    configure("json", "info", second)
    logging.getLogger("library").warning("once")
    assert (first.getvalue(), second.getvalue().count("once")) == ("", 1)


HOSTILE = [
    "build\n2026-01-01T00:00:00Z info     forged downstream=org/x",
    "build\r\nforged",
    "\x1b[2J\x1b[31mred",
    "\u202egnp.exe",
    "a\u2028b\u0085c\x00d\x7f",
    "\ud800",
    "\ufeff\u200b",
]


@pytest.mark.parametrize("format", ["json", "console"])
@pytest.mark.parametrize("name", HOSTILE)
def test_fault_29_a_hostile_name_cannot_forge_a_line(format: str, name: str) -> None:  # noqa: A002
    line = logged_line(format, job=name, nested={name: [name]}, **{f"k{name}": name})
    assert line.endswith("\n")
    assert line[:-1].isprintable()


def test_fault_29_a_message_with_newlines_stays_inside_its_traceback() -> None:
    lines = crash_line("console", "no\n2026-01-01T00:00:00Z info     forged\r\x1b[2J").splitlines()
    assert "forged" not in lines[0]
    assert all(line.startswith("  | ") and line.isprintable() for line in lines[1:])
    parse_line(crash_line("json", "no\nforged"))


def test_fault_29_a_long_text_is_cut() -> None:
    line = parse_line(logged_line("json", job="x" * 1_000_000))
    assert line["job"] == "x" * MAX_TEXT + "… (998000 more)"
    assert len(crash_line("json", "x" * 1_000_000)) < 30_000
    assert len(logged_line("json", jobs=list(range(100_000)))) < 1_000


@pytest.mark.timeout(10)
@pytest.mark.parametrize(
    "part", ["eyJ", "ghs_", "://", "a://b@", "-----BEGIN PRIVATE KEY-----", "bearer ", "token=", "a-"]
)
def test_fault_29_masking_is_fast_on_text_made_to_slow_it_down(part: str) -> None:
    for _ in range(20):
        logged_line("json", job=part * 100_000)


_value = st.recursive(
    st.text() | st.integers() | st.floats() | st.binary() | st.none(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


@given(st.dictionaries(st.text(), _value, max_size=4), st.text(), st.sampled_from(["json", "console"]))
def test_no_line_contains_a_raw_newline_or_control_character(
    fields: dict[str, Any],
    event: str,
    format: str,  # noqa: A002
) -> None:
    line = logged_line(format, event, fields=fields, text=event)
    assert line.endswith("\n")
    assert line[:-1].isprintable()
    if format == "json":
        assert all(part.isprintable() for part in _texts(json.loads(line)))


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        yield from (text for pair in value.items() for part in pair for text in _texts(part))
    elif isinstance(value, list):
        yield from (text for part in value for text in _texts(part))
