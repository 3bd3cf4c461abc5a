"""The whole schema as one `metadata`: importing this module defines every table."""

from crcr.record.schema import (
    bisections,
    checks,
    failures,
    in_tree,
    joining,
    levels,
    notices,
    pairs,
    statistics,
)
from crcr.record.schema.main_tables import metadata

__all__ = [
    "bisections",
    "checks",
    "failures",
    "in_tree",
    "joining",
    "levels",
    "metadata",
    "notices",
    "pairs",
    "statistics",
]
