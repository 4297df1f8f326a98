"""The simulating child: ``python -m search.measuring.simt.child ENTRY``. Holds ctypes and numpy, no CUDA.

Commands (JSON lines): ``case`` puts a case with the rows to simulate on the bench; ``simulate`` runs one built kernel
on every input in every order of threads, and compares all of it with the oracle.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from search.children.entry import Channel, enter
from search.children.forks import Forks
from search.lowering.contract import Launch
from search.measuring.aftermath import forked_rejection
from search.measuring.bench import Array, Bench
from search.measuring.progress import CHECKING, IDLE, LOADING
from search.measuring.serving import serve
from search.measuring.simt.memory import FlushBuffer
from search.measuring.simt.native import MEMORY_FAULT, Launched, Library
from search.measuring.simt.protocol import ORDERS, Order
from search.outcome import Rejected
from search.program.resolve import resolve_case

_SEED = 20251


class _Faulty(Exception):  # noqa: N818 - carries a rejection, handled next to the call
    """A run ended, or two runs disagree: ``rejection`` says how."""

    def __init__(self, rejection: Rejected) -> None:
        self.rejection = rejection
        super().__init__(rejection.reason)


class SimulatingChild:
    """State of the process: one case on its bench."""

    def __init__(self, channel: Channel, forks: Forks) -> None:
        self._channel, self._forks = channel, forks
        self._bench: Bench | None = None
        self._buffers: dict[str, FlushBuffer] = {}
        self._library: Library | None = None

    def case(self, document: Mapping[str, Any], work_dir: str) -> dict[str, Any]:
        """Put a case on the bench, in place of the one that was there."""
        self._channel.progress(IDLE)
        self._bench, self._buffers = None, {}
        bench = Bench(resolve_case(document, admitted=True), Path(work_dir), buffer_type=FlushBuffer)
        self._buffers = {name: b for name, b in bench.buffers.items() if isinstance(b, FlushBuffer)}
        self._bench = bench
        return {"event": "ready", "forks": self._forks.protection}

    def simulate(
        self,
        library: str,
        symbol: str,
        arguments: list[Mapping[str, str]],
        launch: Mapping[str, int],
    ) -> dict[str, Any]:
        """Check one kernel; a rejection says where it ended. ``tainted``: give the process up."""
        bench = self._bench
        assert bench is not None, "a case comes first"
        self._channel.progress(LOADING)
        opened, shape = self._open(library), Launch(**launch)
        blocks = -(-bench.case.rows // shape.rows_per_block)

        def run_once(order: Order) -> Launched:
            values = [
                (a["kind"], self._buffers[a["name"]].address if a["kind"] == "tensor" else bench.case.dims[a["name"]])
                for a in arguments
            ]
            return opened.run(symbol, shape, order, blocks=blocks, values=values, seed=_SEED)

        self._channel.progress(CHECKING)
        answer: dict[str, Any] = {"event": "result", "checks": None, "rejection": None, "tainted": False}
        try:
            verdict = bench.check(lambda: self._run_in_every_order(bench, run_once))
        except _Faulty as faulty:
            # What wrote or jumped where it must not may have damaged the process.
            harmful = faulty.rejection.stage == "runtime" or faulty.rejection.reason == "guard_overwritten"
            return {**answer, "rejection": faulty.rejection.document(), "tainted": harmful}
        answer["checks"] = {**verdict.checks.document(), "simulated_rows": bench.case.rows}
        forked = forked_rejection(self._forks)
        rejection = verdict.rejection or forked
        if rejection is not None:
            answer["rejection"] = rejection.document()
        return {**answer, "tainted": verdict.tainted or forked is not None}

    def _open(self, path: str) -> Library:
        if self._library is not None and self._library.path != path:
            self._library.close()
            self._library = None
        self._library = self._library or Library(path)
        return self._library

    def _run_in_every_order(self, bench: Bench, run_once: Callable[[Order], Launched]) -> Mapping[str, Array]:
        """Run on the same input in every order. The last one's outputs, when all agree bit for bit."""
        distinct = {id(buffer): buffer for buffer in self._buffers.values()}
        given = {key: buffer.taken() for key, buffer in distinct.items()}
        first: dict[str, Array] = {}
        for order in ORDERS:
            for key, buffer in distinct.items():
                buffer.place(order.side)
                buffer.put(given[key])
            launched = run_once(order)
            rejection = launched.rejection(self._where(launched))
            if rejection is None:
                rejection = self._damage(order)
            outputs = {name: self._buffers[name].taken() for name in bench.output_arrays}
            if rejection is None and first:
                rejection = self._disagreement(first, outputs, order)
            if rejection is not None:
                raise _Faulty(rejection)
            first = first or outputs
        return bench.output_arrays

    def _where(self, launched: Launched) -> dict[str, Any]:
        """The tensor at whose edge the kernel faulted."""
        if launched.kind != MEMORY_FAULT:
            return {}
        for name, buffer in self._buffers.items():
            place = buffer.locate(launched.address)
            if place is not None:
                return {"tensor": name, **place}
        return {}

    def _damage(self, order: Order) -> Rejected | None:
        damaged = {name: count for name, buffer in self._buffers.items() if (count := buffer.damaged_guards())}
        if not damaged:
            return None
        detail = {"guard_elements": damaged, "order": order.name}
        return Rejected(stage="correctness", reason="guard_overwritten", detail=detail)

    def _disagreement(self, first: Mapping[str, Array], outputs: Mapping[str, Array], order: Order) -> Rejected | None:
        for name, bits in outputs.items():
            dtype = self._buffers[name].dtype
            places = np.flatnonzero(_differ(first[name], bits, dtype))
            if places.size:
                place = int(places[0])
                got = [str(one.view(dtype)[place]) for one in (first[name], bits)]
                detail = {
                    "tensor": name,
                    "elements": int(places.size),
                    "index": [int(i) for i in np.unravel_index(place, self._buffers[name].array.shape)],
                    "values": dict(zip((ORDERS[0].name, order.name), got, strict=True)),
                }
                return Rejected(stage="correctness", reason="depends_on_thread_order", detail=detail)
        return None


def _differ(one: Array, other: Array, dtype: npt.DTypeLike) -> npt.NDArray[np.bool_]:
    """Where two arrays of bits differ, but for NaNs of different bits."""
    different: npt.NDArray[np.bool_] = one != other
    if np.dtype(dtype).kind == "i" or not different.any():
        return different
    different &= ~(np.isnan(one.view(dtype)) & np.isnan(other.view(dtype)))
    return different


def main() -> None:
    """Enter, forbid forks, then serve."""
    channel = enter(sys.argv[1])
    child = SimulatingChild(channel, Forks.forbid())
    serve(channel, {"case": child.case, "simulate": child.simulate})


if __name__ == "__main__":
    main()
