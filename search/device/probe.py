"""From the machine to a DeviceSpec. What compiles for a device is found out above (``search.measuring.attach``)."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from catalogs import sha256_hex, this_device
from search.device.spec import DeviceSpec


def probe_cpu(*, toolchain: Mapping[str, Any], unavailable: str | None) -> DeviceSpec:
    """This machine's CPU as a device.

    ``toolchain`` describes compiler, TileLang, flags and our own lowering and timing sources; ``unavailable`` is the
    reason why it cannot be used, or None. One core is kept for measuring and the others compile; on a single core
    both share it, and the trials say that they overlapped.
    """
    device = this_device()
    cpus = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else list(range(os.cpu_count() or 1))
    measure, compile_ = cpus[-1:], cpus[:-1] or cpus
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
        measure_cpus=tuple(measure),
        compile_cpus=tuple(compile_),
    )
