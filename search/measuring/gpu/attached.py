"""Which GPUs are attached to this machine, or why none is. Parent side: asks in a child, with bounded patience."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from search.children.child import Child, ChildGone, ChildTimeout
from search.device.gpu import absent_gpu, code_architecture, counts, gpu_device, of_uuids, visible
from search.device.probe import split_cpus
from search.device.spec import DeviceSpec
from search.lowering.cuda.architectures import limits_document, unknown_limits

PROBE_SECONDS = 8.0
"""A driver that was not in use wakes its cards up first, which takes seconds; one that takes longer is broken."""
DRIVER_FILES = ("/dev/nvidiactl", "/dev/dxg", "/proc/driver/nvidia/version")
"""Any of these is there where a driver is loaded."""
NO_DRIVER = "no NVIDIA driver is loaded on this machine"
VISIBLE, ORDER, BUS_ORDER = "CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER", "PCI_BUS_ID"
_MODULE = "search.measuring.gpu.probe_child"
Compiling = Callable[[str], tuple[Mapping[str, Any], str | None]]
"""An architecture → what compiles for it here, and why it cannot, or None."""


def attached_gpus(
    compiling: Compiling = lambda architecture: ({}, None),
    *,
    cancelled: Callable[[], bool] = lambda: False,
    module: str = _MODULE,
    driver_files: tuple[str, ...] = DRIVER_FILES,
    timeout_seconds: float = PROBE_SECONDS,
) -> tuple[DeviceSpec, ...]:
    """A device for each visible GPU; where there is none, one that is unavailable and says why.

    Without a driver the answer is immediate, with one that hangs it comes after ``timeout_seconds``. ``compiling`` is
    asked only for GPUs that are there. Raises Cancelled when ``cancelled()`` says so.
    """
    if not any(Path(file).exists() for file in driver_files):
        return (absent_gpu(NO_DRIVER),)
    shown = os.environ.get(VISIBLE)
    # Numbers are places on the bus when CUDA is told so; else they are its own, which nobody else knows.
    order = counts(shown) and os.environ.get(ORDER) != BUS_ORDER
    found = _asked(module, timeout_seconds, cancelled, order=order)
    if isinstance(found, str):
        return (absent_gpu(found),)
    cards: Sequence[Mapping[str, Any]] = found["cards"]
    if order and len(cards) > 1:
        if found.get("shown") is None:
            reason = f"{VISIBLE}={shown} counts as CUDA does, and CUDA does not say how ({found.get('unshown')})"
            return (absent_gpu(f"{reason}: name cards by uuid, or set {ORDER}={BUS_ORDER}"),)
        chosen = of_uuids(cards, found["shown"])
    else:
        chosen = visible(cards, shown)
    if not chosen:
        hidden = f"; {VISIBLE}={shown} shows none of {len(cards)}" if cards else ""
        lost = "".join(f"; {card['lost']}" for card in cards if "lost" in card)
        return (absent_gpu(f"the NVIDIA driver has no GPU for this process{hidden}{lost}"),)
    return tuple(_device(card, cards.index(card), compiling) for card in chosen)


def _device(card: Mapping[str, Any], place: int, compiling: Compiling) -> DeviceSpec:
    if "lost" in card:
        return absent_gpu(str(card["lost"]), place=place)
    major, minor = card["compute_capability"]
    architecture = code_architecture(major, minor)
    unavailable = _unfit(card)
    toolchain: Mapping[str, Any] = {}
    if unavailable is None:
        unavailable = unknown_limits(architecture)
    if unavailable is None:
        toolchain, unavailable = compiling(architecture)
    measure, compile_ = split_cpus()
    return gpu_device(
        card,
        architecture=architecture,
        toolchain=toolchain,
        unavailable=unavailable,
        limits=limits_document(architecture),
        measure_cpus=measure,
        compile_cpus=compile_,
    )


def _asked(
    module: str, timeout_seconds: float, cancelled: Callable[[], bool], *, order: bool
) -> Mapping[str, Any] | str:
    """The probing child's answer, or why there is none. ``order``: CUDA's own is needed too."""
    seen = {name: os.environ[name] for name in (VISIBLE, ORDER) if name in os.environ}
    compiling = split_cpus()[1]  # on the other core something may be measured
    child = Child.start(module, ["order"] if order else [], environment=seen, cpus=compiling)
    try:
        answer = child.receive(timeout_seconds=timeout_seconds, cancelled=cancelled)
    except ChildTimeout:
        return f"the NVIDIA driver did not answer within {timeout_seconds:g} s"
    except ChildGone as gone:
        return f"the NVIDIA driver brought down who asked it: {gone.exit.document()}"
    finally:
        child.kill()
    reason = answer.get("reason")
    return str(reason) if reason is not None else answer


def _unfit(card: Mapping[str, Any]) -> str | None:
    """Why this card cannot be measured on, or None."""
    if card.get("mig"):
        return "this GPU is split (MIG): its instances are not measured"
    if tuple(card["compute_capability"]) < (8, 0):
        return f"compute capability {card['compute_capability']}: code is generated for 8.0 and later"
    return None
