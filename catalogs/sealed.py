"""Small local files that show damage: the first line is the sha256 of the rest, the rest is one JSON document."""

from __future__ import annotations

import hashlib
from typing import Any

from catalogs.canonical import canonical_json, parse_json
from catalogs.errors import FormatError


def seal(document: Any) -> bytes:
    """The file of a JSON document."""
    data = canonical_json(document)
    return hashlib.sha256(data).hexdigest().encode("ascii") + b"\n" + data


def unseal(data: bytes, *, name: str) -> Any:
    """The document of a file that :func:`seal` wrote. Raises FormatError for any other bytes."""
    seal_line, _, rest = data.partition(b"\n")
    if hashlib.sha256(rest).hexdigest().encode("ascii") != seal_line:
        raise FormatError(f"{name}: its first line is not the sha256 of the rest: it was damaged or edited")
    return parse_json(rest, name=name)
