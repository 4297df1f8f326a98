"""Strict JSON, of request bodies and of files: every fault is a Problem with a JSON pointer, never an exception later.

Python's own parser takes NaN, repeated keys, lone surrogates and numbers of any size. Stored or echoed, each of
them breaks something later, so they are refused here, all at once.
"""

from __future__ import annotations

import json
import math
import re
from dataclasses import dataclass, field
from typing import Any

from search.errors import InvalidInput, Problem

MAX_DEPTH = 64
"""Nested arrays and objects; a program document needs fewer than ten."""
MAX_INTEGER = 2**63 - 1
"""Integers are stored as signed 64-bit."""
MAX_PROBLEMS = 50
_SHOWN_CHARACTERS = 80
_STRING_OR_BRACKET = re.compile(r'"[^"\\]*+(?:\\.[^"\\]*+)*+"?|[\[\]{}]', re.DOTALL)


@dataclass(frozen=True, kw_only=True)
class _HugeInteger:
    text: str


@dataclass(frozen=True, kw_only=True)
class _Object:
    members: dict[str, Any]
    repeated: tuple[str, ...] = field(default=())


def parse_object(raw: bytes, *, what: str = "the body") -> dict[str, Any]:
    """A JSON object from bytes; plain dicts, lists, strings, finite floats, 64-bit integers, booleans and None.

    Raises InvalidInput naming each fault: not UTF-8, not JSON, not an object, too deep, NaN or infinity, integers
    beyond 64 bits, repeated names, NUL or lone surrogates in strings. ``what`` it is called in messages.
    """
    text = _decode(raw, what)
    if not isinstance(document := _document(text, what), dict):
        raise _refused(f"{what} must be a JSON object", _shown(text))
    return document


def parse_list(text: str, *, what: str) -> list[Any]:
    """A JSON list, as strictly."""
    if not isinstance(document := _document(text, what), list):
        raise _refused(f"{what} must be a JSON list", _shown(text), "a JSON list")
    return document


def _document(text: str, what: str) -> Any:
    _check_depth(text, what)
    try:
        tree = json.loads(text, parse_int=_integer, object_pairs_hook=_object)
    except json.JSONDecodeError as error:
        message = f"{what} is not JSON: {error.msg} at line {error.lineno}, column {error.colno}"
        raise _refused(message, _shown(text)) from None
    problems: list[Problem] = []
    document = _plain(tree, "", problems)
    if problems:
        raise InvalidInput(problems[:MAX_PROBLEMS])
    return document


def _refused(message: str, value: Any, allowed: str = "a JSON object in UTF-8") -> InvalidInput:
    return InvalidInput([Problem(field="", value=value, message=message, allowed=allowed)])


def _shown(text: str) -> str:
    shown = text[:_SHOWN_CHARACTERS].replace("\0", "\\u0000")
    return shown if len(text) <= _SHOWN_CHARACTERS else shown + "…"


def _decode(raw: bytes, what: str) -> str:
    if not raw.strip():
        raise _refused(f"{what} is empty; it must be a JSON object", None)
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError as error:
        shown = raw[:_SHOWN_CHARACTERS].decode("utf-8", "backslashreplace")
        raise _refused(f"{what} is not JSON: byte {error.start} is not UTF-8", shown) from None


def _check_depth(text: str, what: str) -> None:
    """Counted before parsing, because the parser's own limit is the interpreter's stack."""
    depth = 0
    for token in _STRING_OR_BRACKET.finditer(text):
        bracket = token.group()
        if bracket in ("[", "{"):
            depth += 1
            if depth > MAX_DEPTH:
                raise _refused(f"{what} is nested more than {MAX_DEPTH} deep", _shown(text))
        elif bracket in ("]", "}"):
            depth -= 1


def _integer(text: str) -> int | _HugeInteger:
    if len(text) > len(str(-MAX_INTEGER)):
        return _HugeInteger(text=text)
    value = int(text)
    return value if abs(value) <= MAX_INTEGER else _HugeInteger(text=text)


def _object(pairs: list[tuple[str, Any]]) -> _Object:
    members = dict(pairs)
    if len(members) == len(pairs):
        return _Object(members=members)
    seen: set[str] = set()
    repeated = {name for name, _ in pairs if name in seen or seen.add(name)}  # type: ignore[func-returns-value]
    return _Object(members=members, repeated=tuple(sorted(repeated)))


def _plain(node: Any, pointer: str, problems: list[Problem]) -> Any:
    """The parsed tree without our marker types; what is wrong is added to ``problems`` by pointer."""
    if isinstance(node, _Object):
        for name in node.repeated:
            where = f"{pointer}/{_pointer_token(name)}"
            problems.append(Problem(field=where, value=name, message="this name stands more than once in its object"))
        document = {}
        for name, value in node.members.items():
            where = f"{pointer}/{_pointer_token(name)}"
            _check_text(name, where, problems)
            document[name] = _plain(value, where, problems)
        return document
    if isinstance(node, list):
        return [_plain(item, f"{pointer}/{index}", problems) for index, item in enumerate(node)]
    if isinstance(node, str):
        _check_text(node, pointer, problems)
    elif isinstance(node, float) and not math.isfinite(node):
        message = "NaN, infinity and numbers too large for a float are not JSON numbers"
        problems.append(Problem(field=pointer, value=str(node), message=message, allowed="a finite number"))
    elif isinstance(node, _HugeInteger):
        allowed = f"an integer between {-MAX_INTEGER} and {MAX_INTEGER}"
        problems.append(
            Problem(field=pointer, value=_shown(node.text), message="this integer is too large", allowed=allowed)
        )
    return node


def _pointer_token(name: str) -> str:
    """A name as one token of a JSON pointer (RFC 6901), safe to print."""
    printable = name.encode("utf-8", "backslashreplace").decode().replace("\0", "\\u0000")
    return printable[:_SHOWN_CHARACTERS].replace("~", "~0").replace("/", "~1")


def _check_text(text: str, pointer: str, problems: list[Problem]) -> None:
    if "\0" in text:
        message = "a string must not hold a NUL character"
    elif any("\ud800" <= character <= "\udfff" for character in text):
        message = "a string must not hold half of a surrogate pair"
    else:
        return
    shown = text.encode("utf-8", "backslashreplace").decode()
    problems.append(Problem(field=pointer, value=_shown(shown), message=message, allowed="Unicode text"))
