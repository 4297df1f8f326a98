"""The measuring child: ``python -m search.measuring.kernel_child ENTRY TIMER``. Holds ctypes and numpy, no torch.

Commands (JSON lines): ``case`` puts a case on the bench; ``measure`` checks and times one item; ``finals`` times many
in rotating rounds; ``pair_load`` and ``pair_sample`` time one item turn by turn beside another child. While something
is timed nothing else of ours runs here: no garbage collection, no output.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from search.children.entry import Channel, enter
from search.lowering.contract import Artifact
from search.measuring.aftermath import Aftermath
from search.measuring.bench import Bench
from search.measuring.loading import Libraries, LoadProblem, python_call
from search.measuring.progress import CHECKING, FINALS, IDLE, LOADING, TIMING
from search.measuring.protocol import OTHER_PHASES, Phase, Protocol, timing_document
from search.measuring.serving import serve
from search.measuring.timers import (
    KernelFault,
    NativeCall,
    NativeTimer,
    calls_per_batch,
    host_seconds,
    quiet_interpreter,
    sample_phases,
)
from search.outcome import Rejected
from search.program.resolve import resolve_case


class KernelChild:
    """State of the process: one case, its open libraries, and the item that is being paired."""

    def __init__(self, channel: Channel, timer: Path) -> None:
        self._channel = channel
        self._timer = NativeTimer(timer)
        self._aftermath = Aftermath(self._timer)
        self._libraries = Libraries()
        self._bench: Bench | None = None
        self._paired: tuple[NativeCall, int] | None = None

    def case(self, document: Mapping[str, Any], work_dir: str) -> dict[str, Any]:
        """Put a case on the bench, in place of the one that was there."""
        self._channel.progress(IDLE)
        self._paired = None
        self._libraries.close()
        self._bench = None  # the old buffers go before the new ones come
        self._bench = Bench(resolve_case(document, admitted=True), Path(work_dir))
        return {"event": "ready"}

    def measure(
        self, artifact: Mapping[str, Any], protocol: Mapping[str, Any], phases: Sequence[Phase], check: bool
    ) -> dict[str, Any]:
        """Check one item on every input set, then time it; a rejection says where it ended."""
        bench = self._on_bench()
        answer: dict[str, Any] = {"event": "result", "checks": None, "timing": None, "rejection": None}
        rejection: Rejected | None = None
        tainted = False
        try:
            self._channel.progress(LOADING)
            call = self._load(artifact)
            rejection = self._aftermath.harm()
            if rejection is None and check:
                self._channel.progress(CHECKING)
                verdict = bench.check(lambda: self._run_once(call))
                answer["checks"] = verdict.checks.document()
                rejection, tainted = verdict.rejection, verdict.tainted
            if rejection is None and phases:
                self._channel.progress(TIMING)
                bench.load_normal()
                timing = self._sample(artifact, call, Protocol(**protocol), phases)
                rejection = bench.harm()
                if rejection is None:
                    answer["timing"] = timing_document(timing)
        except LoadProblem as problem:
            rejection = problem.rejection
        except KernelFault as fault:
            rejection = _error_code(fault)
        harm = self._aftermath.harm()
        rejection = rejection or harm
        if rejection is not None:
            answer["timing"], answer["rejection"] = None, rejection.document()
        # A kernel that wrote where it must not, or left something running, has this process to itself.
        answer["tainted"] = tainted or harm is not None or (rejection is not None and rejection.stage == "runtime")
        return answer

    def finals(
        self,
        artifacts: Sequence[Mapping[str, Any]],
        protocol: Mapping[str, Any],
        all_phases: Sequence[int],
        turns: Sequence[int],
    ) -> dict[str, Any]:
        """Warm every item up, time each once per round, starting one further each round; then the extra phases.

        ``turns``: first round and the one after the last, when other processes take the others.
        """
        bench, sampling = self._on_bench(), Protocol(**protocol)
        bench.load_normal()
        index, calls, counts = 0, [], []
        try:
            for index, artifact in enumerate(artifacts):
                self._channel.progress(FINALS + index)
                calls.append(self._load(artifact))
                per_call = self._timer.warm_seconds_per_call(calls[-1], sampling.warmup_seconds)
                counts.append(calls_per_batch(sampling, per_call))
                if (harm := bench.harm() or self._aftermath.harm()) is not None:
                    return {"event": "fault", "index": index, "rejection": harm.document(), "tainted": True}
                self._channel.answer({"event": "warmed"})
            for turn in range(*turns):
                seconds = [0.0] * len(calls)
                with quiet_interpreter():
                    for step in range(len(calls)):
                        index = (turn + step) % len(calls)
                        self._channel.progress(FINALS + index)
                        seconds[index] = self._turn(calls[index], counts[index])
                self._channel.answer({"event": "round", "seconds": seconds})
            for index in all_phases:
                self._channel.progress(FINALS + index)
                timing = self._sample(artifacts[index], calls[index], sampling, OTHER_PHASES)
                self._channel.answer({"event": "phases", "index": index, "timing": timing_document(timing)})
        except LoadProblem as problem:
            return {"event": "fault", "index": index, "rejection": problem.rejection.document(), "tainted": True}
        except KernelFault as fault:
            return {"event": "fault", "index": index, "rejection": _error_code(fault).document(), "tainted": True}
        return {"event": "done", "calls_per_sample": counts}

    def pair_load(self, artifact: Mapping[str, Any], protocol: Mapping[str, Any]) -> dict[str, Any]:
        """Warm one item up, to be sampled on request."""
        sampling = Protocol(**protocol)
        self._on_bench().load_normal()
        try:
            self._channel.progress(TIMING)
            call = self._load(artifact)
            count = calls_per_batch(sampling, self._timer.warm_seconds_per_call(call, sampling.warmup_seconds))
        except LoadProblem as problem:
            return {"event": "fault", "rejection": problem.rejection.document()}
        except KernelFault as fault:
            return {"event": "fault", "rejection": _error_code(fault).document()}
        self._paired = (call, count)
        return {"event": "ready", "calls_per_sample": count}

    def pair_sample(self) -> dict[str, Any]:
        """One sample of the item that ``pair_load`` brought; seconds per call."""
        assert self._paired is not None, "pair_load comes first"
        with quiet_interpreter():
            try:
                seconds = self._turn(*self._paired)
            except KernelFault as fault:
                return {"event": "fault", "rejection": _error_code(fault).document()}
        return {"event": "sample", "seconds": seconds}

    def _on_bench(self) -> Bench:
        assert self._bench is not None, "a case comes first"
        return self._bench

    def _load(self, artifact: Mapping[str, Any]) -> NativeCall:
        bench = self._on_bench()
        addresses = {name: buffer.address for name, buffer in bench.buffers.items()}
        return self._libraries.bind(Artifact.from_document(artifact), addresses, bench.case.dims)

    def _run_once(self, call: NativeCall) -> Mapping[str, Any]:
        self._timer.batch_seconds(call, 1)
        return self._on_bench().output_arrays

    def _turn(self, call: NativeCall, calls: int) -> float:
        """Seconds per call of one sample; one untimed call first brings back what others pushed out of the caches."""
        self._on_bench().reload_shared()
        self._timer.batch_seconds(call, 1)
        return self._timer.batch_seconds(call, calls) / calls

    def _sample(
        self, artifact: Mapping[str, Any], call: NativeCall, protocol: Protocol, phases: Sequence[Phase]
    ) -> Mapping[Phase, Any]:
        from_python = python_call(call, [argument["kind"] for argument in artifact["arguments"]])
        return sample_phases(
            protocol,
            phases,
            warm=lambda seconds: self._timer.warm_seconds_per_call(call, seconds),
            device=lambda calls: self._timer.batch_seconds(call, calls),
            host=lambda calls: host_seconds(from_python, calls),
        )


def _error_code(fault: KernelFault) -> Rejected:
    return Rejected(stage="runtime", reason="error_code", detail={"code": fault.code})


def main() -> None:
    """Enter, then serve."""
    channel = enter(sys.argv[1])
    child = KernelChild(channel, Path(sys.argv[2]))
    serve(
        channel,
        {
            "case": child.case,
            "measure": child.measure,
            "finals": child.finals,
            "pair_load": child.pair_load,
            "pair_sample": child.pair_sample,
        },
    )


if __name__ == "__main__":
    main()
