"""`crcr status`: the relay's health in sentences, what needs attention, and the backends with their newest numbers.

With --relay it reads a relay's public API. Both ways lead to the same JSON and the same lines.
"""

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, TypedDict

import typer
from rich.text import Text

from crcr.cli.json_fields import (
    JsonObject,
    read_integer,
    read_object,
    read_objects,
    read_ratio,
    read_text,
    read_texts,
    read_time,
)
from crcr.cli.options import (
    OPERATE_PANEL,
    ConfigOption,
    JsonOption,
    PublicRelayOption,
    UpstreamOption,
    examples,
)
from crcr.cli.printing import (
    Cell,
    escape_unprintable,
    format_age,
    print_json,
    print_line,
    print_table,
)
from crcr.decide.number_format import format_percent

if TYPE_CHECKING:
    from crcr.cli.failing.relay_api import RelayApi
    from crcr.cli.operator_session import OperatorSession
    from crcr.decide.health.relay import Health
    from crcr.decide.model import RepoName
    from crcr.decide.views.failures import ContradictedVerdicts

_STYLES = {"green": "green", "amber": "yellow", "red": "red"}
_BAD = frozenset({"failure", "timed_out"})
_MOST_PAGES = 50
_PAGE = "200"


def register(app: typer.Typer) -> None:
    shown = examples("crcr status", "crcr status --json", "crcr status --relay https://crcr.example.com")
    app.command(rich_help_panel=OPERATE_PANEL, epilog=shown)(status)


