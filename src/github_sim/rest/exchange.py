"""Types of an API call: `Route`, `ApiRequest`, `Reply`, and `ApiError` for a refusal; and pagination of lists.

Handlers take an `ApiRequest` and return a `Reply`; an `ApiError` becomes GitHub's error body.
"""

import enum
import json
import re
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

from github_sim.world.records import InstallationToken, Json, Repository

if TYPE_CHECKING:
    from github_sim.simulation import Simulation

DOCUMENTATION = "https://docs.github.com/rest"
# Path parameters that may hold slashes.
_LONG = frozenset({"path", "ref", "basehead"})


class Auth(enum.Enum):
    """The authentication of a route: the App's JWT, an installation's token, or none."""

    APP = "app"
    INSTALLATION = "installation"
    OPEN = "open"


@dataclass(frozen=True)
class Caller:
    """The authenticated caller: the App itself, or an installation with one of its tokens."""

    app_id: int
    token: InstallationToken | None = None

    @property
    def installation_id(self) -> int | None:
        return self.token.installation_id if self.token else None


class ApiError(Exception):
    """GitHub's refusal."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        headers: Mapping[str, str] | None = None,
        errors: list[Json] | None = None,
    ) -> None:
        super().__init__(f"{status} {message}")
        self.status = status
        self.message = message
        self.headers = dict(headers or {})
        self.errors = errors

    def reply(self) -> "Reply":
        body: Json = {
            "message": self.message,
            "documentation_url": DOCUMENTATION,
            "status": str(self.status),
        }
        if self.errors is not None:
            body["errors"] = self.errors
        return Reply(self.status, body, headers=self.headers)


def validation_error(resource: str, field_name: str, message: str) -> ApiError:
    """A 422 in the shape of GitHub's validation errors."""
    problem = {"resource": resource, "field": field_name, "code": "custom", "message": message}
    return ApiError(422, f"Invalid request.\n\n{message}", errors=[problem])


@dataclass(frozen=True)
class Reply:
    status: int = 200
    body: Any = None
    headers: Mapping[str, str] = field(default_factory=dict)
    raw: bytes | None = None
    media: str = "application/json; charset=utf-8"

    def content(self) -> bytes:
        if self.raw is not None:
            return self.raw
        return b"" if self.status in {204, 304} else json.dumps(self.body).encode()


@dataclass
class ApiRequest:
    route: "Route"
    path: str
    params: Mapping[str, str]
    query: Mapping[str, str]
    headers: Mapping[str, str]
    body: bytes
    caller: Caller | None = None
    _repository: Repository | None = None

    @property
    def repository(self) -> Repository:
        if self._repository is None:
            raise LookupError(f"{self.route.template} names no repository")
        return self._repository

    def bind(self, repository: Repository) -> None:
        self._repository = repository

    def json(self) -> Json:
        try:
            body = json.loads(self.body or b"{}")
        except ValueError:
            raise ApiError(400, "Problems parsing JSON") from None
        if not isinstance(body, dict):
            raise ApiError(400, "Body should be a JSON object")
        return body

    def number(self, name: str) -> int:
        try:
            return int(self.params[name])
        except ValueError:
            raise ApiError(404, "Not Found") from None

    def bounded_int(self, name: str, default: int, most: int) -> int:
        """A whole number from the query, kept within GitHub's bounds."""
        text = self.query.get(name, "")
        return min(max(int(text), 1), most) if text.isdigit() else default


Handler = Callable[["Simulation", ApiRequest], Awaitable[Reply]]


@dataclass(frozen=True)
class Route:
    """One route, written as in GitHub's OpenAPI description."""

    method: str
    template: str
    handler: Handler
    auth: Auth = Auth.INSTALLATION
    permission: tuple[str, str] | None = None

    @property
    def pattern(self) -> re.Pattern[str]:
        return re.compile(_PARAMETER.sub(_group, self.template) + r"/?")


_PARAMETER = re.compile(r"\{(\w+)\}")


def _group(match: re.Match[str]) -> str:
    name = match[1]
    return f"(?P<{name}>.+?)" if name in _LONG else f"(?P<{name}>[^/]+)"


Item = TypeVar("Item")


def paginate(base: str, request: ApiRequest, items: list[Item]) -> tuple[list[Item], dict[str, str]]:
    """One page of a list by `per_page` and `page`, with the Link header to the next."""
    size, number = request.bounded_int("per_page", 30, 100), request.bounded_int("page", 1, 10_000)
    page = items[(number - 1) * size : number * size]
    if number * size >= len(items):
        return page, {}
    others = "".join(f"{name}={value}&" for name, value in request.query.items() if name != "page")
    return page, {"link": f'<{base}{request.path}?{others}page={number + 1}>; rel="next"'}
