"""The built kernels as ctypes sees them: mirrors the structures of ``fibers.h``. Child side; no numpy."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from search.lowering.contract import Launch
from search.measuring.foreign_library import close_library, open_library
from search.measuring.simt.protocol import Order
from search.outcome import Rejected

_TEXT_BYTES = 256


class _Request(ctypes.Structure):
    _fields_ = (
        ("arguments", ctypes.POINTER(ctypes.c_void_p)),
        ("blocks", ctypes.c_int32),
        ("threads", ctypes.c_int32),
        ("dynamic_shared_bytes", ctypes.c_int64),
        ("order", ctypes.c_int32),
        ("poison_byte", ctypes.c_uint32),
        ("seed", ctypes.c_uint64),
    )


class _Report(ctypes.Structure):
    _fields_ = (
        ("kind", ctypes.c_int32),
        ("block", ctypes.c_int32),
        ("thread", ctypes.c_int32),
        ("line", ctypes.c_int32),
        ("address", ctypes.c_uint64),
        ("barriers", ctypes.c_int64),
        ("switches", ctypes.c_int64),
        ("text", ctypes.c_char * _TEXT_BYTES),
    )


MEMORY_FAULT = 5
"""The kind whose address may lie at the edge of a tensor."""
_CRASHES = {MEMORY_FAULT: "memory_fault", 6: "index_out_of_bounds", 7: "misaligned_access", 8: "trap"}
_WRONG = {1: "simulation_deadlock", 2: "divergent_barrier", 3: "bad_barrier", 4: "bad_warp_mask", 9: "not_simulated"}


@dataclass(frozen=True, kw_only=True)
class Launched:
    """What one launch reported."""

    kind: int
    """0: every thread of every block finished."""
    address: int
    barriers: int
    """Completed barriers, of all blocks together."""
    switches: int
    """How often a thread waited."""
    detail: Mapping[str, Any]

    def rejection(self, where: Mapping[str, Any]) -> Rejected | None:
        """The rejection that the report amounts to, None for none; ``where`` is added to its detail."""
        if self.kind == 0:
            return None
        detail = {**self.detail, **where}
        if self.kind in _CRASHES:
            return Rejected(
                stage="runtime", reason="simulation_crashed", detail={"fault": _CRASHES[self.kind], **detail}
            )
        return Rejected(stage="correctness", reason=_WRONG[self.kind], detail=detail)


class Library:
    """A built library, open in this process until :meth:`close`."""

    def __init__(self, path: str) -> None:
        self.path = path
        self._library = open_library(path)

    def close(self) -> None:
        """Close it; its stacks and signal handlers go with it."""
        close_library(self._library)

    def run(
        self,
        symbol: str,
        launch: Launch,
        order: Order,
        *,
        blocks: int,
        values: Sequence[tuple[str, int]],
        seed: int,
    ) -> Launched:
        """Run every block of a kernel. ``values``: ("tensor", address) or ("dim", number), one for each argument."""
        run = self._library[f"simt_run_{symbol}"]
        numbers = (ctypes.c_int32 * len(values))(*(value if kind == "dim" else 0 for kind, value in values))
        pointers = (ctypes.c_void_p * len(values))()
        for place, (kind, value) in enumerate(values):
            dim_address = ctypes.addressof(numbers) + place * ctypes.sizeof(ctypes.c_int32)
            pointers[place] = value if kind == "tensor" else dim_address
        request = _Request(
            arguments=pointers,
            blocks=blocks,
            threads=launch.threads_per_block,
            dynamic_shared_bytes=launch.dynamic_shared_bytes,
            order=order.number,
            poison_byte=order.poison_byte,
            seed=seed,
        )
        report = _Report()
        run(ctypes.byref(request), ctypes.byref(report))
        detail: dict[str, Any] = {
            "message": report.text.decode(errors="replace"),
            "block": report.block,
            "thread": report.thread,
            "order": order.name,
        }
        if report.line:
            detail["line"] = report.line
        return Launched(
            kind=report.kind,
            address=report.address,
            barriers=report.barriers,
            switches=report.switches,
            detail=detail,
        )
