"""From bytes, or a mapping, to plain JSON: whatever comes, the answer is a document or one finding."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

from catalogs.auditing.book import Book, shown
from catalogs.canonical import canonical_json, parse_json
from catalogs.errors import FormatError

MAX_BYTES = 512 * 1024 * 1024
"""Larger bundles are refused unread: a thousand cases with all their trials take less."""
_MAX_DEPTH = 100


def read(bundle: object, book: Book) -> dict[str, Any] | None:
    """The JSON object that a bundle is, with nothing shared with the caller; None, and a finding, for anything else."""
    try:
        data = _bytes_of(bundle)
        if len(data) > MAX_BYTES:
            raise FormatError(f"bundle: {len(data):,} bytes; {MAX_BYTES:,} are the most that is read")
        document = parse_json(data, name="bundle")
        canonical_json(document)  # a lone surrogate can be parsed and not be written
    except (FormatError, ValueError) as error:
        book.find("bundle", str(error).removeprefix("bundle: "))
        return None
    if not isinstance(document, dict):
        book.find("bundle", f"expected a JSON object, got {shown(document)}")
        return None
    if _too_deep(document):
        book.find("bundle", f"nested deeper than {_MAX_DEPTH} levels")
        return None
    return document


def check_digest(document: Mapping[str, Any], field: str, where: str, book: Book) -> None:
    """That a member is the sha256 of the canonical JSON of the document without it."""
    stated = document.get(field)
    actual = digest({name: value for name, value in document.items() if name != field})
    if stated != actual:
        book.find(where, f"{shown(stated)} is stated, but its contents have {actual}: it was edited", field=field)


def digest(document: Any) -> str:
    """sha256 (hex) of a document's canonical JSON."""
    return hashlib.sha256(canonical_json(document)).hexdigest()


def device_digest(kind: str, identity: Mapping[str, Any]) -> str:
    """As ``catalogs.device`` has it: its JSON is ASCII, unlike canonical JSON."""
    text = json.dumps({"kind": kind, "identity": identity}, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def _bytes_of(bundle: object) -> bytes:
    if isinstance(bundle, bytes | bytearray | memoryview):
        return bytes(bundle)
    if not isinstance(bundle, Mapping):
        raise FormatError(f"expected a JSON object or its bytes, got {type(bundle).__name__}")
    try:
        return canonical_json(dict(bundle))
    except (TypeError, ValueError, RecursionError) as error:  # sets, NaN, circles, lone surrogates, depth
        raise FormatError(f"not JSON ({error})") from None


def _too_deep(document: Any) -> bool:
    waiting = [(document, 1)]
    while waiting:
        value, depth = waiting.pop()
        if depth > _MAX_DEPTH:
            return True
        if isinstance(value, dict):
            waiting.extend((item, depth + 1) for item in value.values())
        elif isinstance(value, list):
            waiting.extend((item, depth + 1) for item in value)
    return False
