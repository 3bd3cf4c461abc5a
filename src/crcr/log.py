"""Log lines: one event, one line, as JSON or for a console, through one pipeline for our code and libraries.

Every text is masked and has its control characters escaped before it is written, so that no secret appears and
no reported name can forge a line or move a cursor. In doubt a text is masked. The patterns take time linear in
the length of the text, which may come from outside. Tracebacks never show local variables.
"""

import base64
import binascii
import io
import json
import logging
import math
import re
import traceback
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import date
from typing import Any, Literal, TextIO
from urllib.parse import quote

import structlog
from structlog.typing import EventDict, ExcInfo, Processor, WrappedLogger

MASK = "***"
MAX_TEXT = 2_000
MAX_TRACEBACK = 20_000
_MAX_DEPTH = 6
_MAX_ITEMS = 100
# Masking costs time, so long texts are cut before it too; a secret cut in half there is far past MAX_TEXT.
_WINDOW = 8 * MAX_TEXT
_MULTILINE = ("exception", "stack")
_FIRST = ("time", "level", "event")
_BARE = re.compile(r"[^\s\"'=\\]+")
_COLOURS = {"debug": "2", "info": "32", "warning": "33", "error": "31", "critical": "31"}
_QUIET = ("httpx", "httpcore", "alembic", "botocore", "urllib3")
_UVICORN = ("uvicorn", "uvicorn.error", "uvicorn.asgi")

_SECRET_NAME = re.compile(
    r"token|secret|passw|authori[sz]ation|signature|cookie|credential|private|bearer|internal.bot|jwt"
    r"|(?:^|[_.-]|api)key$",
    re.IGNORECASE,
)
_FORMS = re.compile(
    r"-----BEGIN [A-Z ]{0,40}PRIVATE KEY-----(?s:.*?)(?:-----END [A-Z ]{0,40}PRIVATE KEY-----|\Z)"
    r"|gh[opusr]_[A-Za-z0-9._-]+"  # an installation's token now carries a whole JWT
    r"|github_pat_[A-Za-z0-9_]+"
    r"|crcr_[A-Za-z0-9_-]{43}"  # our own, from `crcr admin token`
    r"|(?P<header>(?i:authorization)[\"']{0,2}\s{0,4}[:=,]\s{0,4}b?[\"']{0,2}(?i:bearer|basic|token)\s{1,8})[^\s\"',;]+"
    r"|(?P<scheme>\b(?i:bearer|basic)\s{1,8})(?P<credential>[A-Za-z0-9._~+/=-]+)"
    r"|(?P<digest>sha(?:1|256)=)[0-9A-Fa-f]+"
    r"|(?P<slashes>://)[^\s/?#]*@"
    r"|(?P<pair>(?i:token|secret|password|passwd|signature|api_?key|private_?key)=)[^\s&\"',;]+"
)
_KEPT_PREFIXES = ("header", "scheme", "digest", "slashes", "pair")
# "bearer token" and "basic authentication" are prose. The shortest secret that we make has 22 characters.
_PROSE = re.compile(
    r"(?=.{1,20}\Z)(?:[A-Za-z]?[a-z]+|[A-Z]{1,8})(?:[/-](?:[A-Za-z]?[a-z]+|[A-Z]{1,8}))*[./-]*"
)
_RUN = re.compile(r"[A-Za-z0-9_.-]{20,}")
_JWT_START = "eyJ"  # `{"` in base64url
_SHORTEST = 4
_LINE = 32


def configure(
    format: Literal["auto", "json", "console"],  # noqa: A002 - the setting's own name
    level: Literal["debug", "info", "warning", "error"],
    stream: TextIO,
) -> None:
    """Send every log line of this process to `stream`; may be called again."""
    console = format == "console" or (format == "auto" and stream.isatty())
    render = _make_console_renderer(colours=stream.isatty()) if console else _json
    number = logging.getLevelNamesMapping()[level.upper()]
    if isinstance(stream, io.TextIOWrapper):
        stream.reconfigure(errors="backslashreplace")  # a terminal without Unicode must not stop a line
    shared: list[Processor] = [
        structlog.contextvars.merge_contextvars,
        _rename_reserved,
        structlog.stdlib.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True, key="time"),
        structlog.processors.StackInfoRenderer(),
        structlog.processors.ExceptionRenderer(_traceback),
        _clean_fields,
    ]
    structlog.configure(
        processors=[*shared, render],
        wrapper_class=structlog.make_filtering_bound_logger(number),
        logger_factory=structlog.WriteLoggerFactory(stream),
        cache_logger_on_first_use=False,
    )
    _route_stdlib(stream, number, shared, render)


