"""The proxies of `deploy/proxy` as real processes: their own files, with only addresses and folders replaced."""

import asyncio
import os
import shutil
import ssl
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx

from support.deploy.certificates import Authority
from support.deploy.deploy_files import DEPLOY
from support.process import free_port

FOLDER = DEPLOY / "proxy"
PUBLIC_HOST = "relay.example.org"
_STARTS_WITHIN_S = 20.0
# nginx's temporary paths depend on the package; and as root it would run its workers as a user without access to the folder.
_TEMPORARY_PATHS = ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")


@dataclass(frozen=True)
class Proxy:
    port: int
    plain_port: int
    trust: ssl.SSLContext

    @property
    def url(self) -> str:
        return f"https://127.0.0.1:{self.port}"

    def transport(self, local: str | None = None) -> httpx.AsyncHTTPTransport:
        """A transport to the proxy, optionally from another local address."""
        return httpx.AsyncHTTPTransport(verify=self.trust, local_address=local)

    def client(self, local: str | None = None) -> httpx.AsyncClient:
        return httpx.AsyncClient(transport=self.transport(local), base_url=self.url, timeout=20)


Start = Callable[[Path, Proxy, Sequence[int]], list[str]]


def replace_once(text: str, changes: dict[str, str]) -> str:
    """Replace each text, which must occur exactly once."""
    for old, new in changes.items():
        assert text.count(old) == 1, old
        text = text.replace(old, new)
    return text


def find_program(name: str, package: str) -> str:
    found = shutil.which(name, path=f"{os.environ['PATH']}:/usr/sbin")
    assert found, f"there is no {name}: install the Debian package {package}"
    return found


def nginx(folder: Path, proxy: Proxy, relays: Sequence[int]) -> list[str]:
    temporary_paths = "".join(f"    {name}_temp_path {folder}/{name};\n" for name in _TEMPORARY_PATHS)
    changes = {
        "http {\n": f"http {{\n{temporary_paths}    access_log off;\n",
        "/var/cache/nginx/crcr": f"{folder}/pages",
        "pid /run/nginx.pid": f"pid {folder}/nginx.pid",
        "listen 80 default": f"listen 127.0.0.1:{proxy.plain_port} default",
        "listen 443 ssl http2 default": f"listen 127.0.0.1:{proxy.port} ssl http2 default",
        "listen 80;": f"listen 127.0.0.1:{proxy.plain_port};",
        "listen 443 ssl http2;": f"listen 127.0.0.1:{proxy.port} ssl http2;",
        "/etc/crcr/tls/fullchain.pem": f"{folder}/server.pem",
        "/etc/crcr/tls/privkey.pem": f"{folder}/server.key",
    }
    (folder / "nginx.conf").write_text(replace_once((FOLDER / "nginx.conf").read_text(), changes))
    names = {f"{PUBLIC_HOST};": f"{PUBLIC_HOST} 127.0.0.1;"}
    (folder / "server_name.conf").write_text(replace_once((FOLDER / "server_name.conf").read_text(), names))
    (folder / "upstream.conf").write_text(_with_ports((FOLDER / "upstream.conf").read_text(), relays))
    as_root = "user root; " if os.getuid() == 0 else ""
    directives = f"{as_root}daemon off; error_log stderr;"
    return [
        find_program("nginx", "nginx-light"),
        "-e",
        "stderr",
        "-c",
        str(folder / "nginx.conf"),
        "-g",
        directives,
    ]


def _with_ports(text: str, relays: Sequence[int]) -> str:
    """Replace the relays' addresses, each of which is there for what is taken in and for pages."""
    for number, port in enumerate(relays, start=1):
        old = f"127.0.0.1:800{number}"
        assert text.count(old) == 2, old
        text = text.replace(old, f"127.0.0.1:{port}")
    return text


def caddy(folder: Path, proxy: Proxy, relays: Sequence[int]) -> list[str]:
    options = f"\tadmin off\n\thttp_port {proxy.plain_port}\n\thttps_port {proxy.port}\n\tstorage file_system {folder}/caddy\n"
    tls = f"\ttls {folder}/server.pem {folder}/server.key\n"
    changes = {
        "{\n\tservers": f"{{\n{options}\tservers",
        f"\n{PUBLIC_HOST} {{\n": f"\n127.0.0.1 {{\n{tls}",
        f"http://{PUBLIC_HOST} {{": "http://127.0.0.1 {",
    }
    text = _with_ports((FOLDER / "Caddyfile").read_text(), relays)
    (folder / "Caddyfile").write_text(replace_once(text, changes))
    return [
        find_program("caddy", "caddy"),
        "run",
        "--config",
        str(folder / "Caddyfile"),
        "--adapter",
        "caddyfile",
    ]


PROXIES: dict[str, Start] = {"nginx": nginx, "caddy": caddy}


@asynccontextmanager
async def run_proxy(folder: Path, relays: Sequence[int], start: Start = nginx) -> AsyncIterator[Proxy]:
    """Run a proxy in front of two relays on these ports, with a new certificate."""
    authority = Authority.make()
    authority.serve(folder)
    trust = ssl.create_default_context(cadata=authority.pem.decode())
    proxy = Proxy(free_port(), free_port(), trust)
    process = await asyncio.create_subprocess_exec(
        *start(folder, proxy, relays),
        cwd=folder,
        env={**os.environ, "HOME": str(folder), "XDG_CONFIG_HOME": str(folder)},
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        await _wait_until_listening(process, proxy.port)
        yield proxy
    finally:
        if process.returncode is None:
            process.terminate()
        await process.communicate()


async def _wait_until_listening(process: asyncio.subprocess.Process, port: int) -> None:
    async with asyncio.timeout(_STARTS_WITHIN_S):
        while True:
            try:
                _, writer = await asyncio.open_connection("127.0.0.1", port)
            except OSError:
                if process.returncode is not None:
                    _, errors = await process.communicate()
                    raise AssertionError(errors.decode()) from None
                await asyncio.sleep(0.05)
            else:
                writer.close()
                return
