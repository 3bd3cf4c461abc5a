"""100,000 items of the public HUD's table, imported by `crcr import dynamodb` as its own process, killed three times, and again.

The table is a stand-in on loopback; the client is botocore's. The sums are compared with those that are counted from the items
another way (`tests/support/aws/history_items.py`).
"""

import json
import os
import signal
import sqlite3
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from bench.relay_process.relay_setup import Row
from crcr.record.migrations.run import migrate

ITEMS = 100_000
_TESTS = Path(__file__).parent.parent.parent / "tests"
_NAMES = ("success", "failure", "timed_out", "silent", "other", "superseded", "earlier")
_UPSTREAM = "owner/core"
_KILLED_AFTER = (0.1, 0.4, 0.7)
"""Shares of the items after which the process is killed."""


def measure_import(folder: Path) -> Iterator[Row]:
    sys.path.insert(0, str(_TESTS))
    from support.aws.dynamodb_scan import serve_table  # noqa: PLC0415
    from support.aws.history_items import LISTED, attributes, expected_sums, make_history  # noqa: PLC0415
    from support.aws.server import CREDENTIALS  # noqa: PLC0415

    folder.mkdir(parents=True)
    now = datetime.now(UTC).replace(microsecond=0)
    history = make_history(ITEMS, _UPSTREAM, now, days=90)
    (folder / "allowlist.yml").write_text(LISTED)
    migrate(folder / "crcr.db")
    with serve_table(map(attributes, history.items)) as table:
        environ = {**os.environ, **CREDENTIALS, **_settings(folder, table.url)}
        began = time.monotonic()
        killed = [_run_and_kill(environ, folder, int(share * ITEMS)) for share in _KILLED_AFTER]
        first, memory_mb = _run(environ)
        seconds = time.monotonic() - began
        before = _read_all(folder)
        began = time.monotonic()
        again, _ = _run(environ)
        again_s = time.monotonic() - began
    same = _read_all(folder) == before and again["taken"] == again["corrected"] == 0
    right = _read_sums(folder) == expected_sums(history.items, _UPSTREAM, now)
    taken = ITEMS - history.not_taken.total()
    whole = first["read"] == ITEMS and first["taken"] == taken and first["unchanged"] == 0
    yield (
        f"{ITEMS:,} items imported, killed at {', '.join(f'{at:,}' for at in killed)}: results taken, lost, twice",
        f"{first['taken']:,}, {taken - first['taken']:,}, {first['unchanged']:,} in {seconds:.0f} s",
        "none lost, none twice",
        whole,
    )
    yield "the sums are those of the oracle", "yes" if right else "no", "yes", right
    yield f"the second import changes ({again_s:.0f} s)", "nothing" if same else "something", "nothing", same
    rate = ITEMS / seconds
    yield "items a second, durable on SQLite", f"{rate:,.0f}", "> 200", rate > 200
    yield "memory of the import", f"{memory_mb:.0f} MB", "< 250 MB", memory_mb < 250


def _settings(folder: Path, endpoint: str) -> dict[str, str]:
    from github_sim.oidc.signing import private_pem  # noqa: PLC0415

    return {
        "CRCR_UPSTREAM": _UPSTREAM,
        "CRCR_ALLOWLIST": str(folder / "allowlist.yml"),
        "CRCR_GITHUB_APP_ID": "1",
        "CRCR_GITHUB_APP_PRIVATE_KEY": private_pem("bench"),
        "CRCR_GITHUB_WEBHOOK_SECRET": "a-secret-of-the-bench",
        "CRCR_OIDC_AUDIENCE": "bench",
        "CRCR_DATABASE_URL": f"sqlite:///{folder / 'crcr.db'}",
        "CRCR_DYNAMODB_ENDPOINT": endpoint,
    }


_COMMAND = [sys.executable, "-m", "crcr", "import", "dynamodb", "--json"]


def _run(environ: dict[str, str]) -> tuple[dict[str, Any], float]:
    process = subprocess.Popen(_COMMAND, env=environ, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    most_kb = 0
    while process.poll() is None:
        most_kb = max(most_kb, _resident_kb(process.pid))
        time.sleep(0.2)
    output = process.stdout.read().decode() if process.stdout else ""
    if process.returncode:
        raise RuntimeError(f"crcr import ended with {process.returncode}: {output}")
    found: dict[str, Any] = json.loads(output[output.index("{") :])
    return found, most_kb / 1024


def _run_and_kill(environ: dict[str, str], folder: Path, after: int) -> int:
    process = subprocess.Popen(_COMMAND, env=environ, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    while process.poll() is None and _items_read(folder) < after:
        time.sleep(0.05)
    process.send_signal(signal.SIGKILL)
    process.wait()
    return _items_read(folder)


def _items_read(folder: Path) -> int:
    rows = _query(folder, "SELECT counts FROM imports")
    return int(json.loads(rows[0][0]).get("read", 0)) if rows else 0


def _resident_kb(pid: int) -> int:
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) for line in lines if line.startswith("VmRSS")), 0)


def _query(folder: Path, sql: str) -> list[tuple[Any, ...]]:
    connection = sqlite3.connect(folder / "crcr.db")
    try:
        return connection.execute(sql).fetchall()
    finally:
        connection.close()


def _read_all(folder: Path) -> dict[str, list[tuple[Any, ...]]]:
    tables = ("jobs", "dispatches", "hours", "days", "job_days", "effects", "changes", "audit")
    return {table: sorted(_query(folder, f"SELECT * FROM {table}"), key=str) for table in tables}  # noqa: S608  ours


def _read_sums(folder: Path) -> dict[tuple[str, str, str], Counter[str]]:
    columns = ", ".join((*_NAMES, "queue_sum_s", "execution_sum_s"))
    found = {}
    for downstream, kind, day_at, *numbers in _query(
        folder,
        f"SELECT downstream, kind, day_at, {columns} FROM days",  # noqa: S608  ours
    ):
        day = datetime.fromtimestamp(day_at / 1e6, UTC).strftime("%Y-%m-%d")
        counts = Counter(
            dict(zip((*_NAMES, "queue_sum_s", "execution_sum_s"), map(round, numbers), strict=True))
        )
        if +counts:
            found[downstream, kind, day] = +counts
    return found
