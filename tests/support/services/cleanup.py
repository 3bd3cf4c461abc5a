"""Stops the services that tests started and removes their folders: with the session, at the latest with the process.

A worker that has reported its last test is ended after a few seconds, too soon for what is left to `atexit`.
"""

import atexit
from collections.abc import Callable
from contextlib import ExitStack

_ACTIONS = ExitStack()


def at_end(action: Callable[..., object], *arguments: object, **named: object) -> None:
    _ACTIONS.callback(action, *arguments, **named)


@atexit.register
def clean_up() -> None:
    """Do what was registered, the newest first; a second call does nothing."""
    _ACTIONS.close()
