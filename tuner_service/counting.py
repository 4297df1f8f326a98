"""Numbers with their nouns, in words for people."""

from __future__ import annotations


def counted(number: int, noun: str, plural: str | None = None) -> str:
    """A number with its noun: ``1 case``, ``12 cases``; ``plural`` where that is not the noun and an s."""
    return f"{number} {noun}" if number == 1 else f"{number} {plural or noun + 's'}"
