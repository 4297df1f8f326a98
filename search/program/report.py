"""Report: collects Problems, with pointers (RFC 6901) and with values that are always fit for JSON."""

from __future__ import annotations

import math
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from search.errors import InvalidInput, Problem

SHOWN_CHARS = 200
KEYS_TOLD = 8
"""Unknown keys of one object that are told of."""


def child(pointer: str, key: str | int) -> str:
    """The pointer to a member of what ``pointer`` points at."""
    return pointer + "/" + str(key).replace("~", "~0").replace("/", "~1")


def shown(value: Any) -> Any:
    """A caller's value as it may be echoed: short, finite and encodable, whatever was sent."""
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, int):
        # str() of an enormous int raises, and few JSON readers keep more than 64 bits
        return value if value.bit_length() <= 64 else f"an integer of {value.bit_length()} bits"
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if isinstance(value, str):
        text = value if len(value) <= SHOWN_CHARS else f"{value[:SHOWN_CHARS]}… ({len(value)} characters)"
        return text.encode("utf-8", "backslashreplace").decode("utf-8")
    if isinstance(value, list | tuple):
        if len(value) <= 8 and not any(isinstance(item, list | tuple | dict) for item in value):
            return [shown(item) for item in value]
        return f"a list of {len(value)}"
    if isinstance(value, dict):
        return f"an object with {len(value)} keys"
    return f"a Python {type(value).__name__}"


class Report:
    """Problems found so far, in the order found."""

    def __init__(self) -> None:
        self._problems: list[Problem] = []

    @property
    def problems(self) -> tuple[Problem, ...]:
        """What was added."""
        return tuple(self._problems)

    def add(self, field: str, value: Any, message: str, allowed: Any = None) -> None:
        """Adds one problem."""
        self._problems.append(Problem(field=shown_text(field), value=shown(value), message=message, allowed=allowed))

    def members(self, given: Any, known: Sequence[str], *, not_an_object: str, pointer: str = "") -> Mapping[str, Any]:
        """A caller's object, as it came; its unknown keys are added.

        InvalidInput with the message ``not_an_object``, and all that was added before, when it is none.
        """
        if not isinstance(given, Mapping):
            self.add(pointer, given, not_an_object, list(known))
            raise InvalidInput(self._problems)
        self.unknown_keys(given, known, pointer=pointer)
        return given

    def unknown_keys(self, given: Mapping[str, Any], known: Sequence[str], *, pointer: str = "") -> None:
        """Adds a problem for each key that is not known, for the first few of them."""
        for key in [key for key in given if key not in known][:KEYS_TOLD]:
            message = f"unknown key {shown_text(str(key))!r}"
            self.add(child(pointer, str(key)), given[key], message, list(known))

    def extend(self, problems: Iterable[Problem]) -> None:
        """Adds problems that are complete already."""
        self._problems.extend(problems)

    def raise_if_any(self) -> None:
        """InvalidInput with everything that was added."""
        if self._problems:
            raise InvalidInput(self._problems)


def character_words(character: str) -> str:
    """What a character is, for one that may look like another or like nothing: ``U+200B is ZERO WIDTH SPACE``."""
    return f"U+{ord(character):04X} is {unicodedata.name(character, 'a character without a name')}"


def shown_text(text: str) -> str:
    """A caller's name inside a message or a pointer: encodable and not endless."""
    return str(shown(text))
