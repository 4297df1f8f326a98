"""One check per kind of field. Each returns its value, or raises FormatError with the field's path and what is wanted.

Paths read as people write them: ``entries[3].key.dims.rows``.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any, NoReturn

from catalogs.errors import FormatError

_HEX = frozenset("0123456789abcdef")
_SHOWN_CHARACTERS = 80
_LARGEST_INTEGER = 2**63 - 1


def shown(value: Any) -> str:
    """A value for a message, shortened."""
    text = repr(value)
    return text if len(text) <= _SHOWN_CHARACTERS else text[: _SHOWN_CHARACTERS - 1] + "…"


def refuse(path: str, value: Any, wanted: str) -> NoReturn:
    """Raise the FormatError of a value that is not what is wanted."""
    raise FormatError(f"{path}: expected {wanted}, got {shown(value)}")


def under(path: str, name: str) -> str:
    """The path of a member."""
    return f"{path}.{name}" if path else name


def an_object(value: Any, path: str) -> Mapping[str, Any]:
    """A JSON object."""
    if not isinstance(value, Mapping) or not all(isinstance(name, str) for name in value):
        refuse(path or "document", value, "an object")
    return value


def a_list(value: Any, path: str) -> list[Any]:
    """A JSON array."""
    if not isinstance(value, list):
        refuse(path, value, "a list")
    return value


def a_text(value: Any, path: str) -> str:
    """A string with at least one character."""
    if not isinstance(value, str) or not value:
        refuse(path, value, "a non-empty string")
    return value


def a_word(value: Any, path: str, allowed: Iterable[str]) -> str:
    """One of a few words."""
    words = list(allowed)
    if not isinstance(value, str) or value not in words:
        refuse(path, value, " or ".join(repr(word) for word in words))
    return value


def is_sha256(value: Any) -> bool:
    """Whether this is the hexadecimal text of a sha256: 64 lower-case digits."""
    return isinstance(value, str) and len(value) == 64 and set(value) <= _HEX


def a_sha256(value: Any, path: str) -> str:
    """The hexadecimal text of a sha256."""
    if not is_sha256(value):
        refuse(path, value, "a sha256 (64 hexadecimal digits)")
    assert isinstance(value, str)
    return value


def an_integer(value: Any, path: str, *, least: int) -> int:
    """An integer (no bool) of at least ``least``, of at most 63 bits."""
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= _LARGEST_INTEGER:
        refuse(path, value, f"an integer of at least {least}")
    return value


def a_number(value: Any, path: str) -> float | int:
    """A finite integer or float (no bool)."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not _is_finite(value):
        refuse(path, value, "a finite number")
    return value


def _is_finite(value: float) -> bool:
    try:
        return math.isfinite(value)
    except OverflowError:  # an integer that no float can hold
        return False


def numbers(value: Any, path: str) -> Mapping[str, float | int]:
    """An object of finite numbers."""
    for name, number in an_object(value, path).items():
        a_number(number, under(path, name))
    assert isinstance(value, Mapping)
    return value


def texts(value: Any, path: str) -> Mapping[str, str]:
    """An object of non-empty strings."""
    for name, text in an_object(value, path).items():
        a_text(text, under(path, name))
    assert isinstance(value, Mapping)
    return value


def all_present(document: Mapping[str, Any], names: Iterable[str], path: str) -> None:
    """Refuse a document that lacks a member, naming it."""
    for name in names:
        if name not in document:
            raise FormatError(f"{under(path, name)}: missing")


def a_known_version(value: Any, path: str, newest: int) -> int:
    """A schema version that this code reads: its own or an older one."""
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= newest:
        raise FormatError(
            f"{path}: {shown(value)} is not a version that this code reads (1 to {newest}); newer ones need newer code"
        )
    return value
