"""Canonical JSON: the one byte string of a document, its sha256, and a reader that accepts nothing ambiguous."""

from __future__ import annotations

import json
import math
from typing import Any

from catalogs.errors import FormatError


def canonical_json(document: Any) -> bytes:
    """The one byte string of a JSON document: sorted keys, no spaces, UTF-8, shortest floats, no NaN or infinity.

    Raises ValueError on values that JSON does not have.
    """
    return json.dumps(document, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False).encode()


def sha256_hex(document: Any) -> str:
    """sha256 (hex) of the canonical JSON of a document."""
    import hashlib  # brings OpenSSL: milliseconds that importing the package need not pay

    return hashlib.sha256(canonical_json(document)).hexdigest()


def parse_json(data: bytes, *, name: str) -> Any:
    """The document that UTF-8 bytes hold. ``name`` is what messages call it.

    Raises FormatError on anything that is not exactly one JSON value: NaN, infinities and numbers too large to be
    finite, an object that names a member twice (``json`` alone would silently keep the last), bad UTF-8, truncation.
    """
    try:
        return json.loads(
            data.decode("utf-8"), object_pairs_hook=_unique, parse_constant=_no_constant, parse_float=_finite
        )
    except (ValueError, RecursionError) as error:  # UnicodeDecodeError and JSONDecodeError are ValueErrors
        raise FormatError(f"{name}: not the JSON it should be ({error})") from None


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    members = dict(pairs)
    if len(members) != len(pairs):
        seen: set[str] = set()
        twice = next(name for name, _ in pairs if name in seen or seen.add(name))  # type: ignore[func-returns-value]
        raise ValueError(f"an object has the member {twice!r} twice")
    return members


def _no_constant(word: str) -> float:
    raise ValueError(f"{word} is not a JSON number")


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(f"{text[:40]} is too large for a number")
    return number
