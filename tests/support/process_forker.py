"""The program that forks `crcr` processes, after it has imported their modules: `support.forked_process` starts it.

Imports are most of a start's processor time. For each request a keeper is forked, which forks the command, sends the
command's process id and later its wait status. The command is killed when the test process hangs up, that is, ends.
"""

import gc
import json
import os
import runpy
import select
import signal
import socket
import sys
from contextlib import suppress
from importlib import import_module
from io import FileIO, TextIOWrapper
from typing import Any

MODULES = (
    "crcr.cli.main",
    "crcr.cli.operator_session",
    "crcr.cli.run.page_process",
    "crcr.cli.run.process",
    "crcr.wiring.intake_app",
    "crcr.wiring.services",
    "crcr.wiring.web_app",
)


def serve_requests(requests: socket.socket) -> None:
    """Return only in a forked command, which then runs."""
    for name in MODULES:
        import_module(name)
    gc.freeze()
    while True:
        message, descriptors, _, _ = socket.recv_fds(requests, 1_000_000, 3)
        _reap_keepers()
        if not message:
            sys.exit()
        if os.fork() == 0:
            requests.close()
            _keep(json.loads(message), descriptors)
            return
        for each in descriptors:
            os.close(each)


def _reap_keepers() -> None:
    with suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass


def _keep(command: dict[str, Any], descriptors: list[int]) -> None:
    *streams, report = descriptors
    if (process := os.fork()) == 0:
        os.close(report)
        _become(command, streams)
        return
    for each in streams:
        os.close(each)
    os.write(report, f"{process}\n".encode())
    ended = os.pidfd_open(process)
    waiting = select.poll()
    waiting.register(ended, select.POLLIN)
    waiting.register(report, select.POLLHUP)
    if ended not in dict(waiting.poll()):
        os.kill(process, signal.SIGKILL)
    code = os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])
    os.write(report, f"{code}\n".encode())
    os._exit(0)


def _become(command: dict[str, Any], streams: list[int]) -> None:
    for number, stream in enumerate(streams, 1):
        os.dup2(stream, number)
        os.close(stream)
    sys.stdout = _open_stream(1, "strict")
    sys.stderr = _open_stream(2, "backslashreplace")
    os.environ.clear()
    os.environ.update(command["environ"])
    os.chdir(command["folder"])
    if command["umask"] >= 0:
        os.umask(command["umask"])
    sys.argv[1:] = command["words"]


def _open_stream(descriptor: int, errors: str) -> TextIOWrapper:
    """As Python opens it at a start: it finds out anew whether it is a file, a pipe or a terminal."""
    return TextIOWrapper(
        FileIO(descriptor, "w", closefd=False),
        encoding="utf-8",
        errors=errors,
        write_through=True,
    )


if __name__ == "__main__":
    del sys.path[0]  # the folder of this file
    serve_requests(socket.socket(fileno=int(sys.argv[1])))
    runpy.run_module("crcr", run_name="__main__", alter_sys=True)
