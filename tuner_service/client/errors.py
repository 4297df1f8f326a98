"""Exceptions of the client.

::

    ClientError
    ├── ApiProblem            the service answered with a problem document
    └── ServiceUnreachable    nothing answers at that address, or what answers is not a tuner
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

MAX_VALUE_CHARACTERS = 200
"""How much of a refused value or of an allowed list a message repeats."""


class ClientError(Exception):
    """Root of what the client raises on purpose."""


class ServiceUnreachable(ClientError):  # noqa: N818 - named for what happened, as search.errors does
    """Nothing answers at that address, or what answers is not a tuner."""


class ApiProblem(ClientError):  # noqa: N818
    """The service refused: ``problem`` is the RFC 9457 document it sent."""

    def __init__(self, problem: Mapping[str, Any]) -> None:
        self.problem: dict[str, Any] = dict(problem)
        super().__init__(problem_text(self.problem))

    @property
    def status(self) -> int:
        """HTTP status."""
        return int(self.problem.get("status", 0))

    @property
    def errors(self) -> Sequence[Mapping[str, Any]]:
        """One item per wrong field: ``field``, ``value``, ``message``, ``allowed``."""
        found = self.problem.get("errors")
        return found if isinstance(found, list) else ()


def problem_text(problem: Mapping[str, Any]) -> str:
    """A problem document for people: its title and detail, then one line per wrong field."""
    title = str(problem.get("title") or f"HTTP {problem.get('status')}")
    detail = problem.get("detail")
    lines = [f"{title}: {detail}" if detail and detail != title else title]
    for error in problem.get("errors") or ():
        lines.append("  " + field_text(error))
    return "\n".join(lines)


def field_text(error: Mapping[str, Any]) -> str:
    """One wrong field: where, what stood there, what is wrong, what is allowed."""
    text = f"{error.get('field') or '/'}"
    if error.get("value") is not None:
        text += f" = {_short(error['value'])}"
    text += f": {error.get('message')}"
    if error.get("allowed") is not None:
        allowed = error["allowed"]
        if allowed == []:
            text += " (nothing is allowed)"
        elif isinstance(allowed, list) and all(isinstance(word, str) for word in allowed):
            text += f" (allowed: {_short(', '.join(allowed), quote=False)})"
        else:
            text += f" (allowed: {_short(allowed, quote=not isinstance(allowed, str))})"
    return text


def _short(value: Any, *, quote: bool = True) -> str:
    text = json.dumps(value, ensure_ascii=False) if quote else str(value)
    return text if len(text) <= MAX_VALUE_CHARACTERS else text[:MAX_VALUE_CHARACTERS] + "…"
