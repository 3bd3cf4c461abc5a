"""Why an effect is held back, and what the other parts of this release record"""

import sqlalchemy as sa
from alembic import op

revision = "0008"
down_revision = "0007"


def upgrade() -> None:
    _held_effects()
    _trimmed_dispatches()
    _forwarded_jobs()
    _health_facts()
    _shortest_and_longest()


def _held_effects() -> None:
    """Which limit holds a waiting effect until its `due_at`: pages say the reason to every reader."""
    op.add_column("effects", sa.Column("held_by", sa.Text(), nullable=True))


def _trimmed_dispatches() -> None:
    """What was cut from the payload of a dispatch, as a JSON list of names; NULL where it was sent whole."""
    op.add_column("dispatches", sa.Column("trimmed", sa.Text(), nullable=True))


def _forwarded_jobs() -> None:
    """When a job began by its reporter's word, and which outcome of it another HUD was sent last, counted."""
    op.add_column("jobs", sa.Column("started_at", sa.BigInteger(), nullable=True))
    op.add_column("jobs", sa.Column("forwarded", sa.Text(), nullable=True))
    op.add_column(
        "jobs", sa.Column("forwarded_no", sa.Integer(), nullable=False, server_default=sa.text("0"))
    )


def _health_facts() -> None:
    """What the relay's health is told from: effects that GitHub does not answer, when a gate was decided, refused webhooks."""
    op.add_column("effects", sa.Column("fault", sa.Text(), nullable=True))
    op.add_column("effects", sa.Column("fault_since", sa.BigInteger(), nullable=True))
    # When GitHub is asked what a check shows, because a worker that lost its lease may have written it too.
    op.add_column("checks", sa.Column("reread_at", sa.BigInteger(), nullable=True))
    reread = sa.text("reread_at IS NOT NULL")
    op.create_index("ix_checks_reread", "checks", ["reread_at"], sqlite_where=reread, postgresql_where=reread)
    op.add_column("gates", sa.Column("decided_at", sa.BigInteger(), nullable=True))
    op.create_table(
        "refused_webhooks",
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("number", sa.BigInteger(), nullable=False),
        sa.Column("since_at", sa.BigInteger(), nullable=False),
        sa.Column("last_at", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("reason", name=op.f("pk_refused_webhooks")),
        sqlite_with_rowid=False,
    )


def _shortest_and_longest() -> None:
    """The shortest and longest duration in each row of sums: percentiles are never beyond them.

    NULL in rows that are there already: reading all jobs here would hold up every report until it is done.
    """
    for table in ("hours", "days"):
        for name in ("queue_low_s", "execution_low_s", "queue_high_s", "execution_high_s"):
            op.add_column(table, sa.Column(name, sa.Double(), nullable=True))
