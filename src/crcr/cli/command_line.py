"""The command tree's own help and usage errors: plain words instead of Python types, paragraphs that wrap.

`CommandLine` is a Typer app whose commands print this help. It imports nothing heavy: help comes at once.
"""

import inspect
import shutil
import sys
import textwrap
from collections.abc import Callable, Iterator
from enum import Enum
from typing import Any, TypeVar

import typer
from typer.core import TyperCommand, TyperGroup

Function = TypeVar("Function", bound=Callable[..., Any])

_WIDEST, _NARROWEST = 100, 40
_COLUMN = 30
"""The widest column of options; a longer option has its text on the next line."""
_LONGEST_CHOICE = 40
"""A longer list of choices is part of the option's text, where it wraps."""
_PANEL = "Commands"
PORT = "PORT"
"""The word for a port's number, whose range everybody knows."""


class PlainCommand(TyperCommand):
    def format_help(self, ctx: Any, formatter: Any) -> None:
        formatter.write("\n".join(_command_lines(self, ctx)))


class PlainGroup(TyperGroup):
    def format_help(self, ctx: Any, formatter: Any) -> None:
        formatter.write("\n".join(_group_lines(self, ctx)))


class CommandLine(typer.Typer):
    """A Typer app whose commands and groups print plain help."""

    def __init__(self, **more: Any) -> None:
        more.setdefault("cls", PlainGroup)
        super().__init__(**more)

    def command(self, *words: Any, **more: Any) -> Callable[[Function], Function]:
        more.setdefault("cls", PlainCommand)
        return super().command(*words, **more)


def describe_usage_error(error: typer.TyperException) -> tuple[str, str]:
    """Return what is wrong with a command line, and where the command's help is."""
    context = getattr(error, "ctx", None)
    similar = sorted(getattr(error, "possibilities", None) or ())
    meant = f"did you mean {' or '.join(similar)}? " if similar else ""
    return _message(error), f"{meant}see {context.command_path if context is not None else 'crcr'} --help"


def _message(error: typer.TyperException) -> str:
    parameter = getattr(error, "param", None)
    if parameter is None:
        text = error.message.strip().removesuffix(".")
        return f"{text[:1].lower()}{text[1:]}"
    name = " or ".join(parameter.opts) if parameter.param_type_name == "option" else value_word(parameter)
    if type(error).__name__ == "MissingParameter":
        return f"{name} is missing"
    if _is_number(parameter):
        return f"{name} must be {'a number' if _annotation(parameter) is float else 'a whole number'}{_range(parameter)}"
    return f"{name}: {error.message.strip().removeprefix('Value error, ').removesuffix('.')}"


def value_word(parameter: Any) -> str:
    """Return the word for a parameter's value, empty for a switch."""
    if getattr(parameter, "is_flag", False) or getattr(parameter, "count", False):
        return ""
    if parameter.metavar is not None:
        return str(parameter.metavar)
    described = parameter.type_descriptor
    if described.is_choice and len(short := "|".join(_choices(parameter))) <= _LONGEST_CHOICE:
        return short
    if _is_number(parameter):
        return "NUMBER"
    if described.is_path:
        return "FILE"
    return str(parameter.name).upper().rpartition("_")[2]


def _choices(parameter: Any) -> list[str]:
    return [_plain(choice) for choice in parameter.type_descriptor.choices or ()]


def _is_number(parameter: Any) -> bool:
    return _annotation(parameter) in (int, float)


def _annotation(parameter: Any) -> Any:
    return parameter.type_descriptor.annotation


def _range(parameter: Any) -> str:
    low, high = getattr(parameter, "min", None), getattr(parameter, "max", None)
    if value_word(parameter) == PORT:
        return f" from {low} to {high}"
    if low is not None and high is not None:
        return f" from {low:,} to {high:,}"
    if low is not None:
        return f" of {low:,} or more"
    return f" of {high:,} or less" if high is not None else ""


def _group_lines(group: TyperGroup, ctx: Any) -> Iterator[str]:
    yield f"Usage: {ctx.command_path} COMMAND"
    yield from _paragraphs(group.help)
    panels: dict[str, list[tuple[str, str]]] = {}
    for name in group.list_commands(ctx):
        command = group.get_command(ctx, name)
        if command is not None and not command.hidden:
            panel = getattr(command, "rich_help_panel", None)
            title = panel if isinstance(panel, str) else _PANEL
            panels.setdefault(title, []).append((name, _first_sentence(command)))
    for title, rows in panels.items():
        yield from _section(title, rows)
    yield from _options(group, ctx)
    yield from _epilog(group.epilog)


