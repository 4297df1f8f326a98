"""Before a compiler's failure is held against a kernel: does the compiler work at all?"""

from __future__ import annotations

from collections.abc import Callable

from search.errors import ToolchainUnavailable


def doubt(broken: Callable[[], str | None] | None, progress: Callable[[], None]) -> None:
    """Raises ToolchainUnavailable with what ``broken`` says of the compiler, if anything; nothing where it is None."""
    if broken is None:
        return
    progress()
    if (reason := broken()) is not None:
        raise ToolchainUnavailable(reason)
