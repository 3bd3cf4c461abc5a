"""Parsing of arguments and printing: names, durations, times, tables, foreign text."""

import json
from datetime import UTC, datetime, timedelta

import pytest
import typer

from crcr.cli.options import parse_duration, parse_repo_name, parse_time
from crcr.cli.printing import escape_unprintable, format_age, print_json, print_line, print_table

NOW = datetime(2026, 8, 3, 9, 0, tzinfo=UTC)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("30s", 30), ("30", 30), ("1.5s", 1.5), ("15m", 900), ("6 h", 21600), ("2d", 172800)],
)
def test_a_duration_is_a_number_and_a_unit(text: str, seconds: float) -> None:
    assert parse_duration(text) == timedelta(seconds=seconds)


@pytest.mark.parametrize("text", ["", "0s", "soon", "5w", "-3s", "s"])
def test_an_invalid_duration_is_refused_with_examples(text: str) -> None:
    with pytest.raises(typer.BadParameter, match="such as 30s"):
        parse_duration(text)


def test_a_time_is_a_timestamp_or_an_age() -> None:
    assert parse_time("2026-08-03T09:00") == NOW
    assert parse_time("2026-08-03T11:00+02:00") == NOW
    assert (
        timedelta(hours=1, minutes=59) < datetime.now(UTC) - parse_time("2h") < timedelta(hours=2, minutes=1)
    )


def test_an_invalid_time_is_refused() -> None:
    with pytest.raises(typer.BadParameter, match="or an age such as 2h"):
        parse_time("yesterday")


@pytest.mark.parametrize("text", ["org", "org/", "a/b/c", "org/re po", "../x"])
def test_a_repository_that_is_not_owner_and_name_is_refused(text: str) -> None:
    with pytest.raises(typer.BadParameter, match="is not owner/repo"):
        parse_repo_name(text)


@pytest.mark.parametrize(
    ("age", "text"),
    [
        (timedelta(seconds=5), "5s ago"),
        (timedelta(minutes=61), "1h ago"),
        (timedelta(days=3), "3d ago"),
        (timedelta(minutes=-5), "in 5m"),
        (timedelta(days=40), "2026-06-24"),
    ],
)
def test_times_are_printed_as_relative_ages_or_dates(age: timedelta, text: str) -> None:
    assert format_age(NOW - age, NOW) == text


def test_foreign_text_cannot_move_the_cursor_or_reverse_the_text_direction() -> None:
    assert escape_unprintable("a\x1b[31mb\u202ec\nd\x9b") == r"a\x1b[31mb\u202ec\nd\x9b"
    assert escape_unprintable("grün ✓ 日本") == "grün ✓ 日本"


def test_a_table_prints_foreign_markup_literally(capsys: pytest.CaptureFixture[str]) -> None:
    print_table(["name", "~why"], [["[bold]x[/bold]", ":smile: [link=http://evil]\x1b[2J"], [None, True]])
    out = capsys.readouterr().out
    assert "[bold]x[/bold]" in out
    assert r":smile: [link=http://evil]\x1b[2J" in out
    assert "\x1b" not in out


def test_a_narrow_terminal_wraps_between_words(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    print_table(
        ["guid", "~why"], [["72d3162e-cc78-11e3-81ab-4c9367dc0958", "The App is not installed there."]]
    )
    out = capsys.readouterr().out
    assert "72d3162e-cc78-11e3-81ab-4c9367dc0958  The App is not installed" in out


@pytest.mark.parametrize("columns", [None, "40"])
def test_no_cell_is_truncated_at_any_width(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, columns: str | None
) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    if columns:
        monkeypatch.setenv("COLUMNS", columns)
    oncalls, events, why = ", ".join(["ada"] * 40), ", ".join(["push"] * 40), "no room there " * 20
    print_table(["on-calls", "events", "~why"], [[oncalls, events, why]])
    _, *lines = capsys.readouterr().out.splitlines()
    assert f"{oncalls}  {events}  no room there" in lines[0]
    assert "".join(lines).count("room") == 20
    assert columns or len(lines) == 1


def test_a_line_into_a_pipe_is_not_wrapped(capsys: pytest.CaptureFixture[str]) -> None:
    print_line("x" * 500)
    assert capsys.readouterr().out == "x" * 500 + "\n"


def test_json_is_ascii_and_complete(capsys: pytest.CaptureFixture[str]) -> None:
    print_json({"at": NOW, "name": "\x9b\u202e日本"})
    out = capsys.readouterr().out
    assert out.isascii()
    assert json.loads(out) == {"at": "2026-08-03T09:00:00Z", "name": "\x9b\u202e日本"}
