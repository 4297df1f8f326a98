"""The Simulator: what the pipeline calls to check CUDA kernels where there is no GPU. Parent side.

No numpy and no candidate code in this process: texts are translated here, g++ and the kernels run in processes of their
own.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from search.children.child import ChildGone, ChildTimeout
from search.children.scratch import scratch_folder
from search.errors import ChildFailed
from search.measuring.progress import DOING, IDLE
from search.measuring.protocol import Checks, MeasureResult
from search.measuring.rejections import died, timed_out
from search.measuring.simt.build import Built, build
from search.measuring.simt.protocol import ORDERS, SimulationItem
from search.measuring.simt.rows import simulated_rows, with_rows
from search.measuring.simt.source import NotSimulated, Translation, translate
from search.measuring.simt.toolchain import SimulationToolchain, prepare
from search.measuring.workbench import Asked, Timeouts, Workbench, own_work_seconds, utc_now
from search.outcome import Rejected
from search.program.case import Case

BATCH_KERNELS = 15
"""Kernels of one compiler call."""


def _never() -> bool:
    return False


class Simulator:
    """Simulates CUDA kernels on the CPU, one at a time, and compares them with the oracle. Nothing is timed.

    Thread-safe: calls wait for each other. Raises ToolchainUnavailable when g++, CUDA's headers or TileLang's are
    missing, Cancelled when ``cancelled`` says so (the child is killed), ChildFailed when our child fails by itself.
    """

    def __init__(
        self,
        work_dir: Path | str,
        *,
        cpus: Sequence[int] = (),
        child_timeout_seconds: float = 60.0,
        prepare_timeout_seconds: float = 600.0,
        build_timeout_seconds: float = 120.0,
        memory_limit_bytes: int | None = None,
    ) -> None:
        self._work_dir = Path(work_dir).resolve()
        self._work_dir.mkdir(parents=True, exist_ok=True)
        self._timeouts = Timeouts(item_seconds=child_timeout_seconds, prepare_seconds=prepare_timeout_seconds)
        self._build_timeout_seconds = build_timeout_seconds
        self._turn = threading.Lock()
        self._closed = False
        self._toolchain: SimulationToolchain | None = None
        self._cpus = tuple(cpus)
        self._memory_limit_bytes = memory_limit_bytes if memory_limit_bytes is not None else _physical_memory_bytes()
        self._kernels = Workbench(
            "search.measuring.simt.child",
            [],
            work_dir=str(self._work_dir),
            cpus=cpus,
            lock_fd=None,
            timeouts=self._timeouts,
            memory_limit_bytes=self._memory_limit_bytes,
        )

    def __enter__(self) -> Simulator:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Kill the child. Idempotent."""
        with self._turn:
            self._closed = True
            self._kernels.discard()

    def check(
        self, case: Case, items: Sequence[SimulationItem], *, cancelled: Asked = _never
    ) -> Iterator[MeasureResult]:
        """Check each kernel on the three input sets in three orders of threads; results in the order of the items.

        Of a case with many rows as many are simulated as the kernel needs (``checks.simulated_rows``); rows are
        simulated at their full length.
        """
        for start in range(0, len(items), BATCH_KERNELS):
            yield from self._batch(case, items[start : start + BATCH_KERNELS], cancelled)

    def _batch(self, case: Case, items: Sequence[SimulationItem], cancelled: Asked) -> Iterator[MeasureResult]:
        with scratch_folder("simt", self._work_dir) as folder:
            started = utc_now()
            translations, refused = _translated(items)
            with self._turn:
                toolchain = self._prepared(cancelled)
                built = build(
                    list(translations.values()),
                    toolchain,
                    Path(folder),
                    timeout_seconds=self._build_timeout_seconds,
                    cancelled=cancelled,
                )
            for item in items:
                rejection = refused.get(item.id) or built.rejections.get(item.symbol)
                if rejection is None:
                    rejection = _launch_problem(item, translations[item.id])
                with self._turn:
                    answer = {} if rejection is not None else self._simulate(case, item, built, cancelled)
                if answer.get("rejection"):
                    rejection = Rejected.from_document(answer["rejection"])
                checks = answer.get("checks")
                yield MeasureResult(
                    id=item.id,
                    checks=Checks.from_document(checks) if checks else None,
                    rejection=rejection,
                    started_at=started,
                    finished_at=utc_now(),
                )
                started = utc_now()

    def _prepared(self, cancelled: Asked) -> SimulationToolchain:
        if self._closed:
            raise RuntimeError("this Simulator is closed")
        if self._toolchain is None:
            self._toolchain = prepare(
                self._work_dir, cpus=self._cpus, memory_limit_bytes=self._memory_limit_bytes, cancelled=cancelled
            )
        return self._toolchain

    def _simulate(self, case: Case, item: SimulationItem, built: Built, cancelled: Asked) -> Mapping[str, Any]:
        if self._closed:
            raise RuntimeError("this Simulator is closed")
        small = with_rows(case, simulated_rows(case, item.launch))
        seconds = self._timeouts.item_seconds + len(ORDERS) * own_work_seconds(small)
        while True:
            self._kernels.open(small, cancelled)
            shared = self._kernels.used
            self._kernels.used = True
            try:
                answer = self._kernels.ask(
                    cancelled, seconds, "simulate", library=built.libraries[item.symbol], **item.call_document()
                )
            except ChildTimeout:
                exit_ = self._kernels.discard()
                assert exit_ is not None
                return {"rejection": timed_out(seconds, "simulating", exit_).document()}
            except ChildGone as gone:
                self._kernels.discard()
                if shared:  # an earlier kernel may have damaged the process: only a fresh child can tell
                    continue
                if gone.exit.progress == IDLE:
                    raise ChildFailed(f"the simulating child died by itself: {gone.exit.document()}") from None
                rejected = died(DOING.get(gone.exit.progress, "unknown"), gone.exit)
                return {"rejection": replace(rejected, reason="simulation_crashed").document()}
            if answer["tainted"]:
                self._kernels.discard()
            return answer


def _translated(items: Sequence[SimulationItem]) -> tuple[dict[str, Translation], dict[str, Rejected]]:
    """The C++ of each item, or its refusal, by id."""
    translations: dict[str, Translation] = {}
    refused: dict[str, Rejected] = {}
    for item in items:
        try:
            translations[item.id] = translate(item.cuda_text, item.symbol, item.arguments)
        except NotSimulated as problem:
            detail = {"constructs": list(problem.constructs), "message": problem.message}
            refused[item.id] = Rejected(stage="correctness", reason="not_simulated", detail=detail)
    return translations, refused


def _launch_problem(item: SimulationItem, translation: Translation) -> Rejected | None:
    threads, bound = item.launch.threads_per_block, translation.launch_bound
    if bound is None or threads <= bound:
        return None
    detail = {"threads_per_block": threads, "launch_bound": bound}
    return Rejected(stage="runtime", reason="launch_bound_exceeded", detail=detail)


def _physical_memory_bytes() -> int:
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
