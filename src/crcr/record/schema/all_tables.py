"""The whole schema as one `metadata`: importing this module defines every table."""

from crcr.record.schema import checks, failures, joining, statistics
from crcr.record.schema.main_tables import metadata

__all__ = ["checks", "failures", "joining", "metadata", "statistics"]
