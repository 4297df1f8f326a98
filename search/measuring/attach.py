"""Which devices are attached to this machine, with what toolchain, and why one is unavailable.

Cheap enough to run in the service: no compiler library is imported, files are hashed once and remembered.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from search.device.probe import probe_cpu
from search.device.spec import DeviceSpec
from search.lowering.cpu import toolchain
from search.measuring.gpu.attached import NO_DRIVER, attached_gpus

_TIMING_SOURCES = ("protocol.py", "timers.py", "timer.c", "candidate_child.py", "kernel_child.py", "buffers.py")
_GPU_TIMING_SOURCES = (
    *("protocol.py", "timers.py", "candidate_child.py", "gpu_child.py", "buffers.py"),
    *(f"gpu/{name}.py" for name in ("conditions", "cuda_driver", "cuda_kernel", "loop", "memory", "sampler")),
)


def attached_devices(work_dir: str | Path, *, cancelled: Callable[[], bool] = lambda: False) -> tuple[DeviceSpec, ...]:
    """Every device that jobs may name: the CPU, and GPUs where a driver is loaded.

    ``work_dir`` keeps the cache of file hashes and the compiler's self-test.

    Takes about a second the first time on a machine (compiler self-test, hashing of TileLang's libraries), and a few
    when the compiler hangs. Raises Cancelled when ``cancelled()`` says so; nothing that was started stays.
    """
    work = Path(work_dir)
    work.mkdir(parents=True, exist_ok=True)
    parts = toolchain.fingerprint(cache_dir=work, cancelled=cancelled)
    # A compiler that does not even say its version is not asked again: it may hang once more.
    unavailable = parts["compiler"].get("unavailable") or toolchain.check(work_dir=work, cancelled=cancelled)
    described = {**parts, "timing_sources_sha256": timing_sources_sha256()}
    cpu = probe_cpu(toolchain=described, unavailable=unavailable)
    gpus = attached_gpus(lambda architecture: _compiling(architecture, work, cancelled), cancelled=cancelled)
    return (cpu, *(gpu for gpu in gpus if gpu.reason != NO_DRIVER))


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
