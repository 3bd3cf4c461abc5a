"""Who holds a lease: the machine, the process, and a number that no later process with the same id has.

A killed process's leases run out by themselves. Its successor on the same machine need not wait for that: a
process that is gone will finish nothing.
"""

import os
import random
import socket
from collections.abc import Callable
from contextlib import suppress
from datetime import datetime
from pathlib import Path

from sqlalchemy import text

from crcr.record.store.database import Database, Tx
from crcr.record.store.signals import EFFECTS
from crcr.record.store.statement import Statement
from crcr.record.store.times import to_us

_HOLDERS = Statement(
    text(
        "SELECT DISTINCT lease_owner FROM effects"
        " WHERE upstream = :upstream AND state = 'claimed' AND lease_owner IS NOT NULL"
    )
)
FREE = Statement(
    text(
        "UPDATE effects SET lease_owner = NULL, lease_until = :now WHERE upstream = :upstream"
        " AND state = 'claimed' AND lease_owner = :owner"
    )
)
"""Nobody's any more: whatever its last owner says about it changes nothing. The next claim marks it unsure."""


def new_owner() -> str:
    return f"{_machine()} {os.getpid()} {random.getrandbits(32):08x}"


def _machine() -> str:
    """Where a process id means something.

    Two containers may share a host name but not a process namespace, two machines both of them but not a boot.
    """
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{socket.gethostname()}/{boot}/{Path('/proc/self/ns/pid').readlink()}"
    except OSError:
        return socket.gethostname()


def is_gone(owner: str) -> bool:
    """Whether the owner was a process of this machine that no longer runs; False whenever that is unclear."""
    host, _, rest = owner.partition(" ")
    pid = rest.partition(" ")[0]
    if host != _machine() or not pid.isdigit():
        return False
    with suppress(PermissionError):
        try:
            os.kill(int(pid), 0)
        except ProcessLookupError:
            return True
    return False


async def free_leases(
    database: Database, upstreams: tuple[str, ...], now: datetime, gone: Callable[[str], bool] = is_gone
) -> int:
    """End the leases of processes that are gone; return how many effects come back, each marked unsure."""

    async def unit(tx: Tx) -> int:
        freed = 0
        for upstream in upstreams:
            for row in await tx.all(_HOLDERS, upstream=upstream):
                if gone(row["lease_owner"]):
                    freed += await tx.run(FREE, upstream=upstream, owner=row["lease_owner"], now=to_us(now))
        tx.signal(EFFECTS)
        return freed

    return await database.write(unit)
