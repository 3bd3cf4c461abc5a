"""Names of failed tests, for the search"""

import sqlalchemy as sa
from alembic import op

revision = "0015"
down_revision = "0014"


def upgrade() -> None:
    op.create_table(
        "failed_tests",
        sa.Column("fingerprint", sa.Text(), nullable=False),
        sa.Column("upstream", sa.Text(), nullable=False),
        sa.Column("downstream", sa.Text(), nullable=False),
        sa.Column("test", sa.Text(), nullable=False),
        sa.Column("number", sa.Integer(), server_default=sa.text("0"), nullable=False),
        sa.Column("last_at", sa.BigInteger(), nullable=True),
        sa.PrimaryKeyConstraint(
            "fingerprint", "upstream", "downstream", "test", name=op.f("pk_failed_tests")
        ),
        sqlite_with_rowid=False,
    )
    op.create_index("ix_failed_tests_recent", "failed_tests", ["upstream", "last_at"])
