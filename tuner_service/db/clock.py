"""Ids and timestamps: RFC 3339 UTC text, and ids that sort by time of creation."""

from __future__ import annotations

import secrets
import threading
import time
from datetime import UTC, datetime

_ALPHABET = "0123456789abcdefghjkmnpqrstvwxyz"
"""Crockford's base 32, lower case: in order, nothing easily misread."""
_RANDOM_BITS = 80
_lock = threading.Lock()
_last = 0


def now() -> str:
    """This moment, RFC 3339 UTC with microseconds."""
    return datetime.now(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")


def new_id(prefix: str) -> str:
    """``prefix_`` and 26 characters: 48 bits of milliseconds, 80 random ones; strictly increasing in a process."""
    global _last
    with _lock:
        fresh = (time.time_ns() // 1_000_000) << _RANDOM_BITS | secrets.randbits(_RANDOM_BITS)
        _last = fresh if fresh > _last else _last + 1
        number = _last
    digits = [_ALPHABET[number >> shift & 31] for shift in range(125, -1, -5)]
    return f"{prefix}_{''.join(digits)}"
