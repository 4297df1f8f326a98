"""From a catalog hit to a callable: checked against what was frozen, compiled at most once, called without overhead.

Imports neither torch nor numpy nor a compiler; each is brought in by what is given, or needed.
"""

from __future__ import annotations

from search.jit.building import build, build_all
from search.jit.errors import (
    FrozenMismatch,
    JitError,
    KernelFailed,
    LaunchFailed,
    LoadFailed,
    MachineCodeChanged,
    NotBuilt,
    NotCompiled,
    OtherDevice,
    PlanChanged,
    ProgramChanged,
    SourceChanged,
    TextChanged,
)
from search.jit.gpu import this_gpu
from search.jit.kernel import Kernel

__all__ = [
    "FrozenMismatch",
    "JitError",
    "Kernel",
    "KernelFailed",
    "LaunchFailed",
    "LoadFailed",
    "MachineCodeChanged",
    "NotBuilt",
    "NotCompiled",
    "OtherDevice",
    "PlanChanged",
    "ProgramChanged",
    "SourceChanged",
    "TextChanged",
    "build",
    "build_all",
    "this_gpu",
]
