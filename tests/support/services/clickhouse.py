"""`ClickHouseServer`: chDB, ClickHouse's engine, behind a shim with ClickHouse's HTTP interface.

It is a separate process that can be stopped, restarted on the same data and port, or suspended.
"""

import os
import signal
import subprocess
import sys
from functools import cache
from importlib.util import find_spec
from itertools import count
from pathlib import Path
from urllib.parse import quote

import clickhouse_connect

from support.services.cleanup import at_end, temporary_folder

_SHIM = Path(__file__).with_name("clickhouse_shim.py")
_NUMBERS = count(1)


class ClickHouseServer:
    def __init__(
        self, folder: Path, *, password: str | None = None, certificate: tuple[Path, Path] | None = None
    ) -> None:
        if find_spec("chdb") is None:
            raise RuntimeError("tests need chDB, ClickHouse's engine: pip install chdb")
        self._folder = folder
        self._password = password
        self._certificate = certificate
        self._process: subprocess.Popen[str] | None = None
        self.port = 0

    @property
    def url(self) -> str:
        return self.database("default")

    def database(self, name: str) -> str:
        """The URL of an existing database."""
        who = f"default:{quote(self._password, safe='')}@" if self._password else ""
        scheme = "clickhouses" if self._certificate else "clickhouse"
        return f"{scheme}://{who}127.0.0.1:{self.port}/{name}"

    def start(self) -> None:
        command = [sys.executable, str(_SHIM), str(self._folder), str(self.port)]
        if self._password:
            command += ["--password", self._password]
        if self._certificate:
            command += ["--certificate", str(self._certificate[0]), "--key", str(self._certificate[1])]
        self._folder.mkdir(parents=True, exist_ok=True)
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=self._folder)
        line = self._process.stdout.readline() if self._process.stdout else ""
        if not line:
            raise RuntimeError("the ClickHouse shim did not start; see its output above")
        self.port = int(line)

    def stop(self) -> None:
        if self._process is not None:
            self.go_on()
            self._process.kill()
            self._process.wait()
            if self._process.stdout:
                self._process.stdout.close()
            self._process = None

    def hang(self) -> None:
        """Suspend the process: it accepts connections and answers nothing."""
        self._signal(signal.SIGSTOP)

    def go_on(self) -> None:
        self._signal(signal.SIGCONT)

    def _signal(self, which: signal.Signals) -> None:
        if self._process is not None and self._process.poll() is None:
            os.kill(self._process.pid, which)


@cache
def shared_clickhouse() -> ClickHouseServer:
    """The server that all tests of this process share."""
    server = ClickHouseServer(temporary_folder("crcr-clickhouse-"))
    server.start()
    at_end(server.stop)
    return server


def new_database() -> str:
    """Create an empty database on the shared server; return its URL."""
    server, name = shared_clickhouse(), f"test_{next(_NUMBERS)}"
    client = clickhouse_connect.get_client(host="127.0.0.1", port=server.port, autogenerate_session_id=False)
    try:
        client.command(f"CREATE DATABASE {name}")
    finally:
        client.close()
    return server.database(name)
