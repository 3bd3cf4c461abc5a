"""`crcr check-config`: the effective settings with their sources, and all problems."""

import os
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from crcr.cli.options import RUN_PANEL, ConfigOption, JsonOption, examples, read_settings
from crcr.cli.printing import print_error, print_json, print_line, print_table, print_warning
from crcr.errors import BadSettings

if TYPE_CHECKING:
    from crcr.settings import Setting, Settings, UpstreamSetting

_HIDDEN = "(hidden)"
_UNITS = (("d", 86400), ("h", 3600), ("m", 60))

Line = dict[str, str | None]


def register(app: typer.Typer) -> None:
    app.command(
        "check-config",
        rich_help_panel=RUN_PANEL,
        epilog=examples("crcr check-config", "crcr check-config --config /etc/crcr.toml --json"),
    )(check_config)


def check_config(config: ConfigOption = None, as_json: JsonOption = False) -> None:
    """Check the settings and show the effective values; secrets stay hidden.

    Reports all problems at once; the exit code is then 2.
    """
    try:
        settings = read_settings(config)
    except BadSettings as bad:
        if as_json:
            print_json({"ok": False, "problems": bad.problems})
        else:
            print_error("\n".join(bad.problems), bad.hint)
        raise typer.Exit(2) from None
    lines = [*_settings(settings, config), *_upstreams(settings)]
    if as_json:
        print_json({"ok": True, "settings": lines, "warnings": settings.warnings()})
        return
    print_table(
        ["setting", "~value", "from"], ([line["name"], line["value"], line["from"]] for line in lines)
    )
    for warning in settings.warnings():
        print_warning(warning)
    print_line("the settings are valid")


def _settings(settings: "Settings", config: Path | None) -> Iterator[Line]:
    from crcr.settings import Settings, settings_of

    file, content = _read_file(config)
    for field, row in settings_of(Settings).items():
        value = _format_value(field, getattr(settings, field))
        yield {"name": row.variable, "value": value, "from": _find_origin(row, file, content)}


def _upstreams(settings: "Settings") -> Iterator[Line]:
    from crcr.settings import UpstreamSetting, settings_of

    for upstream in settings.upstreams:
        for field in settings_of(UpstreamSetting):
            if field != "name":
                yield {
                    "name": f"{upstream.name}: {field}",
                    "value": _format_upstream_value(upstream, field),
                    "from": None,
                }


def _format_upstream_value(upstream: "UpstreamSetting", field: str) -> str | None:
    value = getattr(upstream, field)
    return _format_source(value) if field == "allowlist" else _format_value(field, value)


def _format_source(source: Any) -> str:
    location = getattr(source, "location", None)
    return (
        str(source.path)
        if location is None
        else f"{location.repository}@{location.ref}:{location.path} on {source.web}"
    )


def _format_value(field: str, value: Any) -> str | None:
    from pydantic import SecretStr

    from crcr.settings import PostgresSetting
    from crcr.settings.readers.service_urls import ServiceUrl

    match value:
        case None | ():
            return None
        case PostgresSetting() | ServiceUrl():
            return value.display_name
        case SecretStr():
            return _HIDDEN
        case tuple():
            return ", ".join(_format_item(item) for item in value)
        case int() if field.endswith("_s"):
            return _format_duration(value)
    path = getattr(value, "path", None)
    return str(value) if path is None else f"sqlite:///{path}"


def _format_item(value: Any) -> str:
    """Return an issuer's address, a token's name, or the value itself."""
    return str(getattr(value, "issuer", None) or getattr(value, "name", None) or value)


def _format_duration(seconds: int) -> str:
    for unit, size in _UNITS:
        if seconds and seconds % size == 0:
            return f"{seconds // size}{unit}"
    return f"{seconds}s"


def _read_file(config: Path | None) -> tuple[str, Mapping[str, Any]]:
    """Return the file's name and content; it was just loaded without a problem."""
    path = config or Path("crcr.toml")
    return str(path), tomllib.loads(path.read_text("utf-8")) if path.is_file() else {}


def _find_origin(row: "Setting", file: str, content: Mapping[str, Any]) -> str:
    for name in (row.variable, f"{row.variable}_FILE"):
        if os.environ.get(name, "").strip():
            return name
    table, _, key = row.key.rpartition(".")
    table_content = content.get(table, {}) if table else content
    if key in table_content or f"{key}_file" in table_content:
        return file
    return "default" if row.default is not None else "not set"
