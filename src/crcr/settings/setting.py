"""`Setting`: the names, reader, default and meaning of one setting.

Declared with the types in `model`; the loader, `check-config` and docs/configuration.md all use it, so that a setting is
declared once. Defaults are written as the operator would write them.
"""

from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass, field
from difflib import get_close_matches
from pathlib import Path

from pydantic import BaseModel, ConfigDict

from crcr.settings.secret_files import SecretFiles

FROZEN = ConfigDict(frozen=True, strict=True, extra="forbid", hide_input_in_errors=True)
"""Errors never show the input, because it may be a secret."""
PREFIX = "CRCR_"
FILE_SUFFIX = "_FILE"
UNREADABLE = object()
"""Value of a setting whose file could not be read; the problem is already reported, and it is not missing."""


class InvalidValue(ValueError):
    """A value that cannot be used; the text follows the setting's name ("must be …")."""


@dataclass(frozen=True, slots=True)
class RawValue:
    """A value as given: text from the environment, any TOML value from the file."""

    value: object
    written: str
    """The name as the operator wrote it: the variable, or the key in the file."""
    folder: Path
    """Base of relative paths: the file's folder, or the working directory."""
    secret_files: SecretFiles = field(default_factory=SecretFiles, repr=False, compare=False)


Reader = Callable[[RawValue], object]


@dataclass(frozen=True, slots=True)
class Setting:
    env: str
    """Environment variable without its prefix; empty for settings that only the file can set."""
    key: str
    """Dotted key in the TOML file."""
    reader: Reader
    meaning: str
    _: KW_ONLY
    default: str | None = None
    required: bool = False
    secret: bool = False
    """Never quoted in a problem, and also read from the file or the reference that `<name>_FILE` (`<key>_file`) names."""

    @property
    def variable(self) -> str:
        return PREFIX + self.env

    def by_default(self, folder: Path = Path()) -> RawValue | None:
        return None if self.default is None else RawValue(self.default, self.variable, folder)


def settings_of(model: type[BaseModel]) -> dict[str, Setting]:
    """Return the settings of a model's fields: its own in order, then those of its groups."""
    fields = sorted(model.model_fields.items(), key=lambda item: item[0] not in model.__annotations__)
    return {field: row for field, info in fields for row in info.metadata if isinstance(row, Setting)}


def read_value(row: Setting, raw: RawValue, problems: list[str]) -> object | None:
    """Return the value, or None after adding the problem."""
    if raw.value is UNREADABLE:
        return None
    try:
        return row.reader(raw)
    except InvalidValue as wrong:
        problems.append(f"{raw.written} {wrong}")
        return None


def describe_missing(row: Setting) -> str:
    file = f", or {row.variable}{FILE_SUFFIX} to a file that holds it" if row.secret else ""
    return f"{row.variable} is missing; set it{file} (in the TOML file: {row.key}): {row.meaning}."


def suggest_name(word: str, known: list[str]) -> str:
    """Return advice about an unknown name."""
    by_shape = {_shape(name): name for name in known}
    near = get_close_matches(_shape(word[:100]), by_shape, n=1, cutoff=0.75)
    return f"did you mean {by_shape[near[0]]}?" if near else "remove it (docs/configuration.md lists all)."


def _shape(name: str) -> str:
    return name.lower().replace(".", "_").replace("-", "_")
