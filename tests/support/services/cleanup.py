"""Stops the services that tests started and removes their folders: with the session, at the latest with the process.

What a single test used can be given back when it ends (`at_end_of_test`); `tests/conftest.py` calls the two functions for that.

A worker that has reported its last test is ended after a few seconds, too soon for what is left to `atexit`. A process
that is killed does neither; a shell that waits for its end stops the services that run in its folders.
"""

import atexit
import shutil
import subprocess
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import cache
from pathlib import Path
from tempfile import mkdtemp

_ACTIONS = ExitStack()
_AFTER_TEST = ExitStack()
_shared_set_ups = 0
_AFTER_A_KILL = """
while read -r folder; do folders="$folders $folder"; done
send() {
  for process in /proc/[0-9]*; do
    case "$(readlink "$process/cwd")/" in "$folder"/*) kill -"$1" "${process#/proc/}" ;; esac
  done
}
for folder in $folders; do
  [ -d "$folder" ] || continue
  send QUIT
  send CONT
  sleep 1
  send KILL
  rm -rf "$folder"
done
"""
"""Reads folders until the test process has ended. Where that process cleaned up, none of them exists.

PostgreSQL frees its shared memory at SIGQUIT; ClickHouse's engine ends only by SIGKILL.
"""


def at_end(action: Callable[..., object], *arguments: object, **named: object) -> None:
    _ACTIONS.callback(action, *arguments, **named)


def at_end_of_test(action: Callable[..., object], *arguments: object) -> None:
    """Do this when the test has ended; never, while a fixture is set up that several tests share."""
    if not _shared_set_ups:
        _AFTER_TEST.callback(action, *arguments)


@contextmanager
def set_up_shared_fixture() -> Iterator[None]:
    global _shared_set_ups  # noqa: PLW0603
    _shared_set_ups += 1
    try:
        yield
    finally:
        _shared_set_ups -= 1


def clean_up_after_test() -> None:
    _AFTER_TEST.close()


def temporary_folder(prefix: str) -> Path:
    """Make a folder for a service; both end with this process, even if it is killed."""
    watcher = _watcher()
    folder = Path(mkdtemp(prefix=prefix))
    assert watcher.stdin is not None
    watcher.stdin.write(f"{folder}\n")
    watcher.stdin.flush()
    at_end(shutil.rmtree, folder, ignore_errors=True)
    return folder


@atexit.register
def clean_up() -> None:
    """Do what was registered, the newest first; a second call does nothing."""
    _ACTIONS.close()


@cache
def _watcher() -> "subprocess.Popen[str]":
    # In a session of its own: Ctrl-C in a terminal reaches the whole group.
    made = subprocess.Popen(
        ["/bin/sh", "-c", _AFTER_A_KILL],
        stdin=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        start_new_session=True,
        cwd="/",
    )
    at_end(_watcher.cache_clear)
    at_end(made.communicate)
    return made
