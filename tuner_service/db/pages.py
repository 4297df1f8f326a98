"""Keyset pages: an opaque cursor holds the sort key of the last item shown, so a list may grow while it is read."""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import BigInteger, ColumnElement, and_, literal, or_

from search.errors import InvalidInput, Problem

Scalar = str | int | float | None
LARGEST_WHOLE_NUMBER = 2**63 - 1
"""What both databases can compare a column with."""


def encode_cursor(sort: str, key: Sequence[Scalar]) -> str:
    """The opaque form of a sort order and of the key where it stopped."""
    text = json.dumps([sort, *key], separators=(",", ":"))
    return base64.urlsafe_b64encode(text.encode()).decode().rstrip("=")


def decode_cursor(cursor: str, sort: str, types: Sequence[type | tuple[type, ...]]) -> list[Any]:
    """The key inside a cursor. InvalidInput when it is not one of ours, or was made for another order."""
    try:
        padded = cursor.encode("ascii") + b"=" * (-len(cursor) % 4)
        made_for: Any
        key: list[Any]
        made_for, *key = json.loads(base64.b64decode(padded, altchars=b"-_", validate=True))
        fits = len(key) == len(types) and all(_is_one(k, t) for k, t in zip(key, types, strict=True))
    except (ValueError, TypeError, binascii.Error, RecursionError):
        raise _refused(cursor, "this cursor is not one that this service gave") from None
    if made_for != sort or not fits:
        raise _refused(cursor, f"this cursor belongs to another list or order (sort={made_for!s:.40})")
    return key


def _is_one(value: Any, kind: type | tuple[type, ...]) -> bool:
    """Whether a value may stand in a key: of its type, and such as columns hold (texts that are sorted are ASCII)."""
    if isinstance(value, str):
        return isinstance(value, kind) and value.isascii() and value.isprintable()
    if isinstance(value, bool) or (isinstance(value, int) and abs(value) > LARGEST_WHOLE_NUMBER):
        return False
    return isinstance(value, kind)


def _refused(cursor: str, message: str) -> InvalidInput:
    allowed = "the `next` of an earlier page with the same filters and sort"
    return InvalidInput([Problem(field="/cursor", value=cursor[:200], message=message, allowed=allowed)])


def following(columns: Sequence[tuple[ColumnElement[Any], bool]], key: Sequence[Any]) -> ColumnElement[bool]:
    """Rows after ``key`` in the order of ``columns`` (column, descending?); nulls come last either way."""
    (column, descending), *rest = columns
    value, *others = key
    if isinstance(value, int):
        value = literal(value, BigInteger())  # PostgreSQL would not compare a column of 32 bits with a larger number
    if value is None:
        return and_(column.is_(None), following(rest, others))
    beyond = column < value if descending else column > value
    later = or_(beyond, column.is_(None))
    return or_(later, and_(column == value, following(rest, others))) if rest else later


def choice(field: str, value: str | None, allowed: Sequence[str] | Mapping[str, Any]) -> list[Problem]:
    """A problem when a filter's value is not one of the allowed ones."""
    if value is None or value in allowed:
        return []
    message = f"unknown {field.rsplit('/', 1)[-1]}"
    return [Problem(field=field, value=value[:200], message=message, allowed=list(allowed))]
