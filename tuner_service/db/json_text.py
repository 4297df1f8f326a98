"""JSON that is handed on as the database holds it: read as text, never parsed, set into the answer as it stands.

Records are long and lists have many. Parsing a record and writing it again takes longer than everything else that a
page does.
"""

from __future__ import annotations

import json
import secrets
from dataclasses import dataclass
from itertools import chain, zip_longest
from typing import Any

_MARK = secrets.token_hex(16)
"""Stands where a text goes while the rest is written; nobody outside this process can know it."""


@dataclass(frozen=True, slots=True)
class JsonText:
    """A value of a document, as JSON text that a JSON writer made."""

    text: str


def json_value(text: str | None) -> JsonText | None:
    """A nullable column of JSON, read as text."""
    return None if text is None else JsonText(text)


def json_text(document: Any) -> str:
    """The JSON of a document in which any value, at any depth, may be a JsonText. ValueError for NaN and infinity."""
    texts: list[str] = []

    def keep(value: Any) -> str:
        if not isinstance(value, JsonText):
            raise TypeError(f"{type(value).__name__} is no JSON")
        texts.append(value.text)
        return _MARK

    shell = json.dumps(document, ensure_ascii=False, allow_nan=False, separators=(",", ":"), default=keep)
    return "".join(chain.from_iterable(zip_longest(shell.split(f'"{_MARK}"'), texts, fillvalue="")))


def parsed(document: Any) -> Any:
    """The same document with every JsonText parsed, for readers in this program."""
    return json.loads(json_text(document))
