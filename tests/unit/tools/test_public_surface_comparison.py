"""The comparison of `tools/public_surface.py`."""

from typing import Any

import pytest
from tools.public_surface import compare


def schema(**fields: Any) -> dict[str, Any]:
    return {"openapi": {"properties": fields, "required": list(fields)}}


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ({"description": "old"}, {"description": "new"}),
        ({"help": "old"}, {}),
        ({"example": {"id": 1}}, {"example": {"id": 2}}),
        ({"enum": ["a", "b"]}, {"enum": ["b", "a"]}),
        (schema(a={"title": "A"}, b={}), schema(b={}, a={"title": "B"})),
    ],
)
def test_changed_texts_and_the_order_of_enums_are_no_difference(before: Any, after: Any) -> None:
    assert list(compare(before, after)) == []


def test_texts_are_compared_on_request() -> None:
    before, after = {"help": "old", "example": {"id": 1}}, {"help": "new", "example": {"id": 2}}
    differences = list(compare(before, after, texts=True))
    assert differences == ["changed  example > id: 1 → 2", 'changed  help: "old" → "new"']


def test_a_field_named_like_a_text_key_is_compared() -> None:
    assert list(compare(schema(title={"type": "string"}), schema(title={"type": "integer"}))) == [
        'changed  openapi > properties > title > type: "string" → "integer"'
    ]


def test_additions_and_removals_have_one_line_each() -> None:
    before = {"routes": {"GET /a": "route", "GET /b": "route"}, "commands": {"crcr a": {"parameters": {}}}}
    after = {"routes": {"GET /a": "route"}, "commands": {"crcr a": {"parameters": {"--x": {"type": "int"}}}}}
    assert list(compare(before, after)) == [
        "added    commands > crcr a > parameters > --x",
        'removed  routes > GET /b: "route"',
    ]


def test_parameters_are_compared_by_name_in_any_order() -> None:
    limit, since = {"name": "limit", "in": "query", "required": False}, {"name": "since", "in": "query"}
    before = {"parameters": [limit, since]}
    after = {"parameters": [since, {**limit, "required": True}]}
    assert list(compare(before, after)) == ["changed  parameters > limit in query > required: false → true"]
