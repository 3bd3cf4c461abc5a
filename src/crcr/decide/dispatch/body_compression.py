"""Webhook bodies as they are kept: compressed bytes, exactly as GitHub sent them."""

import json
import zlib
from typing import Any


def compress_body(body: bytes) -> bytes:
    return zlib.compress(body, 1)


def decompress_body(packed: bytes) -> bytes:
    return zlib.decompress(packed)


def decompress_payload(packed: bytes) -> dict[str, Any]:
    payload: dict[str, Any] = json.loads(zlib.decompress(packed))
    return payload
