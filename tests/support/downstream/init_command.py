"""`crcr init`: a checkout, a server with onboarding facts, the command in process, and the command in a terminal."""

import json
import os
import pty
import select
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Self
from urllib.parse import urlsplit

from typer.testing import CliRunner

from crcr.cli.main import app
from support.process import environment

WORKFLOW, REPORTER = ".github/workflows/crcr.yml", ".crcr/report.py"
UNREACHABLE_RELAY = "https://127.0.0.1:1"
LOCAL_RELAY = "http://localhost:8000"
ONBOARDING_FACTS = {
    "upstreams": ["pytorch/pytorch"],
    "audience": "crcr",
    "callback_url": f"{LOCAL_RELAY}/github/callback",
    "app_url": "https://github.com/apps/crcr",
}
LOCAL_GIT = {"GIT_ALLOW_PROTOCOL": "file"}
"""`crcr init` asks the remote for its HEAD: tests must not reach a real one."""
FLAGS = ("--relay", UNREACHABLE_RELAY, "--upstream", "pytorch/pytorch", "--audience", "crcr")


def checkout(folder: Path, *, branch: str = "main") -> Path:
    """A new repository with a remote, of which nothing is fetched."""
    git(folder.parent, "init", "-q", "--initial-branch", branch, str(folder))
    git(folder, "remote", "add", "origin", "git@github.com:org/backend.git")
    return folder


def git(folder: Path, *words: str) -> None:
    subprocess.run(["git", "-C", str(folder), *words], check=True)


@contextmanager
def serve_facts(facts: Any, *, under: str = "", status: int = 200) -> Iterator[str]:
    """Serve these facts as a relay's `/api/v1/onboarding` below a path, and 404 elsewhere; yield the address."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            text = facts if isinstance(facts, bytes) else json.dumps(facts).encode()
            self.send_response(status if urlsplit(self.path).path == f"{under}/api/v1/onboarding" else 404)
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text)

        def log_message(self, *_: Any) -> None: ...

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def run_init_in(folder: Path, *words: str) -> tuple[int, str]:
    return run_init("--folder", str(folder), *words)


def run_init(*words: str) -> tuple[int, str]:
    result = CliRunner().invoke(app, ["init", *words], env=LOCAL_GIT)
    assert result.exception is None or isinstance(result.exception, SystemExit)
    return result.exit_code, result.output


def plain_text(out: str) -> str:
    """The text without the frame and line breaks."""
    return " ".join(out.replace("│", " ").split())


def written_files(folder: Path) -> dict[str, str]:
    paths = [
        path for path in folder.rglob("*") if path.is_file() and ".git" not in path.relative_to(folder).parts
    ]
    return {str(path.relative_to(folder)): path.read_text(encoding="utf-8") for path in paths}


class Terminal:
    """Runs `crcr` in a pseudo-terminal and answers its prompts."""

    WITHIN_S = 30.0

    def __init__(self, folder: Path, *words: str) -> None:
        self.ours, theirs = pty.openpty()
        self.seen = ""
        self.process = subprocess.Popen(
            [sys.executable, "-m", "crcr", *words], cwd=folder, stdin=theirs, stdout=theirs, stderr=theirs,
            env=environment({"COLUMNS": "200", "TERM": "dumb", **LOCAL_GIT}),
        )  # fmt: skip
        os.close(theirs)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self.ours)

    def answer(self, question: str, words: str) -> None:
        until = time.monotonic() + self.WITHIN_S
        while question not in self.seen or not self.seen.rstrip(" ").endswith(":"):
            assert self._read(until), f"no prompt {question!r}: {self.seen}"
        self.seen = ""
        os.write(self.ours, f"{words}\n".encode())

    def end(self) -> int:
        while self._read(time.monotonic() + self.WITHIN_S):
            pass
        return self.process.wait(self.WITHIN_S)

    def _read(self, until: float) -> bool:
        ready, _, _ = select.select([self.ours], [], [], max(0.0, until - time.monotonic()))
        try:
            text = os.read(self.ours, 4096) if ready else b""
        except OSError:  # Linux raises EIO when the other side has closed
            text = b""
        self.seen += text.decode(errors="replace")
        return bool(text)
