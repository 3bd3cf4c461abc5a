"""The lists of pull requests and of commits: when a pull request was opened, and indexes for order and filters"""

import sqlalchemy as sa
from alembic import op

revision = "0013"
down_revision = "0012"


def upgrade() -> None:
    op.add_column("pulls", sa.Column("opened_at", sa.BigInteger(), nullable=True))
    op.create_index("ix_pulls_updated", "pulls", ["upstream", "updated_at", "number"])
    _create_partial("ix_pulls_open", "pulls", ["upstream", "updated_at", "number"], "is_open = 1")
    _create_partial("ix_dispatches_held", "dispatches", ["upstream", "number"], "state = 'held'")
    _create_partial("ix_failures_pull", "failures", ["upstream", "number"], "kind = 'pull_request'")


def _create_partial(name: str, table: str, columns: list[str], where: str) -> None:
    condition = sa.text(where)
    op.create_index(name, table, columns, sqlite_where=condition, postgresql_where=condition)