def _route_stdlib(stream: TextIO, level: int, shared: list[Processor], render: Processor) -> None:
    handler = _Handler(stream)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=[structlog.stdlib.add_logger_name],
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *shared, render],
        )
    )
    root = logging.getLogger()
    for old in [handler for handler in root.handlers if isinstance(handler, _Handler)]:
        root.removeHandler(old)
    root.addHandler(handler)
    root.setLevel(level)
    for name in _UVICORN:
        logger = logging.getLogger(name)
        logger.handlers.clear()
        logger.propagate = True
        logger.setLevel(logging.NOTSET)  # a server started earlier in this process may have set its own
    # httpx logs every request with its address at info, alembic each context, botocore bodies with secrets at debug.
    for name in _QUIET:
        logging.getLogger(name).setLevel(max(level, logging.WARNING))
    # Addresses may contain secrets; the relay writes its own lines about requests.
    access = logging.getLogger("uvicorn.access")
    access.handlers.clear()
    access.propagate = False
    access.disabled = True


class _Handler(logging.StreamHandler[TextIO]):
    """The standard handler prints the arguments of a line that it cannot format, including secrets."""

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802 - logging's name
        structlog.get_logger().error("log_line_lost", logger=record.name, line=record.lineno)


def _rename_reserved(_: WrappedLogger, __: str, event: EventDict) -> EventDict:
    """Rename our own fields `time` and `level`, so that they do not clash with those of the line."""
    for name in ("time", "level"):
        if name in event:
            event[f"{name}_"] = event.pop(name)
    return event


def _traceback(exc_info: ExcInfo) -> str:
    return "".join(traceback.format_exception(*exc_info))


def _clean_fields(_: WrappedLogger, __: str, event: EventDict) -> EventDict:
    head = {name: _clean(event.pop(name, ""), 0) for name in _FIRST}
    blocks = {name: clean_block(str(event.pop(name))) for name in _MULTILINE if event.get(name)}
    return {**head, **{clean_text(str(k)): _clean_named(k, v, 0) for k, v in event.items()}, **blocks}


def _clean_named(name: object, value: object, depth: int) -> object:
    # Counts and flags under such a name (`tokens=3`) reveal nothing.
    if isinstance(value, bool | int | float | None) or not is_secret_name(str(name)):
        return _clean(value, depth)
    return MASK


def _clean(value: object, depth: int) -> object:
    match value:
        case str():
            return clean_text(value)
        case None | bool():
            return value
        case int():
            return int(value) if value.bit_length() < 64 else f"<{value.bit_length()} bits>"
        case float():
            return float(value) if math.isfinite(value) else repr(value)
        case date():
            return value.isoformat()
        case Mapping() | Sequence() | set() | frozenset() if not isinstance(
            value, bytes | bytearray | memoryview
        ):
            return _clean_many(value, depth + 1)
    return clean_text(str(value) if isinstance(value, BaseException) else repr(value))


def _clean_many(value: Any, depth: int) -> object:
    if depth > _MAX_DEPTH:
        return "…"
    items = list(value.items() if isinstance(value, Mapping) else value)
    more = [f"… {len(items) - _MAX_ITEMS} more"] if len(items) > _MAX_ITEMS else []
    if isinstance(value, Mapping):
        first_items = items[:_MAX_ITEMS]
        return {clean_text(str(k)): _clean_named(k, v, depth) for k, v in first_items} | dict.fromkeys(
            more, ""
        )
    return [_clean(item, depth) for item in items[:_MAX_ITEMS]] + more


def clean_text(text: str) -> str:
    """Return the text masked, on one line, printable, and of limited length."""
    masked = redact(text[:_WINDOW])
    cut = len(text) - MAX_TEXT
    if len(masked) > MAX_TEXT or len(text) > _WINDOW:
        masked = f"{masked[:MAX_TEXT]}… ({cut} more)"
    return _escape(masked)