def status(
    relay: PublicRelayOption = None,
    config: ConfigOption = None,
    upstream: UpstreamOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show whether the relay is green, amber or red, what needs attention, and each backend's newest result.

    Without --relay: from this relay's database, hidden backends included, with what is delayed and until when, and how
    often verdicts were wrong. The exit code is 1 when it is red: gates cannot be published, or nothing is delivered.
    """
    if relay is not None and config is not None:
        raise typer.BadParameter("--config is about this machine's relay; leave it out with --relay")
    states = _read_relay(relay, upstream) if relay is not None else _read_database(config, upstream)
    if as_json:
        print_json(states)
    else:
        for state in states:
            _print(state)
    if any(_health_state(state) == "red" for state in states):
        raise typer.Exit(1)


class _State(TypedDict):
    upstream: str
    health: "Health | JsonObject"
    verdicts: "ContradictedVerdicts | None"
    outdated_fingerprints: int | None
    """Failures whose fingerprints are still to be computed by new rules; None where only the operator can know."""
    attention: list[str]
    backends: list[JsonObject]


def _read_database(config: Any, requested: "RepoName | None") -> list[_State]:
    from crcr.cli.operator_session import run_in_session

    async def read(session: "OperatorSession") -> list[_State]:
        chosen = (
            (session.upstream_to_read(requested),)
            if requested
            else tuple(upstream.name for upstream in session.settings.upstreams)
        )
        return [await _read_own(session, name) for name in chosen]

    return run_in_session(config, read)


async def _read_own(session: "OperatorSession", name: "RepoName") -> _State:
    from crcr.decide.statistics.window import Span
    from crcr.show.api.models.shared import SUMMARY

    now = session.now()
    view = await session.open_pages().summary(name, Span.FORTNIGHT, now)
    summary = SUMMARY.model_validate(view).model_dump(mode="json")
    return {
        "upstream": str(name),
        "health": await session.views.health(name, now),
        "verdicts": await session.views.contradicted(name, now),
        "outdated_fingerprints": await session.views.outdated_fingerprints(name),
        "attention": list(_attention(summary)),
        "backends": [_compact(backend) for backend in read_objects(summary, "backends")],
    }


def _read_relay(relay: str, requested: "RepoName | None") -> list[_State]:
    from crcr.cli.failing.relay_api import RelayApi, relay_address

    api = RelayApi(relay_address(relay))
    names = [str(requested)] if requested else read_texts(api.read_object("onboarding", {}), "upstreams")
    return [_read_summary(api, {"upstream": name}) for name in names or [""]]


def _read_summary(api: "RelayApi", asked: Mapping[str, str]) -> _State:
    given = {name: value for name, value in asked.items() if value}
    summary = api.read_object("summary", {**given, "limit": _PAGE})
    cursor, backends = read_text(summary, "next"), read_objects(summary, "backends")
    for _ in range(_MOST_PAGES):
        if cursor is None:
            break
        page = api.read_object("summary", {**given, "limit": _PAGE, "cursor": cursor})
        cursor, backends = read_text(page, "next"), [*backends, *read_objects(page, "backends")]
    return {
        "upstream": read_text(summary, "upstream") or "?",
        "health": read_object(summary, "health"),
        "verdicts": None,
        "outdated_fingerprints": None,
        "attention": list(_attention({**summary, "backends": backends})),
        "backends": [_compact(backend) for backend in backends],
    }


def _compact(backend: JsonObject) -> dict[str, Any]:
    """Return a backend without its daily numbers."""
    figures = read_object(backend, "figures")
    kept = ("name", "level", "oncalls", "suspended", "silent", "alarm", "parked", "waiting", "last_sent_at")
    return {
        **{name: backend.get(name) for name in kept},
        "last_result": figures.get("last_result"),
        "pass_rate": read_ratio(read_object(figures, "tally"), "pass_rate"),
    }


def _attention(summary: JsonObject) -> Iterator[str]:
    """Say what a person should look at, backends of the highest level first."""
    if paused_at := read_time(read_object(summary, "health"), "paused_at"):
        yield f"Dispatching is paused (since {format_age(paused_at)}); `crcr resume` ends it."
    if read_object(summary, "allowlist").get("newest_is_bad") is True:
        yield "The newest allowlist was rejected; the last good version is in force."
    backends = [backend for backend in read_objects(summary, "backends") if backend.get("probe") is not True]
    for backend in sorted(backends, key=lambda each: read_text(each, "level") or "", reverse=True):
        name, level = read_text(backend, "name") or "?", read_text(backend, "level") or "?"
        for trouble in _troubles(backend, level):
            yield f"{name} ({level}): {trouble}"


def _troubles(backend: JsonObject, level: str) -> Iterator[str]:
    if backend.get("suspended") is True:
        yield "suspended; no dispatches, and reports are refused."
        return
    if alarm := read_text(backend, "alarm"):
        yield f"{alarm}."
    if backend.get("silent") is True:
        yield "silent: it does not answer its dispatches."
    if parked := read_integer(backend, "parked"):
        yield f"{parked:,} undelivered; `crcr effects list --parked` shows why."
    last = read_object(read_object(backend, "figures"), "last_result")
    if (result := read_text(last, "conclusion")) in _BAD:
        at = read_time(last, "at")
        when = f", {format_age(at)}" if at else ""
        yield f"{str(result).replace('_', ' ')} in job {read_text(last, 'job_name') or '?'}{when}."
    elif not last and level == "L4":
        yield "no result in 14 days, and the gate waits for it."


def _health_state(state: _State) -> str | None:
    health = state["health"]
    return read_text(health, "state") if isinstance(health, Mapping) else health.state.value


def _print(state: _State) -> None:
    shown = _health_state(state) or "unknown"
    print_line(f"{state['upstream']}:", Text(escape_unprintable(shown), _STYLES.get(shown, "")))
    for line in _health_lines(state):
        print_line(f"  {line}")
    for line in state["attention"]:
        print_line(Text("  ! ", "yellow") + Text(escape_unprintable(line)))
    if state["backends"]:
        print_line("")
        columns = ["backend", "level", "last result", "when", "14 days", "undelivered", "~on call"]
        print_table(columns, map(_cells, state["backends"]))


def _health_lines(state: _State) -> Iterator[str]:
    health = state["health"]
    if isinstance(health, Mapping):
        lines = [text for reason in read_objects(health, "reasons") if (text := read_text(reason, "text"))]
    else:
        lines = [reason.text for reason in health.reasons]
        lines += [held.text for held in health.held if held.text not in lines and held.effects != "gates"]
    yield from lines or ["Nothing delayed, nothing undelivered."]
    verdicts = state["verdicts"]
    if verdicts is not None and verdicts.of:
        yield f"People contradicted {verdicts.contradicted:,} of {verdicts.of:,} verdicts in 30 days."
    if number := state["outdated_fingerprints"]:
        yield f"The fingerprints of {number:,} failures are still to be computed by the new rules."


def _cells(backend: JsonObject) -> list[Cell]:
    last, rate = read_object(backend, "last_result"), read_ratio(backend, "pass_rate")
    result = read_text(last, "conclusion") or read_text(last, "state")
    return [
        read_text(backend, "name"),
        read_text(backend, "level"),
        "suspended" if backend.get("suspended") is True else result,
        read_time(last, "at"),
        None if rate is None else format_percent(rate),
        read_integer(backend, "parked") or None,
        ", ".join(read_texts(backend, "oncalls")) or None,
    ]
