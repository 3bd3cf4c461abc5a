"""`/api/docs`: the OpenAPI description as a plain page, with nothing from outside and no script."""

from collections.abc import Awaitable, Callable
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from crcr.show.rendering import Renderer

_METHODS = ("get", "post", "put", "patch", "delete")


def docs_endpoint(renderer: Renderer) -> Callable[[Request], Awaitable[Response]]:
    async def docs(request: Request) -> Response:
        description = request.app.openapi()
        schemas = description.get("components", {}).get("schemas", {})
        context = {
            "title": description["info"]["title"],
            "api_version": description["info"]["version"],
            "operations": list(_operations(description)),
            "schemas": {name: _fields(schema) for name, schema in sorted(schemas.items())},
        }
        return renderer.page("docs.html", context)

    return docs


def _operations(description: dict[str, Any]) -> Any:
    for path, item in sorted(description["paths"].items()):
        for method in _METHODS:
            if method in item:
                yield {"path": path, "method": method.upper(), **_told(item[method])}


def _told(operation: dict[str, Any]) -> dict[str, Any]:
    return {
        "summary": operation.get("summary", ""),
        "description": operation.get("description", ""),
        "parameters": [
            {
                "name": each["name"],
                "place": each["in"],
                "type": _type(each.get("schema", {})),
                "required": each.get("required", False),
                "description": each.get("description", "").replace("`", ""),
            }
            for each in operation.get("parameters", [])
        ],
        "answers": {
            code: _type(answer.get("content", {}).get("application/json", {}).get("schema", {}))
            for code, answer in operation.get("responses", {}).items()
        },
    }


def _fields(schema: dict[str, Any]) -> list[tuple[str, str]]:
    if "enum" in schema:
        return [(str(value), "") for value in schema["enum"]]
    return [(name, _type(field)) for name, field in schema.get("properties", {}).items()]


def _type(schema: dict[str, Any]) -> str:
    if "$ref" in schema:
        return str(schema["$ref"]).rpartition("/")[2]
    if "anyOf" in schema:
        return " or ".join(_type(each) for each in schema["anyOf"])
    if schema.get("type") == "array":
        return f"list of {_type(schema.get('items', {}))}"
    return str(schema.get("format") or schema.get("type") or "")
