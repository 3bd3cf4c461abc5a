"""`page_app`: an app with the pages only, and the relay's error handlers."""

from starlette.applications import Starlette

from crcr.app import error_handlers
from crcr.show.live.change_feed import LiveDelay
from crcr.show.pages import routes as pages_routes
from crcr.show.pages.frame import Frame
from crcr.show.pages.onboarding import OnboardingSettings


def page_app(
    frame: Frame, delay: LiveDelay | None = None, settings: OnboardingSettings | None = None
) -> Starlette:
    return Starlette(
        routes=pages_routes.routes(frame, delay, settings), exception_handlers=error_handlers(frame.problem)
    )
