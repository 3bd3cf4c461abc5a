"""`/api/docs`: the OpenAPI description as a plain page, searched on the server, without scripts or outside resources."""

import json
from collections.abc import Awaitable, Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from crcr.show.render.templates import Renderer

_METHODS = ("get", "post", "put", "patch", "delete")
_ORDER = ("numbers", "commits", "lists", "relay", "csv", "admin")
_LONGEST_SEARCH = 100
Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class ParameterDoc:
    name: str
    location: str
    type: str
    schema: str | None
    """The name of its type, if the page lists it."""
    bounds: str
    required: bool
    description: str


@dataclass(frozen=True, slots=True)
class ResponseDoc:
    code: str
    type: str
    """The name of a type of the page, or a media type."""
    description: str
    schema: str | None


@dataclass(frozen=True, slots=True)
class OperationDoc:
    method: str
    path: str
    tag: str
    summary: str
    description: str
    parameters: tuple[ParameterDoc, ...]
    answers: tuple[ResponseDoc, ...]

    @property
    def schemas(self) -> set[str | None]:
        return {parameter.schema for parameter in self.parameters} | {
            answer.schema for answer in self.answers
        }

    def matches(self, words: Iterable[str]) -> bool:
        texts = [self.method, self.path, self.tag, self.summary, self.description]
        texts += [parameter.name for parameter in self.parameters] + [answer.type for answer in self.answers]
        text = " ".join(texts).lower()
        return all(word in text for word in words)


@dataclass(frozen=True, slots=True)
class TypeDoc:
    name: str
    description: str
    fields: tuple[tuple[str, str, str], ...]
    """Name, type, meaning."""
    example: str | None

    def matches(self, words: Iterable[str]) -> bool:
        text = " ".join([self.name, *(field for field, _, _ in self.fields)]).lower()
        return all(word in text for word in words)


def docs_endpoint(renderer: Renderer) -> Callable[[Request], Awaitable[Response]]:
    async def docs(request: Request) -> Response:
        search_text = request.query_params.get("q", "")[:_LONGEST_SEARCH].strip()
        words = search_text.lower().split()
        description = request.app.openapi()
        schemas = description.get("components", {}).get("schemas", {})
        operations = [
            operation for operation in _describe_operations(description) if operation.matches(words)
        ]
        used = {name for operation in operations for name in operation.schemas}
        types = [_describe_type(name, schema) for name, schema in sorted(schemas.items())]
        context = {
            "title": description["info"]["title"],
            "api_version": description["info"]["version"],
            "search_text": search_text,
            "groups": _group_by_tag(operations),
            "types": [type_ for type_ in types if type_.matches(words) or (words and type_.name in used)],
        }
        return renderer.page("docs.html", context)

    return docs


def _group_by_tag(operations: Iterable[OperationDoc]) -> dict[str, list[OperationDoc]]:
    groups: dict[str, list[OperationDoc]] = {}
    for operation in sorted(operations, key=lambda operation: _tag_order(operation.tag)):
        groups.setdefault(operation.tag, []).append(operation)
    return groups


def _tag_order(tag: str) -> int:
    return _ORDER.index(tag) if tag in _ORDER else len(_ORDER)


def _describe_operations(description: Json) -> Iterator[OperationDoc]:
    for path, item in sorted(description["paths"].items()):
        for method in _METHODS:
            if method in item:
                yield _describe_operation(method.upper(), path, item[method])


def _describe_operation(method: str, path: str, operation: Json) -> OperationDoc:
    return OperationDoc(
        method,
        path,
        next(iter(operation.get("tags", ())), "other"),
        operation.get("summary", ""),
        operation.get("description", ""),
        tuple(_describe_parameter(parameter) for parameter in operation.get("parameters", [])),
        tuple(_describe_response(code, answer) for code, answer in operation.get("responses", {}).items()),
    )


def _describe_parameter(parameter: Json) -> ParameterDoc:
    schema = parameter.get("schema", {})
    return ParameterDoc(
        parameter["name"],
        parameter["in"],
        _type_name(schema),
        _referenced_type(schema),
        _describe_bounds(schema),
        parameter.get("required", False),
        parameter.get("description", ""),
    )


def _describe_response(code: str, answer: Json) -> ResponseDoc:
    for media, content in answer.get("content", {}).items():
        schema = content.get("schema", {})
        name = _type_name(schema) if media == "application/json" else media
        return ResponseDoc(code, name, answer.get("description", ""), name if "$ref" in schema else None)
    return ResponseDoc(code, "", answer.get("description", ""), None)


def _describe_type(name: str, schema: Json) -> TypeDoc:
    example = next(iter(schema.get("examples", ())), None)
    return TypeDoc(
        name,
        schema.get("description", ""),
        tuple(_fields(schema)),
        json.dumps(example, indent=2, ensure_ascii=False) if example is not None else None,
    )


def _fields(schema: Json) -> Iterator[tuple[str, str, str]]:
    for value in schema.get("enum", ()):
        yield str(value), "", ""
    for name, field in schema.get("properties", {}).items():
        yield name, _type_name(field), field.get("description", "")


def _type_name(schema: Json) -> str:
    if "$ref" in schema:
        return str(schema["$ref"]).rpartition("/")[2]
    if "anyOf" in schema:
        return " or ".join(_type_name(option) for option in schema["anyOf"])
    if "enum" in schema:
        return ", ".join(map(str, schema["enum"]))
    if schema.get("type") == "array":
        return f"list of {_type_name(schema.get('items', {}))}"
    return str(schema.get("format") or schema.get("type") or "")


def _referenced_type(schema: Json) -> str | None:
    """Return the type that a schema refers to, also if it is optional."""
    references = [option for option in (schema, *schema.get("anyOf", ())) if "$ref" in option]
    return _type_name(references[0]) if references else None


def _describe_bounds(schema: Json) -> str:
    """Return the limits of a value and its default, in words."""
    plain = next((option for option in schema.get("anyOf", ()) if option.get("type") != "null"), schema)
    bounds = [
        f"{label} {plain[key]}"
        for key, label in (
            ("minimum", "at least"),
            ("maximum", "at most"),
            ("minLength", "characters at least"),
            ("maxLength", "characters at most"),
        )
        if key in plain
    ]
    if schema.get("default") is not None:
        bounds.append(f"default {schema['default']}")
    return "; ".join(bounds)
