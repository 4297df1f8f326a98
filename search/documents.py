"""Frozen records to JSON and back, by their type hints: what events and steps carry through queues and databases.

Understands what our records are made of: dataclasses, mappings with text keys, tuples, optional values and plain JSON.
Keys that a record does not know are ignored and missing ones take the field's default, so that a ledger written by an
older or newer version still loads.
"""

from __future__ import annotations

import dataclasses
import types
from collections.abc import Callable, Hashable, Mapping
from functools import cache, partial
from typing import Any, TypeAlias, TypeVar, Union, cast, get_args, get_origin, get_type_hints

Record = TypeVar("Record")
_Reader: TypeAlias = Callable[[Any], Any]
HERE_ONLY: Mapping[str, Any] = {"here_only": True}
"""Metadata of a field that means something on this machine alone: documents leave it out, so it needs a default."""


def record_document(value: Any) -> Any:
    """JSON form of a record: an object per dataclass and mapping, a list per tuple."""
    if value is None or isinstance(value, (str, int, float)):
        return value
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {name: record_document(getattr(value, name)) for name in _shown(type(value))}
    if isinstance(value, Mapping):
        return {str(key): record_document(item) for key, item in value.items()}
    if isinstance(value, (tuple, list)):
        return [record_document(item) for item in value]
    return value


@cache
def _shown(record: Any) -> tuple[str, ...]:
    return tuple(field.name for field in dataclasses.fields(record) if "here_only" not in field.metadata)


def record_from_document(record: type[Record], document: Mapping[str, Any]) -> Record:
    """Inverse of :func:`record_document` for a dataclass. For our own records, not for user input.

    Raises TypeError when a field without a default is missing.
    """
    readers = _readers(cast(Hashable, record))
    return record(**{name: _read(read, document[name]) for name, read in readers if name in document})


@cache
def _readers(record: Any) -> tuple[tuple[str, _Reader | None], ...]:
    """What reads each field (cached: types are slow to ask, and a ledger holds thousands of records)."""
    hints = get_type_hints(record)
    return tuple((field.name, _reader(hints[field.name])) for field in dataclasses.fields(record))


def _reader(hint: Any) -> _Reader | None:
    """What turns a value of JSON that is not null into one of this type; None when it is one already."""
    origin, arguments = get_origin(hint), get_args(hint)
    if origin in (Union, types.UnionType):
        return _reader(next(argument for argument in arguments if argument is not type(None)))
    if origin is tuple:
        if len(arguments) == 2 and arguments[1] is Ellipsis:
            each = _reader(arguments[0])
            return tuple if each is None else lambda value: tuple(_read(each, item) for item in value)
        of_place = [_reader(argument) for argument in arguments]
        return lambda value: tuple(_read(one, item) for one, item in zip(of_place, value, strict=True))
    if isinstance(origin, type) and issubclass(origin, Mapping):
        of_value = _reader(arguments[1])
        return dict if of_value is None else lambda value: {key: _read(of_value, item) for key, item in value.items()}
    if dataclasses.is_dataclass(hint) and isinstance(hint, type):
        return partial(record_from_document, hint)
    return None


def _read(read: _Reader | None, value: Any) -> Any:
    return value if read is None or value is None else read(value)
