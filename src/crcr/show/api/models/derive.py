"""Pydantic models derived from the frozen values of the views, so that each field is written once, in `decide`.

A derived model has the fields of its value under the same names. Repository names become `owner/repo`, levels `L1` to
`L4`, tuples lists, and nested values the models that were derived from them before. A model of its own is written only
where the JSON differs from the value.
"""

from collections.abc import Mapping
from dataclasses import fields
from functools import cached_property, reduce
from operator import or_
from types import UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, create_model
from pydantic.fields import FieldInfo

from crcr.decide.model import Level, RepoName
from crcr.decide.statistics.window import HistoryState
from crcr.show.render.safe_text import safe_link
from crcr.show.urls import cursors


class Model(BaseModel):
    model_config = ConfigDict(from_attributes=True, frozen=True)


def _level_name(level: object) -> object:
    return level.name if isinstance(level, Level) else level


def _cursor(key: object) -> object:
    return cursors.encode(key) if isinstance(key, tuple) else key


Link = Annotated[str | None, BeforeValidator(safe_link)]
Name = Annotated[str, BeforeValidator(str)]
LevelName = Annotated[Literal["L1", "L2", "L3", "L4"], BeforeValidator(_level_name)]
Cursor = Annotated[str | None, BeforeValidator(_cursor)]
Next = Annotated[Cursor, Field(description="The cursor of the following page; null on the last one.")]
History = Annotated[
    Literal["database", "clickhouse"],
    BeforeValidator(lambda state: state.source if isinstance(state, HistoryState) else state),
    Field(description="Where the history was read from; the numbers are the same."),
]
_JSON_TYPES: dict[Any, Any] = {RepoName: Name, Level: LevelName, HistoryState: History}


def derive_model(
    value: type,
    name: str,
    about: str | None = None,
    *,
    base: type[Model] = Model,
    only: tuple[str, ...] | None = None,
    without: tuple[str, ...] = (),
    properties: tuple[str, ...] = (),
    types: Mapping[str, Any] | None = None,
    described: Mapping[str, str] | None = None,
    example: Mapping[str, Any] | None = None,
) -> type[Model]:
    """Return the model of a frozen dataclass; values of that class nested in later ones become this model.

    `properties` are included beside the fields. `types` replaces the type of a field or adds one; a pair is a type and
    its default. `described` holds what the API's description says about single fields.
    """
    chosen = [
        field.name
        for field in fields(value)
        if field.name not in without and (not only or field.name in only)
    ]
    hints = get_type_hints(value)
    hints |= {
        field_name: get_type_hints(_getter(getattr(value, field_name)))["return"] for field_name in properties
    }
    field_types = {field_name: _json_type(hints[field_name]) for field_name in (*chosen, *properties)} | dict(
        types or {}
    )
    descriptions = described or {}
    definitions: dict[str, Any] = {
        field_name: _definition(hint, descriptions.get(field_name))
        for field_name, hint in field_types.items()
    }
    extra = {"json_schema_extra": {"examples": [dict(example)]}} if example else {}
    model = create_model(
        name, __base__=base, __doc__=about, __module__=__name__, __cls_kwargs__=extra, **definitions
    )
    _JSON_TYPES.setdefault(value, model)
    return model


def _getter(computed: property | cached_property[Any]) -> Any:
    return computed.func if isinstance(computed, cached_property) else computed.fget


def _definition(hint: Any, description: str | None) -> tuple[Any, Any]:
    kind, default = hint if isinstance(hint, tuple) else (hint, ...)
    if description is None:
        return kind, default
    info: FieldInfo = Field(default, description=description)
    return kind, info


def _json_type(hint: Any) -> Any:
    if hint in _JSON_TYPES:
        return _JSON_TYPES[hint]
    origin, args = get_origin(hint), get_args(hint)
    if origin is tuple:
        return list[_json_type(args[0])]  # type: ignore[misc]  # a type known at run time only
    if origin in (Union, UnionType):
        return reduce(or_, map(_json_type, args))
    if isinstance(origin, type) and issubclass(origin, Mapping):
        return dict[args[0], args[1]]  # type: ignore[valid-type]  # the same
    return hint
