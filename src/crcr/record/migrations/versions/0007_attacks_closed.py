"""Columns that close the attacks of faults 54 to 69"""

import json
import zlib

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"


def upgrade() -> None:
    """Each part of the migration names the fault that it closes."""
    _names()
    _bases()
    _confirmations()
    _senders()


def _names() -> None:
    """Fault 60: names change, ids stay. Fault 68: gates of commits that nobody wants merged."""
    # Dispatches and waivers follow a repository by its id when its name changes. Rows from before have none and are
    # read by the id that their name is bound to.
    op.add_column("dispatches", sa.Column("repository_id", sa.BigInteger(), nullable=True))
    op.add_column("waivers", sa.Column("repository_id", sa.BigInteger(), nullable=True))
    op.create_index("ix_repositories_id", "repositories", ["repository_id", "upstream"])
    # The gate of a merged group stays green, the gate of another destroyed group ends cancelled. Groups from before
    # count as merged: their checks are left as they are.
    op.add_column(
        "merge_groups", sa.Column("merged", sa.SmallInteger(), server_default=sa.text("0"), nullable=False)
    )
    op.execute("UPDATE merge_groups SET merged = 1 WHERE destroyed_at IS NOT NULL")


def _bases() -> None:
    """Fault 54: results, waivers and approvals hold for a head on a base. Fault 62: labels of a released dispatch."""
    op.add_column("deliveries", sa.Column("base_ref", sa.Text(), nullable=True))
    op.add_column("deliveries", sa.Column("relay_reason", sa.Text(), nullable=True))
    op.add_column("dispatches", sa.Column("labels", sa.Text(), nullable=True))
    op.add_column("waivers", sa.Column("base_ref", sa.Text(), nullable=True))
    op.add_column("approvals", sa.Column("base_ref", sa.Text(), nullable=True))
    op.add_column("pulls", sa.Column("base_at", sa.BigInteger(), nullable=True))
    for table in ("waivers", "approvals"):
        op.execute(
            f"UPDATE {table} SET base_ref = (SELECT p.base_ref FROM pulls p"  # noqa: S608  our own names
            f" WHERE p.upstream = {table}.upstream AND p.number = {table}.number)"
        )
    _bases_of_open_heads()


def _bases_of_open_heads() -> None:
    """The base that each delivery was dispatched with, as its body says; a body that is gone had the base of today."""
    connection = op.get_bind()
    open_heads = connection.execute(
        sa.text(
            # CROSS JOIN makes SQLite begin with the open pull requests: the other way round it reads every delivery.
            "SELECT v.guid, v.upstream, p.base_ref FROM pulls p CROSS JOIN deliveries v WHERE v.upstream = p.upstream"
            " AND v.number = p.number AND v.head_sha = p.head_sha AND p.is_open = 1 AND v.event = 'pull_request'"
        )
    ).all()
    body = sa.text("SELECT body FROM deliveries WHERE guid = :guid AND upstream = :upstream")
    fill = sa.text("UPDATE deliveries SET base_ref = :base_ref WHERE guid = :guid AND upstream = :upstream")
    for guid, upstream, known in open_heads:
        key = {"guid": guid, "upstream": upstream}
        packed = connection.execute(body, key).scalar()
        connection.execute(fill, {**key, "base_ref": _base_in(packed) or known})


def _base_in(packed: bytes | None) -> str | None:
    try:
        base = json.loads(zlib.decompress(packed or b""))["pull_request"]["base"]["ref"]
    except (zlib.error, ValueError, KeyError, TypeError):
        return None
    return base if isinstance(base, str) else None


def _confirmations() -> None:
    """Faults 58 and 59: how a run ended, whether Actions could be read at the dispatch, when a webhook told of a run."""
    op.add_column("runs", sa.Column("conclusion", sa.Text(), nullable=True))
    op.add_column("dispatches", sa.Column("reads_actions", sa.SmallInteger(), nullable=True))
    op.add_column("repositories", sa.Column("run_webhook_at", sa.BigInteger(), nullable=True))


def _senders() -> None:
    """Which runs may report, and which webhooks have been taken."""
    # Fault 61: reports of other refs than the default branch are refused.
    op.add_column("repositories", sa.Column("default_branch", sa.Text(), nullable=True))
    # Fault 66: a captured webhook is not taken again under another GUID.
    op.create_table(
        "webhook_bodies",
        sa.Column("digest", sa.Text(), nullable=False),
        sa.Column("guid", sa.Text(), nullable=False),
        sa.Column("taken_at", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("digest", name=op.f("pk_webhook_bodies")),
        sqlite_with_rowid=False,
    )
    op.create_index("ix_webhook_bodies_age", "webhook_bodies", ["taken_at"])
