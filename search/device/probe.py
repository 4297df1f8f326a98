"""From the machine to a DeviceSpec. What compiles for a device is found out above (``search.measuring.attach``)."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from catalogs import DeviceIdentity, sha256_hex, this_device
from search.device.spec import DeviceSpec

COMPILE_ONLY_DEVICES: tuple[str, ...] = ("cuda-sm_80", "cuda-sm_90", "cuda-sm_100")
"""Names of the compile-only devices that there can be: ``cuda-`` and the architecture."""


def probe_cpu(*, toolchain: Mapping[str, Any], unavailable: str | None) -> DeviceSpec:
    """This machine's CPU as a device.

    ``toolchain`` describes compiler, TileLang, flags and our own lowering and timing sources; ``unavailable`` is the
    reason why it cannot be used, or None. One core is kept for measuring and the others compile; on a single core
    both share it, and the trials say that they overlapped.
    """
    device = this_device()
    measure, compile_ = split_cpus()
    return DeviceSpec(
        id=f"cpu:{device.digest[:12]}",
        kind="cpu",
        target="cpu",
        name=str(device.identity.get("model") or device.identity.get("machdep.cpu.brand_string") or "unknown CPU"),
        identity=device.identity,
        identity_digest=device.digest,
        toolchain=toolchain,
        toolchain_fingerprint=sha256_hex(toolchain),
        available=unavailable is None,
        reason=unavailable,
        measure_cpus=measure,
        compile_cpus=compile_,
    )


def compile_only(
    name: str,
    *,
    toolchain: Mapping[str, Any],
    unavailable: str | None,
    limits: Mapping[str, int] | None = None,
) -> DeviceSpec:
    """A CUDA architecture as a device that exists in the compiler alone (``cuda-sm_90``): nothing is ever timed on it.

    It compiles, and simulates, where the CPU device compiles: the core that measures is left alone. ``limits`` are the
    hardware's documented ones.
    """
    architecture = name.removeprefix("cuda-")
    identity = {"architecture": architecture, "compile_only": True}
    return DeviceSpec(
        id=name,
        kind=name,
        target="cuda",
        name=f"NVIDIA {architecture} (compile-only: nothing is timed)",
        identity=identity,
        identity_digest=DeviceIdentity(kind=name, identity=identity).digest,
        toolchain=toolchain,
        toolchain_fingerprint=sha256_hex(toolchain),
        available=unavailable is None,
        reason=unavailable,
        timed=False,
        architecture=architecture,
        limits=limits or {},
        compile_cpus=split_cpus()[1],
    )


def split_cpus() -> tuple[tuple[int, ...], tuple[int, ...]]:
    """CPU ids of this process: the one that measures, and those that compile meanwhile (the same one, if it is one)."""
    cpus = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else list(range(os.cpu_count() or 1))
    return tuple(cpus[-1:]), tuple(cpus[:-1] or cpus)
