"""All tables, wherever they are defined: the whole schema as one `metadata`."""

from crcr.record import (  # noqa: F401  they add theirs
    schema_feeding,
    schema_gate,
    schema_history,
    schema_joining,
    schema_replicas,
)
from crcr.record.schema import metadata

__all__ = ["metadata"]
