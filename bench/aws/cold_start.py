"""Lambda: the package's size, and each function's start from the unpacked package until it waits for its first event.

The time that passes and the processor time of the process; the second does not depend on what else the machine does. The
database is PostgreSQL on loopback, with the schema, as at every start but the first.
"""

import asyncio
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from statistics import median

from bench.relay_process.relay_setup import Row

_FUNCTIONS = ("webhook", "callback", "hud", "relay", "worker", "tick")
_ROUNDS = 5
_BAR_S = 1.5
_MOST_MB = 50.0


def measure_cold_starts(folder: Path) -> Iterator[Row]:
    sys.path.insert(0, str(Path(__file__).parents[2] / "tests"))
    from support.aws.lambda_runtime import build_package, unpack  # noqa: PLC0415  the tests' Lambda

    package = build_package(folder / "dist")
    size = package.stat().st_size / 1e6
    yield "Lambda package", f"{size:.1f} MB", f"< {_MOST_MB:.0f} MB", size < _MOST_MB
    code = unpack(package, folder)
    for name in _FUNCTIONS:
        passed, used = asyncio.run(_starts(name, code, folder))
        bar = f"< {_BAR_S} s" if name == "webhook" else ""
        yield f"start of {name}", f"{median(passed):.2f} s", "", True
        yield (
            f"start of {name}, processor time",
            f"{median(used):.2f} s",
            bar,
            not bar or median(used) < _BAR_S,
        )


async def _starts(name: str, code: object, folder: Path) -> tuple[list[float], list[float]]:
    from support.aws.lambda_runtime import Code, LambdaFunction  # noqa: PLC0415
    from support.data.operator_database import relay_environment  # noqa: PLC0415
    from support.services.postgres import new_database  # noqa: PLC0415

    assert isinstance(code, Code)
    environ = relay_environment(folder, CRCR_DATABASE_URL=new_database(), CRCR_DATABASE_POOLER="transaction")
    passed, used = [], []
    async with LambdaFunction(name, code, environ).running() as function:
        for _ in range(_ROUNDS):
            await function.start()
            passed.append(function.init_s)
            used.append(_processor_s(function.pid))
            await function.end()
    return passed, used


def _processor_s(pid: int) -> float:
    after_name = Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].split()
    return sum(map(int, after_name[11:13])) / os.sysconf("SC_CLK_TCK")
