"""What checks candidates on a device that times nothing."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Protocol

from search.measuring.protocol import MeasureItem, MeasureResult
from search.measuring.workbench import Asked
from search.program.case import Case


class Checker(Protocol):
    """Compares compiled candidates with the oracle. One check at a time."""

    def check(self, case: Case, items: Sequence[MeasureItem], *, cancelled: Asked) -> Iterator[MeasureResult]:
        """One result for each item, in any order: checks, or a rejection.

        Raises Cancelled, ToolchainUnavailable, ChildFailed.
        """
        ...

    def close(self) -> None:
        """Ends its children; the next check starts new ones."""
        ...
