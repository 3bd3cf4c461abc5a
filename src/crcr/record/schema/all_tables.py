"""The whole schema as one `metadata`: importing this module defines every table."""

from crcr.record.schema import checks, joining, statistics
from crcr.record.schema.main_tables import metadata

__all__ = ["checks", "joining", "metadata", "statistics"]