def clean_block(text: str) -> str:
    """Return a traceback: masked as a whole, then line by line; the end matters most, so the beginning is cut."""
    lines = redact(text[-8 * MAX_TRACEBACK :]).splitlines()
    return "\n".join(_escape(line[:MAX_TEXT]) for line in lines)[-MAX_TRACEBACK:]


def _escape(text: str) -> str:
    """Escape all that `str.isprintable` excludes: controls, escapes, line ends, bidi marks and surrogates."""
    if text.isprintable():
        return text
    return "".join(
        character if character.isprintable() else character.encode("unicode_escape").decode()
        for character in text
    )


def _json(_: WrappedLogger, __: str, event: EventDict) -> str:
    return json.dumps(event, separators=(",", ":"))


def _make_console_renderer(*, colours: bool) -> Callable[[WrappedLogger, str, EventDict], str]:
    def render(_: WrappedLogger, __: str, event: EventDict) -> str:
        fields = dict(event)
        time, level, name = (str(fields.pop(key)) for key in _FIRST)
        blocks = [str(fields.pop(key)) for key in _MULTILINE if key in fields]
        level_text = f"\x1b[{_COLOURS.get(level, '0')}m{level:<8}\x1b[0m" if colours else f"{level:<8}"
        parts = [
            time,
            level_text,
            name,
            *(f"{_format_value(k)}={_format_value(v)}" for k, v in fields.items()),
        ]
        # Further lines are indented and marked, so that a message cannot imitate the next entry.
        return " ".join(parts) + "".join(f"\n  | {line}" for block in blocks for line in block.split("\n"))

    return render


def _format_value(value: object) -> str:
    if isinstance(value, str) and _BARE.fullmatch(value):
        return value
    return json.dumps(value, ensure_ascii=False)


class _Literals:
    """The literal secrets to mask. One instance per process, like the log itself."""

    def __init__(self) -> None:
        self._spellings: set[str] = set()
        self._pattern: re.Pattern[str] | None = None

    def add(self, secrets: Iterable[str]) -> None:
        for secret in secrets:
            self._spellings |= _spellings(secret)
        longest_first = sorted(self._spellings, key=len, reverse=True)
        self._pattern = re.compile("|".join(map(re.escape, longest_first))) if longest_first else None

    def mask(self, text: str) -> str:
        return self._pattern.sub(MASK, text) if self._pattern else text


_literals = _Literals()


def redact_literals(secrets: Iterable[str]) -> None:
    """Mask these texts from now on, wherever they appear; texts under four characters are ignored, since they would mask half the log."""
    _literals.add(secrets)


def redact(text: str) -> str:
    """Return the text with everything masked that is a secret, or looks like one."""
    masked = _FORMS.sub(_mask_form, _literals.mask(text))
    return _RUN.sub(_mask_jwt, masked) if _JWT_START in masked else masked


def is_secret_name(name: str) -> bool:
    return _SECRET_NAME.search(name[:200]) is not None


def _spellings(secret: str) -> set[str]:
    """Return a secret as written, URL-encoded, in JSON and in `repr`, and the lines of a long one."""
    forms = {secret, quote(secret, safe=""), json.dumps(secret)[1:-1], repr(secret)[1:-1]}
    forms |= {line for line in secret.splitlines() if len(line) >= _LINE}
    return {form for form in forms if len(form) >= _SHORTEST}


def _mask_form(match: re.Match[str]) -> str:
    if match["credential"] and _is_prose(match["credential"]):
        return match[0]
    prefix = next((match[name] for name in _KEPT_PREFIXES if match[name] is not None), "")
    return f"{prefix}{MASK}@" if prefix == "://" else prefix + MASK


def _is_prose(word: str) -> bool:
    """Whether a word after "bearer" or "basic" is prose, and neither a token nor a name with a password."""
    if _PROSE.fullmatch(word) is None:
        return False
    try:
        return b":" not in base64.b64decode(word, validate=True)
    except binascii.Error:
        return True


def _mask_jwt(match: re.Match[str]) -> str:
    run = match[0]
    start = run.find(_JWT_START)
    return run[:start] + MASK if start >= 0 and "." in run[start:] else run
