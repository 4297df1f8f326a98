"""Kinds of JSON values. A kind yields what is wrong with a value: the path of the field, and what was expected."""

from __future__ import annotations

import datetime
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, TypeAlias

Kind: TypeAlias = Callable[[Any, str], Iterator[tuple[str, str]]]

_HEX = re.compile(r"[0-9a-f]{64}")
_TIMESTAMP = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d{1,6})?(Z|\+00:00)")
_LARGEST_INTEGER = 2**63 - 1
_SHOWN_CHARACTERS = 80


def _kind(wanted: str, fits: Callable[[Any], bool]) -> Kind:
    def check(value: Any, path: str) -> Iterator[tuple[str, str]]:
        if not fits(value):
            yield path, f"expected {wanted}, got {repr(value)[:_SHOWN_CHARACTERS]}"

    return check


def _is_integer(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and abs(value) <= _LARGEST_INTEGER


def _is_number(value: Any) -> bool:
    return _is_integer(value) or (isinstance(value, float) and math.isfinite(value))


def _is_timestamp(value: Any) -> bool:
    if not isinstance(value, str) or not _TIMESTAMP.fullmatch(value):
        return False
    try:
        datetime.datetime.fromisoformat(value)
    except ValueError:
        return False
    return True


ANYTHING = _kind("anything", lambda value: True)
OBJECT = _kind("an object", lambda value: isinstance(value, dict))
LIST = _kind("a list", lambda value: isinstance(value, list))
TEXT = _kind("a non-empty string", lambda value: isinstance(value, str) and value != "")
SHA256 = _kind("a sha256 (64 hexadecimal digits)", lambda value: isinstance(value, str) and bool(_HEX.fullmatch(value)))
BOOLEAN = _kind("true or false", lambda value: isinstance(value, bool))
TRUE = _kind("true", lambda value: value is True)
NULL = _kind("null", lambda value: value is None)
INDEX = _kind("an integer of at least 0", lambda value: _is_integer(value) and value >= 0)
COUNT = _kind("an integer of at least 1", lambda value: _is_integer(value) and value >= 1)
NUMBER = _kind("a finite number", _is_number)
NOT_NEGATIVE = _kind("a finite number of at least 0", lambda value: _is_number(value) and value >= 0)
POSITIVE = _kind("a finite number above 0", lambda value: _is_number(value) and value > 0)
TIMESTAMP = _kind("a UTC timestamp (RFC 3339)", _is_timestamp)


def exactly(wanted: Any) -> Kind:
    """One number or text and no other."""
    return _kind(repr(wanted), lambda value: not isinstance(value, bool) and bool(value == wanted))


def one_of(*words: str) -> Kind:
    """One of a few texts."""
    return _kind(" or ".join(repr(word) for word in words), lambda value: isinstance(value, str) and value in words)


def or_null(kind: Kind) -> Kind:
    """A value of that kind, or null."""

    def check(value: Any, path: str) -> Iterator[tuple[str, str]]:
        if value is not None:
            yield from kind(value, path)

    return check


def each(kind: Kind, *, least: int = 0) -> Kind:
    """A list of values of that kind, ``least`` or more of them."""

    def check(value: Any, path: str) -> Iterator[tuple[str, str]]:
        if not isinstance(value, list):
            yield from LIST(value, path)
            return
        if len(value) < least:
            yield path, f"expected at least {least} of them, got {len(value)}"
        for position, item in enumerate(value):
            yield from kind(item, f"{path}[{position}]")

    return check


def members(kind: Kind) -> Kind:
    """An object, whatever its names, with values of that kind."""

    def check(value: Any, path: str) -> Iterator[tuple[str, str]]:
        if not isinstance(value, dict):
            yield from OBJECT(value, path)
            return
        for name, item in value.items():
            yield from kind(item, _under(path, name))

    return check


def shape(
    required: Mapping[str, Kind], *, optional: Mapping[str, Kind] | None = None, unknown_allowed: bool = False
) -> Kind:
    """An object with these members. Others are refused: they would be facts that nobody audits."""
    known = {**required, **(optional or {})}

    def check(value: Any, path: str) -> Iterator[tuple[str, str]]:
        if not isinstance(value, dict):
            yield from OBJECT(value, path)
            return
        if not unknown_allowed:
            yield from ((_under(path, name), "not a member of this format") for name in _sorted(value.keys() - known))
        for name, kind in known.items():
            if name in value:
                yield from kind(value[name], _under(path, name))
            elif name in required:
                yield _under(path, name), "missing"

    return check


def _sorted(names: Iterable[str]) -> list[str]:
    return sorted(name[:_SHOWN_CHARACTERS] for name in names)


def _under(path: str, name: str) -> str:
    return f"{path}.{name[:_SHOWN_CHARACTERS]}" if path else name[:_SHOWN_CHARACTERS]
