"""Why an effect is held back, and what the other parts of this release record"""

import sqlalchemy as sa
from alembic import op

from crcr.record.sums_anew import find_extremes

revision = "0008"
down_revision = "0007"


def upgrade() -> None:
    _held_effects()
    _shortest_and_longest()


def _held_effects() -> None:
    """Which limit holds a waiting effect until its `due_at`: pages say the reason to every reader."""
    op.add_column("effects", sa.Column("held_by", sa.Text(), nullable=True))


def _shortest_and_longest() -> None:
    """The shortest and longest duration in each row of sums: percentiles are never beyond them."""
    for table in ("hours", "days"):
        for name in ("queue_low_s", "execution_low_s", "queue_high_s", "execution_high_s"):
            op.add_column(table, sa.Column(name, sa.Double(), nullable=True))
    find_extremes(op.get_bind())