def _first_sentence(command: Any) -> str:
    first = inspect.cleandoc(command.help or "").split("\n\n")[0].replace("\n", " ")
    return first.split(". ")[0].removesuffix(".") + "."


def _command_lines(command: TyperCommand, ctx: Any) -> Iterator[str]:
    parameters = [
        parameter for parameter in command.get_params(ctx) if not getattr(parameter, "hidden", False)
    ]
    arguments = [parameter for parameter in parameters if parameter.param_type_name == "argument"]
    words = [_usage_word(argument) for argument in arguments]
    yield " ".join(("Usage:", ctx.command_path, *words, "[OPTIONS]"))
    yield from _paragraphs(command.help)
    yield from _section("Arguments", [(_usage_word(argument), _describe(argument)) for argument in arguments])
    yield from _options(command, ctx)
    yield from _epilog(command.epilog)


def _usage_word(argument: Any) -> str:
    word = value_word(argument).strip("[]") + ("..." if argument.nargs != 1 else "")
    return word if argument.required else f"[{word}]"


def _options(command: Any, ctx: Any) -> Iterator[str]:
    panels: dict[str, list[tuple[str, str]]] = {}
    for option in command.get_params(ctx):
        if option.param_type_name == "option" and not option.hidden:
            panel = getattr(option, "rich_help_panel", None)
            title = panel if isinstance(panel, str) else "Options"
            panels.setdefault(title, []).append((_names(option), _describe(option)))
    for title, rows in panels.items():
        yield from _section(title, rows)


def _names(option: Any) -> str:
    short = [name for name in option.opts if not name.startswith("--")]
    long = [name for name in option.opts if name.startswith("--")]
    names = ", ".join([*short, *long, *option.secondary_opts])
    return f"{'' if short else '    '}{names} {value_word(option)}".rstrip()


def _describe(parameter: Any) -> str:
    """Return the parameter's help with its range, default and variable."""
    parts = [" ".join(inspect.cleandoc(parameter.help or "").split())]
    word = value_word(parameter)
    if word and "|" not in word and parameter.metavar is None and parameter.type_descriptor.is_choice:
        parts.append(f"One of {', '.join(_choices(parameter))}.")
    if _is_number(parameter) and word != PORT and (bounds := _range(parameter)):
        parts.append(f"{bounds.strip().removeprefix('of ').capitalize()}.")
    if default := _default(parameter):
        parts.append(f"Default: {default}.")
    if parameter.envvar and parameter.show_envvar:
        parts.append(f"Variable: {parameter.envvar}.")
    return " ".join(parts)


def _default(parameter: Any) -> str:
    if isinstance(parameter.show_default, str):
        return parameter.show_default
    value = parameter.default
    if not parameter.show_default or value is None or isinstance(value, bool) or callable(value):
        return ""
    if isinstance(value, list | tuple):
        return ", ".join(map(_plain, value))
    return _plain(value)


def _plain(value: Any) -> str:
    if isinstance(value, Enum):
        return str(value.value)
    return f"{value:,}" if isinstance(value, int | float) and value >= 10_000 else str(value)


def _paragraphs(text: str | None) -> Iterator[str]:
    for paragraph in inspect.cleandoc(text or "").split("\n\n"):
        yield ""
        yield from _wrap(" ".join(paragraph.split()), indent="")


def _section(title: str, rows: list[tuple[str, str]]) -> Iterator[str]:
    if not rows:
        return
    yield from ("", f"{title}:")
    column = min(max(len(name) for name, _ in rows), _COLUMN) + 4
    for name, text in rows:
        lines = _wrap(text, indent=" " * column)
        if len(name) + 4 > column:
            yield f"  {name}"
        else:
            lines[:1] = [f"  {name}".ljust(column) + lines[0].strip()]
        yield from lines


def _epilog(text: str | None) -> Iterator[str]:
    if text:
        yield ""
        yield from text.splitlines()


def _wrap(text: str, *, indent: str) -> list[str]:
    """Wrap at the terminal's width; no word is cut, also not an address that is longer than a line."""
    return textwrap.wrap(
        text,
        _help_width(),
        initial_indent=indent,
        subsequent_indent=indent,
        break_long_words=False,
        break_on_hyphens=False,
    ) or [indent]


def _help_width() -> int:
    columns = shutil.get_terminal_size((_WIDEST, 24)).columns if sys.stdout.isatty() else _WIDEST
    return max(_NARROWEST, min(columns, _WIDEST))
