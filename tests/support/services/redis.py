"""`RedisServer`: a Redis server for tests on a free port, in a temporary folder, without persistence.

It never uses a server that runs already. `stop` and `start` keep the port, so a client finds it again.
"""

import os
import shutil
import signal
import socket
import subprocess
import time
from dataclasses import dataclass, field
from functools import cache
from itertools import count
from pathlib import Path
from typing import Self

from support.deploy.certificates import Authority
from support.process import free_port
from support.services.cleanup import at_end, temporary_folder

_NAMES = count(1)
_START_S = 10.0


@dataclass
class RedisServer:
    folder: Path
    port: int
    authority: Authority | None = None
    password: str | None = None
    _process: subprocess.Popen[bytes] | None = field(default=None, init=False)

    @classmethod
    def make(cls, *, authority: Authority | None = None, password: str | None = None) -> Self:
        """Start a new server; with an authority it accepts only TLS, with a certificate that the authority signs."""
        made = cls(temporary_folder("crcr-redis-"), free_port(), authority, password)
        at_end(made.remove)
        made.start()
        return made

    @property
    def url(self) -> str:
        user = f":{self.password}@" if self.password else ""
        return f"{'rediss' if self.authority else 'redis'}://{user}127.0.0.1:{self.port}/0"

    def start(self) -> None:
        command = [
            _binary(),
            "--bind",
            "127.0.0.1",
            "--dir",
            str(self.folder),
            "--save",
            "",
            "--appendonly",
            "no",
        ]
        if self.password:
            command += ["--requirepass", self.password]
        with (self.folder / "log").open("ab") as log:
            self._process = subprocess.Popen(
                [*command, *self._ports()], stdout=log, stderr=log, cwd=self.folder
            )
        self._wait_until_ready()

    def stop(self) -> None:
        """Shut the server down; its data is lost."""
        self._end(signal.SIGTERM)

    def kill(self) -> None:
        self._end(signal.SIGKILL)

    def restart(self) -> None:
        self.stop()
        self.start()

    def freeze(self) -> None:
        """Suspend the process with its connections open; `thaw` resumes it."""
        self._signal(signal.SIGSTOP)

    def thaw(self) -> None:
        self._signal(signal.SIGCONT)

    def drop_clients(self) -> None:
        """Close the connections of all clients."""
        with socket.create_connection(("127.0.0.1", self.port), timeout=5) as connection:
            connection.sendall(b"CLIENT KILL TYPE normal\r\n")
            assert connection.recv(64).startswith(b":")

    def remove(self) -> None:
        if self._process is not None:
            self.thaw()
            self.kill()
        shutil.rmtree(self.folder, ignore_errors=True)

    def _signal(self, which: signal.Signals) -> None:
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(which)

    def _end(self, how: signal.Signals) -> None:
        if self._process is not None:
            self._signal(how)
            self._process.wait(10)
            self._process = None

    def _ports(self) -> list[str]:
        if self.authority is None:
            return ["--port", str(self.port)]
        certificate, key = self.authority.serve(self.folder)
        (self.folder / "ca.pem").write_bytes(self.authority.pem)
        proof = ["--tls-cert-file", str(certificate), "--tls-key-file", str(key), "--tls-auth-clients", "no"]
        return [
            *("--bind", "127.0.0.1", "127.0.0.2"),
            "--port",
            "0",
            "--tls-port",
            str(self.port),
            *proof,
            "--tls-ca-cert-file",
            str(self.folder / "ca.pem"),
        ]

    def _wait_until_ready(self) -> None:
        until = time.monotonic() + _START_S
        while time.monotonic() < until:
            if self._process is None or self._process.poll() is not None:
                break
            try:
                socket.create_connection(("127.0.0.1", self.port), timeout=1).close()
            except OSError:
                time.sleep(0.01)
            else:
                return
        raise RuntimeError(f"redis-server did not start: {(self.folder / 'log').read_text()[-2000:]}")


@cache
def shared_redis() -> RedisServer:
    """The server that all tests of this process share; each test prefixes its keys with a `new_name`."""
    return RedisServer.make()


def new_name() -> str:
    return f"test-{os.getpid()}-{next(_NAMES)}"


def _binary() -> str:
    found = shutil.which("redis-server")
    if found is None:
        raise RuntimeError("there is no Redis server: install the Debian package redis-server")
    return found
