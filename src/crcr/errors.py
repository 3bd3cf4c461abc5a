"""Exceptions with one root and a stable code each.

Expected outcomes (ignored, repeated, rejected) are values of `decide`; these are raised. One table in `app.py` maps codes
to HTTP statuses, so that no other module depends on HTTP.
"""

from enum import StrEnum


class HeldBy(StrEnum):
    """The GitHub limit that holds a call back."""

    HOUR = "hour"
    """The installation's requests of the hour are used up, or the rest is reserved for more urgent calls."""
    MINUTE = "minute"
    """The points of the minute are used up, or the rest is reserved for more urgent calls."""
    CONTENT = "content"
    """Comments: 80 a minute and 500 an hour."""
    SECONDARY = "secondary"
    """GitHub answered with a secondary limit."""
    OTHER = "other"
    """A limit that a later release recorded, unknown to this one."""


class CrcrError(Exception):
    """Something went wrong inside the relay."""

    code = "internal"

    def __init__(self, detail: str | None = None, *, hint: str | None = None) -> None:
        self.detail = detail or (type(self).__doc__ or "").strip()
        self.hint = hint
        super().__init__(self.detail)


class BadRequest(CrcrError):
    """The request cannot be understood."""

    code = "bad_request"


class WrongContentType(BadRequest):
    """The endpoint does not read bodies of this content type."""

    code = "wrong_content_type"


class BadReport(BadRequest):
    """The report cannot be understood."""

    code = "bad_report"


class TooLarge(CrcrError):
    """The body is larger than this endpoint accepts."""

    code = "too_large"


class BadSignature(CrcrError):
    """The webhook's signature is missing or wrong."""

    code = "bad_signature"


class NotAuthentic(CrcrError):
    """The token does not prove who is calling."""

    code = "not_authentic"
    signed_by: str | None = None
    """The repository that the token's signature proves, where only another claim is wrong (`aud`, `exp`)."""
    signed_id: int | None = None
    """Its immutable id, where the issuer signs one."""


class NotRegistered(CrcrError):
    """The issuer is known, but this pipeline is not registered with the relay."""

    code = "not_registered"


class NotSignedIn(CrcrError):
    """A valid token is needed."""

    code = "not_signed_in"


class NotAdmin(CrcrError):
    """The token may read, but not change anything."""

    code = "not_admin"


class CrossOrigin(CrcrError):
    """The request was sent by a page of another site."""

    code = "cross_origin"


class StaleForm(CrcrError):
    """The form does not belong to this session."""

    code = "stale_form"


class RateLimited(CrcrError):
    """Too many requests."""

    code = "rate_limited"

    def __init__(
        self, detail: str | None = None, *, retry_after_s: float = 1.0, hint: str | None = None
    ) -> None:
        super().__init__(detail, hint=hint)
        self.retry_after_s = retry_after_s


class Unavailable(CrcrError):
    """The relay cannot answer right now; the same request can be sent again."""

    code = "unavailable"
    retry_after_s = 5.0


class StoreUnavailable(Unavailable):
    """The store did not answer."""

    code = "store_unavailable"


class SchemaMismatch(StoreUnavailable):
    """The store does not have the tables that this release needs."""

    def __init__(self, detail: str) -> None:
        hint = "the database may be of another release; `crcr migrate` brings it up to date"
        super().__init__(detail, hint=hint)


class LimiterUnavailable(Unavailable):
    """The rate limiter did not answer."""

    code = "limiter_unavailable"


class KeysUnavailable(Unavailable):
    """The token issuer's keys could not be read, and none are known yet."""

    code = "keys_unavailable"


class Stopping(Unavailable):
    """The process is stopping; another one answers."""

    code = "stopping"


class PagesStarting(Unavailable):
    """The process that serves the pages is starting; try again in a moment."""

    retry_after_s = 1.0


class IntakeElsewhere(Unavailable):
    """The process serves pages only; it takes in no webhooks, callbacks and results."""


class NoAllowlist(Unavailable):
    """No valid allowlist was ever read for this upstream."""

    code = "no_allowlist"


class DefaultBranchUnknown(Unavailable):
    """The repository's default branch is not known yet; GitHub is being asked."""

    code = "default_branch_unknown"


class LeaseLost(CrcrError):
    """Another worker has taken over the effect; this one does nothing more about it."""

    code = "lease_lost"


class NotFound(CrcrError):
    """Not found."""

    code = "not_found"


class PagesElsewhere(NotFound):
    """The process takes in webhooks and callbacks; it serves no pages."""


class NotPossible(CrcrError):
    """The action is not possible in the current state."""

    code = "not_possible"


class BadSettings(CrcrError):
    """The settings have problems."""

    code = "bad_settings"

    def __init__(
        self, problems: list[str], *, hint: str = "docs/configuration.md lists all settings"
    ) -> None:
        super().__init__("\n".join(problems), hint=hint)
        self.problems = problems


class OutsideFault(CrcrError):
    """A service outside (GitHub, another HUD) did not do what was asked."""

    code = "outside_fault"


class OutsideRefused(OutsideFault):
    """The service refused for good: asking again will not help."""

    code = "outside_refused"

    def __init__(self, detail: str, *, status: int) -> None:
        super().__init__(detail)
        self.status = status


class FileNotText(OutsideRefused):
    """The file is not UTF-8 text; `line` is that of its first invalid byte."""

    def __init__(self, detail: str, *, status: int, line: int, hint: str | None) -> None:
        super().__init__(detail, status=status)
        self.line = line
        self.hint = hint


class OutsideUnsure(OutsideFault):
    """The outcome is unknown: the request may have been carried out (time-out, 5xx, broken connection)."""

    code = "outside_unsure"


class OutsideUnreachable(OutsideFault):
    """The request never reached the service (connection refused, name not found)."""

    code = "outside_unreachable"


class OutsideHeld(OutsideUnreachable):
    """Another process has it open, and only one at a time can."""


class OutsideLimited(OutsideFault):
    """The service asks to wait, or our own rate limiter does; nothing was carried out."""

    code = "outside_limited"

    def __init__(
        self,
        detail: str,
        *,
        retry_after_s: float,
        held_by: HeldBy | None = None,
        urgency: int | None = None,
    ) -> None:
        """`held_by` names the limit if it is one of GitHub's, `urgency` the class of the call that it holds back."""
        super().__init__(detail)
        self.retry_after_s = retry_after_s
        self.held_by = held_by
        self.urgency = urgency


class NotYet(OutsideLimited):
    """GitHub has no answer yet: the same request is sent again later."""

    code = "not_yet"
