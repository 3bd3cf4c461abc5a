"""All tables, wherever they are defined: the whole schema as one `metadata`."""

from crcr.record.schema.core import metadata

__all__ = ["metadata"]
