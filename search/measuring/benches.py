"""Which children measure on which target, and what they need: what differs between devices. Parent side."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from search.device.spec import CacheContext as CacheContext
from search.device.spec import DeviceSpec
from search.measuring.timers import ensure_timer


@dataclass(frozen=True, kw_only=True)
class ChildKind:
    """A child's module, its words after the entry, and its environment beside what every child has."""

    module: str
    arguments: Sequence[str] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    bounded: bool = True
    """Whether its address space may be limited: CUDA reserves more than any machine has."""


@dataclass(frozen=True, kw_only=True)
class Children:
    """The two children of a device: one for compiled kernels, one for torch."""

    kernels: ChildKind
    torch: ChildKind
    on_gpu: bool = False


def children_of(device: DeviceSpec, work_dir: Path, *, cache_context: CacheContext = "warm") -> Children:
    """The children for a device. ToolchainUnavailable when the CPU's timing loop cannot be built."""
    inductor = {
        "TORCHINDUCTOR_CACHE_DIR": str(work_dir / "inductor"),
        "TORCHINDUCTOR_COMPILE_THREADS": "1",  # no worker pool beside what is timed
    }
    if device.target == "cpu":
        timer = str(ensure_timer(work_dir))
        return Children(
            kernels=ChildKind(module="search.measuring.kernel_child", arguments=[timer]),
            torch=ChildKind(module="search.measuring.torch_child", environment=inductor),
        )
    uuid = str(device.uuid)
    seen = {"CUDA_VISIBLE_DEVICES": uuid, "CUDA_MODULE_LOADING": "EAGER"}
    return Children(
        kernels=ChildKind(
            module="search.measuring.gpu_child", arguments=[uuid, cache_context], environment=seen, bounded=False
        ),
        torch=ChildKind(
            module="search.measuring.gpu_torch_child",
            arguments=[uuid, cache_context],
            environment={**inductor, **seen, "TRITON_CACHE_DIR": str(work_dir / "triton")},
            bounded=False,
        ),
        on_gpu=True,
    )
