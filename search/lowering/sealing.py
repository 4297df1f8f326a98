"""Bytes with their own sha256 before them, compressed: what comes out of a shared store is what was put in, or nothing.

Libraries compress to a third, and sources, which repeat each other's words, to a quarter.
"""

from __future__ import annotations

import hashlib
import zlib

_MAGIC = b"tuner1"
_HEAD_BYTES = len(_MAGIC) + hashlib.sha256().digest_size


def sealed(data: bytes) -> bytes:
    """Magic, sha256 of the data, data compressed. Equal data give equal bytes."""
    return _MAGIC + hashlib.sha256(data).digest() + zlib.compress(data, 6)


def unsealed(blob: bytes, *, limit_bytes: int) -> bytes | None:
    """The data; None when anything about the bytes is wrong, or the data are more than ``limit_bytes``."""
    if not blob.startswith(_MAGIC) or len(blob) <= _HEAD_BYTES:
        return None
    packed = zlib.decompressobj()
    try:
        data = packed.decompress(blob[_HEAD_BYTES:], limit_bytes + 1)
    except zlib.error:
        return None
    whole = packed.eof and not packed.unused_data and len(data) <= limit_bytes
    return data if whole and hashlib.sha256(data).digest() == blob[len(_MAGIC) : _HEAD_BYTES] else None


def most_sealed_bytes(limit_bytes: int) -> int:
    """How long the sealed form of ``limit_bytes`` may be (zlib's own bound)."""
    return _HEAD_BYTES + limit_bytes + limit_bytes // 1000 + 64
