"""`/crcr/login` and `/crcr/logout`: exchange a token for a session cookie with plain forms, without JavaScript."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from hmac import compare_digest

import structlog
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import BaseRoute, Route

from crcr.errors import NotFound, NotSignedIn, RateLimited, StaleForm
from crcr.ports import AUDITED_FAILURE, FAILED_SIGN_IN
from crcr.show.access.middleware import LOGIN, AccessSettings
from crcr.show.access.reader import Reader, get_reader
from crcr.show.http.forms import read_form
from crcr.show.http.same_site import HOME, local_path
from crcr.show.pages.frame import Frame

log = structlog.get_logger(__name__)

_UNKNOWN = "unknown"

Audit = Callable[[str, str], Awaitable[None]]
"""Writes a name and its action into the audit log."""


def routes(frame: Frame, access_settings: AccessSettings, audit: Audit) -> list[BaseRoute]:
    pages = LoginPages(frame, access_settings, audit)
    return [
        Route(LOGIN, pages.form, methods=["GET"]),
        Route(LOGIN, pages.sign_in, methods=["POST"]),
        Route("/crcr/logout", pages.sign_out, methods=["POST"]),
    ]


@dataclass(frozen=True, slots=True)
class LoginPages:
    frame: Frame
    access_settings: AccessSettings
    audit: Audit

    async def form(self, request: Request) -> Response:
        self._require_tokens()
        return self._page(request, local_path(request.query_params.get("next")))

    async def sign_in(self, request: Request) -> Response:
        self._require_tokens()
        fields = await read_form(request)
        back, subject = local_path(fields.get("next")), self.access_settings.subject_of(request)
        await self.access_settings.limits.check(FAILED_SIGN_IN, subject)
        holder = self.access_settings.tokens.find_holder(fields.get("token", "").strip())
        if holder is None:
            await self.access_settings.limits.take(FAILED_SIGN_IN, subject)
            log.info("sign_in_failed", address=subject)
            await self._audit_failure()
            return self._page(request, back, wrong=True)
        await self.audit(holder.name, "sign_in")
        log.info("signed_in", name=holder.name, address=subject)
        answer = RedirectResponse(back, status_code=303)
        answer.headers.append(
            "set-cookie",
            self.access_settings.sessions.set_cookie(self.access_settings.sessions.create(holder)),
        )
        return answer

    async def sign_out(self, request: Request) -> Response:
        self._require_tokens()
        reader = require_session(get_reader(request))
        check_form(reader, await read_form(request))
        answer = RedirectResponse(LOGIN if self.access_settings.access == "token" else HOME, status_code=303)
        answer.headers.append("set-cookie", self.access_settings.sessions.end_cookie())
        return answer

    async def _audit_failure(self) -> None:
        """Audit a limited number of failures: attempts from many addresses must not fill the log."""
        try:
            await self.access_settings.limits.take(AUDITED_FAILURE, "all")
        except RateLimited:
            return
        await self.audit(_UNKNOWN, "sign_in_failed")

    def _require_tokens(self) -> None:
        if not self.access_settings.tokens:
            raise NotFound("nobody can sign in here: no tokens are set up")

    def _page(self, request: Request, back: str, *, wrong: bool = False) -> Response:
        answer = self.frame.page(request, "login.html", self.frame.location(request), back=back, wrong=wrong)
        answer.headers["Cache-Control"] = "no-store"
        if wrong:
            answer.status_code = 401
            answer.headers["WWW-Authenticate"] = "Bearer"
        return answer


def require_session(reader: Reader) -> Reader:
    """Raise `NotSignedIn` without a session. Called before the form is read."""
    if reader.csrf is None:
        raise NotSignedIn("forms are taken in a session only", hint=f"sign in at {LOGIN}")
    return reader


def check_form(reader: Reader, fields: dict[str, str]) -> None:
    """Raise `StaleForm` unless a page of this very session contained the form."""
    sent_csrf = fields.get("csrf", "").encode("utf-8", "replace")
    if not compare_digest((require_session(reader).csrf or "").encode(), sent_csrf):
        raise StaleForm(hint="go back, reload the page and send the form again")
