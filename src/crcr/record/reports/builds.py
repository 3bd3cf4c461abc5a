"""Builds bound to runs: where a token signs a build's number, the run that it reports for is held to it.

The first report of a build says which run it is; from then on no other build may speak for that run, and the
build for no other run.
"""

from datetime import datetime

from sqlalchemy import text

from crcr.decide.report.identity import Identity
from crcr.decide.report.judge import BuildFacts
from crcr.record.schema.joining import builds
from crcr.record.store.database import Tx
from crcr.record.store.statement import Statement, inserting
from crcr.record.store.times import to_us

_RUN_OF = Statement(
    text("SELECT run_id FROM builds WHERE build = :build AND downstream = :downstream AND issuer = :issuer")
)
_BUILD_OF = Statement(
    text("SELECT build FROM builds WHERE run_id = :run_id AND downstream = :downstream AND issuer = :issuer")
)
_BIND = Statement(
    inserting(builds, "build", "downstream", "issuer", "run_id", "first_seen_at").on_conflict_do_nothing()
)


async def read_build(tx: Tx, identity: Identity, run_id: str) -> BuildFacts | None:
    """What is bound already; None for issuers that sign no build."""
    if identity.build is None:
        return None
    of = {"downstream": identity.repository.key, "issuer": identity.issuer}
    run = await tx.one(_RUN_OF, build=identity.build, **of)
    build = await tx.one(_BUILD_OF, run_id=run_id, **of)
    return BuildFacts(run["run_id"] if run else None, build["build"] if build else None)


async def bind_build(tx: Tx, identity: Identity, run_id: str, now: datetime) -> None:
    if identity.build is None:
        return
    of = {"downstream": identity.repository.key, "issuer": identity.issuer}
    await tx.run(_BIND, build=identity.build, run_id=run_id, first_seen_at=to_us(now), **of)
