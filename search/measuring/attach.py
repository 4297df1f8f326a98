"""Which devices are attached to this machine, with what toolchain, and why one is unavailable.

Cheap enough to run in the service: no compiler library is imported, files are hashed once and remembered.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from search.device.cores import with_own_cores
from search.device.probe import probe_cpu
from search.device.spec import DeviceSpec
from search.lowering.cpu import toolchain
from search.measuring.gpu.attached import NO_DRIVER, attached_gpus

_TIMING_SOURCES = ("protocol.py", "timers.py", "timer.c", "candidate_child.py", "kernel_child.py", "buffers.py")
_GPU_TIMING_SOURCES = (
    *("protocol.py", "timers.py", "candidate_child.py", "gpu_child.py", "buffers.py"),
    *(f"gpu/{name}.py" for name in ("conditions", "cuda_driver", "cuda_kernel", "loop", "memory", "sampler")),
)


def attached_devices(
    work_dir: str | Path, *, known: Sequence[DeviceSpec] = (), cancelled: Callable[[], bool] = lambda: False
) -> tuple[DeviceSpec, ...]:
    """Every device that jobs may name: the CPU, and GPUs where a driver is loaded.

    ``work_dir`` keeps the cache of file hashes and the compiler's self-test. ``known``: devices of an earlier call, of
    which the available ones are believed as far as their compilers go: then only the GPU driver is asked what is there.
    Where GPUs were known, one that stands for none says why.

    Takes about a second the first time on a machine (compiler self-test, hashing of TileLang's libraries), and a few
    when the compiler hangs. Raises Cancelled when ``cancelled()`` says so; nothing that was started stays.
    """
    work = Path(work_dir)
    work.mkdir(parents=True, exist_ok=True)
    believed = [spec for spec in known if spec.available]
    cpu = next((spec for spec in believed if spec.target == "cpu"), None) or _cpu(work, cancelled)

    def compiling(architecture: str) -> tuple[Mapping[str, Any], str | None]:
        for spec in believed:
            if spec.uuid is not None and spec.architecture == architecture:
                return {name: part for name, part in spec.toolchain.items() if name != "driver_version"}, None
        return _compiling(architecture, work, cancelled)

    gpus = attached_gpus(compiling, cancelled=cancelled)
    had_some = any(spec.uuid is not None for spec in known)
    return with_own_cores((cpu, *(gpu for gpu in gpus if had_some or gpu.reason != NO_DRIVER)))


def _cpu(work: Path, cancelled: Callable[[], bool]) -> DeviceSpec:
    parts = toolchain.fingerprint(cache_dir=work, cancelled=cancelled)
    # A compiler that does not even say its version is not asked again: it may hang once more.
    unavailable = parts["compiler"].get("unavailable") or toolchain.check(work_dir=work, cancelled=cancelled)
    return probe_cpu(toolchain={**parts, "timing_sources_sha256": timing_sources_sha256()}, unavailable=unavailable)


def _compiling(architecture: str, work: Path, cancelled: Callable[[], bool]) -> tuple[Mapping[str, Any], str | None]:
    """What compiles for a GPU and times on it, and why nothing compiles, or None."""
    from search.lowering.cuda.toolchain import check, fingerprint

    parts = fingerprint(architecture, cache_dir=work, cancelled=cancelled)
    unavailable = parts["compiler"].get("unavailable") or check(architecture, cancelled=cancelled)
    return {**parts, "timing_sources_sha256": timing_sources_sha256(_GPU_TIMING_SOURCES)}, unavailable


def timing_sources_sha256(names: Sequence[str] = _TIMING_SOURCES) -> str:
    """sha256 (hex) of the files that decide how a time is taken."""
    digest = hashlib.sha256()
    for name in names:
        digest.update(name.encode() + b"\0")
        digest.update((Path(__file__).parent / name).read_bytes())
    return digest.hexdigest()
