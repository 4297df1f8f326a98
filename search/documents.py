"""Frozen records to JSON and back, by their type hints: what events and steps carry through queues and databases.

Understands what our records are made of: dataclasses, mappings with text keys, tuples, optional values and plain JSON.
Keys that a record does not know are ignored and missing ones take the field's default, so that a ledger written by an
older or newer version still loads.
"""

from __future__ import annotations

import dataclasses
import types
from collections.abc import Hashable, Mapping
from functools import cache
from typing import Any, TypeVar, Union, cast, get_args, get_origin, get_type_hints

Record = TypeVar("Record")
HERE_ONLY: Mapping[str, Any] = {"here_only": True}
"""Metadata of a field that means something on this machine alone: documents leave it out, so it needs a default."""


def record_document(value: Any) -> Any:
    """JSON form of a record: an object per dataclass and mapping, a list per tuple."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = [field.name for field in dataclasses.fields(value) if "here_only" not in field.metadata]
        return {name: record_document(getattr(value, name)) for name in fields}
    if isinstance(value, Mapping):
        return {str(key): record_document(item) for key, item in value.items()}
    if isinstance(value, (tuple, list)):
        return [record_document(item) for item in value]
    return value


def record_from_document(record: type[Record], document: Mapping[str, Any]) -> Record:
    """Inverse of :func:`record_document` for a dataclass. For our own records, not for user input.

    Raises TypeError when a field without a default is missing.
    """
    hints = _hints(cast(Hashable, record))
    return record(**{name: _value(hint, document[name]) for name, hint in hints.items() if name in document})


@cache
def _hints(record: Any) -> dict[str, Any]:
    """Resolved types of the fields (cached: resolving them is slow, and a ledger holds thousands of records)."""
    hints = get_type_hints(record)
    return {field.name: hints[field.name] for field in dataclasses.fields(record)}


def _value(hint: Any, value: Any) -> Any:
    if value is None or hint is Any:
        return value
    origin, arguments = get_origin(hint), get_args(hint)
    if origin in (Union, types.UnionType):
        return _value(next(a for a in arguments if a is not type(None)), value)
    if origin is tuple:
        if len(arguments) == 2 and arguments[1] is Ellipsis:
            return tuple(_value(arguments[0], item) for item in value)
        return tuple(_value(argument, item) for argument, item in zip(arguments, value, strict=True))
    if isinstance(origin, type) and issubclass(origin, Mapping):
        return {key: _value(arguments[1], item) for key, item in value.items()}
    if dataclasses.is_dataclass(hint) and isinstance(hint, type):
        return record_from_document(hint, value)
    return value
