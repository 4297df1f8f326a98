"""Which lowering serves which target."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from search.lowering.contract import Lowering
from search.lowering.cpu.lower import CpuLowering
from search.space.candidate import TargetKind

LOWERINGS: Mapping[TargetKind, Callable[[], Lowering]] = {"cpu": CpuLowering}
"""Target → its lowering. A target without an entry cannot be built here."""
