"""Which lowering serves which target."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from search.lowering.contract import Lowering
from search.lowering.cpu.lower import CpuLowering
from search.lowering.cuda.lower import CudaLowering
from search.space.candidate import TargetKind


def _cpu(architecture: str | None) -> Lowering:
    if architecture is not None:
        raise ValueError("a CPU's lowering takes no architecture: the compiler asks the machine")
    return CpuLowering()


def _cuda(architecture: str | None) -> Lowering:
    if architecture is None:
        raise ValueError("a CUDA lowering needs an architecture, as sm_90")
    return CudaLowering(architecture)


LOWERINGS: Mapping[TargetKind, Callable[[str | None], Lowering]] = {"cpu": _cpu, "cuda": _cuda}
"""Target → its lowering, for an architecture (``sm_90``) where the target has several."""
