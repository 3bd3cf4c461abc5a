"""The reader of a request, as the access middleware found it."""

from dataclasses import dataclass
from enum import StrEnum

from starlette.requests import Request


class SignInMethod(StrEnum):
    """How a reader became known."""

    TOKEN = "token"  # noqa: S105  a word
    SESSION = "session"
    PROXY = "proxy"


@dataclass(frozen=True, slots=True)
class Reader:
    """A name from a token or a proxy; `csrf` is there only in a session, which alone may send forms."""

    name: str | None = None
    admin: bool = False
    csrf: str | None = None
    method: SignInMethod | None = None
    may_sign_in: bool = False
    """Whether there are tokens to sign in with."""


ANYONE = Reader()
"""A reader without a token, a session or a proxy's header."""


def get_reader(request: Request) -> Reader:
    reader = request.scope.get("state", {}).get("reader")
    return reader if isinstance(reader, Reader) else ANYONE
