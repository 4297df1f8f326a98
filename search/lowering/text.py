"""An indented text, one line at a time: what emission writes into."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager


class Text:
    """Lines of Python source with a current indentation."""

    def __init__(self, depth: int = 0) -> None:
        self.lines: list[str] = []
        self._depth = depth

    def line(self, text: str) -> None:
        """Append one line at the current depth (an empty one stays empty)."""
        self.lines.append("    " * self._depth + text if text else "")

    @contextmanager
    def block(self, head: str | None) -> Iterator[None]:
        """Open a block; ``None`` opens nothing, so that a loop of one trip can be left out."""
        if head is None:
            yield
            return
        self.line(head)
        self._depth += 1
        yield
        self._depth -= 1

    def source(self) -> str:
        """The whole text."""
        return "\n".join(self.lines) + "\n"
