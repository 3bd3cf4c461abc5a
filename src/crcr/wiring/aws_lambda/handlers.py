"""The handlers to name in a function's configuration: `crcr.wiring.aws_lambda.handlers.NAME`.

A handler is built when Lambda looks it up, which it does while it initialises the function: then the function has a whole
processor, whatever its memory, and no request waits. Each function imports only what it needs.
"""

import gc
from collections.abc import Callable
from functools import cache
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from crcr.wiring.services import Services

Handler = Callable[[Any, Any], Any]


def _intake() -> Handler:
    """Webhooks, callbacks, results of other relays, and probes."""
    from crcr.wiring.intake_app import build_intake_app  # noqa: PLC0415

    return _http_function(lambda services: build_intake_app(services, work=False))


def _hud() -> Handler:
    """Pages and API."""
    from crcr.wiring.web_app import build_app  # noqa: PLC0415  the pages' packages

    return _http_function(lambda services: build_app(services, work=False, takes_in=False))


def _relay() -> Handler:
    """All that is served over HTTP, in one function."""
    from crcr.wiring.web_app import build_app  # noqa: PLC0415

    return _http_function(lambda services: build_app(services, work=False))


def _http_function(build: "Callable[[Services], Any]") -> Handler:
    from crcr.wiring.aws_lambda.environment import LambdaEnvironment, read_settings  # noqa: PLC0415
    from crcr.wiring.aws_lambda.http_functions import LambdaApp, http_function  # noqa: PLC0415

    environment = LambdaEnvironment(read_settings())
    app = LambdaApp(environment, build)
    environment.start(app.prepare)
    return http_function(app)


def _worker() -> Handler:
    """Calls GitHub and others for what is recorded."""
    from crcr.wiring.aws_lambda.background_functions import WorkerFunction  # noqa: PLC0415
    from crcr.wiring.aws_lambda.environment import LambdaEnvironment, read_settings  # noqa: PLC0415

    environment = LambdaEnvironment(read_settings())
    environment.start()
    return WorkerFunction(environment)


def _tick() -> Handler:
    """Sweeps, retention, reconciling, levels."""
    from crcr.wiring.aws_lambda.background_functions import TickFunction  # noqa: PLC0415
    from crcr.wiring.aws_lambda.environment import LambdaEnvironment, read_settings  # noqa: PLC0415

    environment = LambdaEnvironment(read_settings())
    environment.start()
    return TickFunction(environment)


def _stream() -> Handler:
    """Takes in the stream of a DynamoDB table that another relay fills."""
    from crcr.wiring.aws_lambda.background_functions import StreamFunction  # noqa: PLC0415
    from crcr.wiring.aws_lambda.environment import LambdaEnvironment, read_settings  # noqa: PLC0415

    environment = LambdaEnvironment(read_settings())
    environment.start()
    return StreamFunction(environment)


def _migrate() -> Handler:
    """Migrates the database, with as much time as the function has; to be invoked before a new release serves."""
    from crcr.record.migrations.run import migrate  # noqa: PLC0415
    from crcr.wiring.aws_lambda.environment import read_settings  # noqa: PLC0415
    from crcr.wiring.database import database_location  # noqa: PLC0415

    location = database_location(read_settings())

    def handle(_: Any, __: Any) -> dict[str, str | None]:
        before, after = migrate(location)
        return {"before": before, "after": after}

    return handle


FUNCTIONS: dict[str, Callable[[], Handler]] = {
    "webhook": _intake,
    "callback": _intake,
    "hud": _hud,
    "relay": _relay,
    "worker": _worker,
    "tick": _tick,
    "stream": _stream,
    "migrate": _migrate,
}


class FunctionFailed(Exception):
    """An error of a function, without secrets: Lambda writes its text into the log, and returns it to the caller, as it is."""


def guard(name: str, handle: Handler) -> Handler:
    """Let errors reach Lambda, which counts them and tries again, with masked texts and without their traceback."""
    import structlog  # noqa: PLC0415

    from crcr.errors import CrcrError  # noqa: PLC0415
    from crcr.log import clean_text  # noqa: PLC0415

    log = structlog.get_logger(__name__)

    def handle_guarded(event: Any, context: Any) -> Any:
        try:
            return handle(event, context)
        except Exception as fault:
            if not isinstance(fault, CrcrError):  # such as a store that is away: its text says all
                log.exception("function_failed", function=name)
            raise FunctionFailed(clean_text(f"{type(fault).__name__}: {fault}")) from None

    return handle_guarded


@cache
def _build(name: str) -> Handler:
    """Build it without garbage collection, which takes a fifth of a start and finds nothing: what is made stays."""
    gc.disable()
    try:
        return guard(name, FUNCTIONS[name]())
    finally:
        gc.freeze()
        gc.enable()


def __getattr__(name: str) -> Handler:
    if name not in FUNCTIONS:
        raise AttributeError(f"there is no function {name!r}; choose one of {', '.join(FUNCTIONS)}")
    return _build(name)
