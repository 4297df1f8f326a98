"""The measuring child: ``python -m search.measuring.kernel_child ENTRY TIMER``. Holds ctypes and numpy, no torch.

Commands (JSON lines): ``case`` puts a case on the bench; the others are those of ``candidate_child``.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from search.children.entry import Channel, enter
from search.children.forks import Forks
from search.lowering.contract import Artifact
from search.measuring.aftermath import Aftermath
from search.measuring.bench import Bench
from search.measuring.candidate_child import Answer, CandidateChild
from search.measuring.loading import Libraries, python_call
from search.measuring.progress import IDLE
from search.measuring.protocol import Phase, Protocol, Timing
from search.measuring.serving import serve
from search.measuring.timers import KernelFault, NativeCall, NativeTimer, host_seconds, sample_phases
from search.outcome import Rejected
from search.program.resolve import resolve_case


class KernelChild(CandidateChild[NativeCall]):
    """State of the process: one case, its open libraries, and the item that is being paired."""

    fault = KernelFault

    def __init__(self, channel: Channel, timer: Path, forks: Forks) -> None:
        super().__init__(channel)
        self._timer, self._forks = NativeTimer(timer), forks
        self._left = Aftermath(self._timer, forks)
        self._libraries = Libraries()

    def case(self, document: Mapping[str, Any], work_dir: str) -> Answer:
        """Put a case on the bench, in place of the one that was there."""
        self._channel.progress(IDLE)
        self._paired = None
        self._libraries.close()
        self.bench = None  # the old buffers go before the new ones come
        self.bench = Bench(resolve_case(document, admitted=True), Path(work_dir))
        return {"event": "ready", "forks": self._forks.protection}

    def _load(self, artifact: Mapping[str, Any]) -> NativeCall:
        bench = self._on_bench()
        addresses = {name: buffer.address for name, buffer in bench.buffers.items()}
        return self._libraries.bind(Artifact.from_document(artifact), addresses, bench.case.dims)

    def _run_once(self, loaded: NativeCall) -> Mapping[str, Any]:
        self._timer.batch_seconds(loaded, 1)
        return self._on_bench().output_arrays

    def _put_normal(self) -> None:
        self._on_bench().load_normal()

    def _warm(self, loaded: NativeCall, seconds: float) -> float:
        return self._timer.warm_seconds_per_call(loaded, seconds)

    def _turn(self, loaded: NativeCall, calls: int) -> float:
        self._on_bench().reload_shared()
        self._timer.batch_seconds(loaded, 1)
        return self._timer.batch_seconds(loaded, calls) / calls

    def _sample(
        self, loaded: NativeCall, artifact: Mapping[str, Any], protocol: Protocol, phases: Sequence[Phase]
    ) -> Timing:
        from_python = python_call(loaded, [argument["kind"] for argument in artifact["arguments"]])
        return sample_phases(
            protocol,
            phases,
            warm=lambda seconds: self._timer.warm_seconds_per_call(loaded, seconds),
            device=lambda calls: self._timer.batch_seconds(loaded, calls),
            host=lambda calls: host_seconds(from_python, calls),
        )

    def _damage(self) -> Rejected | None:
        return self._on_bench().harm()

    def _aftermath(self) -> Rejected | None:
        return self._left.harm()

    def _charged(self, fault: Exception) -> Rejected:
        assert isinstance(fault, KernelFault)
        return Rejected(stage="runtime", reason="error_code", detail={"code": fault.code})

    def _tainted(self, rejection: Rejected | None) -> bool:
        return rejection is not None and rejection.stage == "runtime"


def main() -> None:
    """Enter, forbid forks, then serve."""
    channel = enter(sys.argv[1])
    child = KernelChild(channel, Path(sys.argv[2]), Forks.forbid())
    commands = (child.case, child.measure, child.finals, child.pair_load, child.pair_sample)
    serve(channel, {command.__name__: command for command in commands})


if __name__ == "__main__":
    main()
