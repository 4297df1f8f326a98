"""The torch child: ``python -m search.measuring.torch_child ENTRY``. Evaluates and times baselines, one thread.

The torch calls of a kernel are data of our library or of an installed package (``TorchCall``); they are resolved here
and nowhere else, and never from a request: a program that came as a document is evaluated with torch operations.
Commands: ``case``, ``baseline`` (prepare, check, warm up), ``pair_sample``, ``phases``.
"""

from __future__ import annotations

import platform
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from search.children.entry import Channel, enter
from search.children.importing import uncollected
from search.measuring.bench import Bench, Verdict
from search.measuring.inductor_core import inductor_core
from search.measuring.protocol import OTHER_PHASES, Protocol, timing_document
from search.measuring.serving import serve
from search.measuring.timers import (
    calls_per_batch,
    host_seconds,
    quiet_interpreter,
    sample_phases,
    warm_host_seconds_per_call,
)
from search.measuring.torch_sequence import torch_sequence
from search.program.case import Case
from search.program.ir import Loop
from search.program.library import kernel_named
from search.program.library.torch_call import ALLOCATED, PREALLOCATED, TorchCall, allocation
from search.program.resolve import resolve_case

_OWNERS = {PREALLOCATED: "preallocated (out=)", ALLOCATED: "allocates its result inside the timed call"}
_IMPLEMENTED = {
    "torch_eager": "",
    "torch_compile": "torch.compile of ",
    "inductor_core": "the compiled function below torch.compile of ",
}
UNROLLED_STATEMENTS = 200
"""Statements in loops, trips times bodies, that are given to torch.compile, which unrolls them all: that many take it
minutes, in which nothing else can be measured."""


@dataclass(frozen=True, kw_only=True)
class Baseline:
    """A torch computation over the bench's buffers."""

    tensors: Sequence[Any]
    over: Callable[[Sequence[Any]], Callable[[], Mapping[str, Any]]]
    """Tensors in the place of ``tensors`` → a call that gives the outputs by name, as torch tensors."""
    call: Callable[[], Mapping[str, Any]]
    """The call over ``tensors``."""
    implementation: str
    allocation: str
    plus_infinity: bool
    """Whether rows that hold +inf are compared."""
    prepare: Callable[[], None]
    """To be done after inputs were loaded, before anything is timed."""

    def checked(self) -> Mapping[str, Any]:
        """One call on inputs that were just loaded."""
        self.prepare()
        return self.call()


class TorchChild:
    """State of the process: one case and its prepared baseline."""

    def __init__(self) -> None:
        with uncollected():
            import torch

        torch.set_num_threads(1)
        torch.set_num_interop_threads(1)
        torch.set_grad_enabled(False)
        self._torch = torch
        self._bench: Bench | None = None
        self._baseline: Baseline | None = None
        self._calls = 1

    def case(self, document: Mapping[str, Any], work_dir: str) -> dict[str, Any]:
        """Put a case on the bench, in place of the one that was there."""
        self._bench = self._baseline = None
        self._bench = Bench(resolve_case(document, admitted=True), Path(work_dir))
        return {"event": "ready"}

    def baseline(self, name: str, protocol: Mapping[str, Any]) -> dict[str, Any]:
        """Prepare a baseline, check it on every input set, warm it up. What it fails at is ``error``."""
        bench, sampling = self._on_bench(), Protocol(**protocol)
        torch = self._torch
        answer: dict[str, Any] = {
            "event": "baseline",
            "versions": {"torch": torch.__version__, "python": platform.python_version()},
            "error": None,
        }
        try:
            named = None if bench.case.from_document else kernel_named(bench.case.kernel)
            calls = () if named is None else named.baseline
            prepared, verdict = self._checked(bench, name, calls)
            if verdict.rejection is not None and _rounds_between(bench.case, calls):
                inexact = f" (the library's {len(calls)} calls round to 16 bits between them: beyond tolerance)"
                prepared, verdict = self._checked(bench, name, (), inexact)
            answer |= {"implementation": prepared.implementation, "allocation": prepared.allocation}
            answer["checks"] = verdict.checks.document()
            if verdict.rejection is not None:
                answer["error"] = f"the baseline disagrees with the oracle: {verdict.rejection.document()}"
                return answer
            bench.load_normal()
            per_call = self._warm(prepared, sampling.warmup_seconds)
        except Exception as error:
            answer["error"] = f"{type(error).__name__}: {error}"[:4000]
            return answer
        self._baseline, self._calls = prepared, calls_per_batch(sampling, per_call)
        return answer | {"calls_per_sample": self._calls}

    def pair_sample(self) -> dict[str, Any]:
        """One sample of the prepared baseline; seconds per call, after one untimed call."""
        call = self._prepared().call
        with quiet_interpreter():
            call()
            seconds = host_seconds(call, self._calls) / self._calls
        return {"event": "sample", "seconds": seconds}

    def phases(self, protocol: Mapping[str, Any]) -> dict[str, Any]:
        """The phases that are not paired. Torch has no native entry: every phase is host time, dispatch included."""
        call = self._prepared().call
        timing = sample_phases(
            Protocol(**protocol),
            OTHER_PHASES,
            warm=lambda seconds: warm_host_seconds_per_call(call, seconds),
            device=lambda calls: host_seconds(call, calls),
            host=lambda calls: host_seconds(call, calls),
        )
        return {"event": "phases", "timing": timing_document(timing)}

    def _on_bench(self) -> Bench:
        assert self._bench is not None, "a case comes first"
        return self._bench

    def _prepared(self) -> Baseline:
        assert self._baseline is not None, "a baseline comes first"
        return self._baseline

    def _tensors(self, bench: Bench) -> dict[str, Any]:
        """The tensors that a baseline computes on: here the bench's own memory."""
        return {name: as_torch(buffer.array, bench.case.dtypes[name]) for name, buffer in bench.buffers.items()}

    def _results(self, bench: Bench, prepared: Baseline) -> dict[str, Any]:
        """The outputs of one call on what the bench has just loaded, as arrays."""
        return as_arrays(bench, prepared.checked())

    def _warm(self, prepared: Baseline, seconds: float) -> float:
        """Warm up on what the bench has just loaded; seconds per call."""
        prepared.prepare()
        return warm_host_seconds_per_call(prepared.call, seconds)

    def _checked(
        self, bench: Bench, name: str, calls: Sequence[TorchCall], remark: str = ""
    ) -> tuple[Baseline, Verdict]:
        """A baseline, and how it compares with the oracle on every input set."""
        prepared = self._prepare(bench, name, tuple(calls))
        prepared = replace(prepared, implementation=prepared.implementation + remark)
        return prepared, bench.check(lambda: self._results(bench, prepared), plus_infinity=prepared.plus_infinity)

    def _prepare(self, bench: Bench, name: str, calls: tuple[TorchCall, ...]) -> Baseline:
        """The calls as a baseline; without any, the program statement by statement."""
        torch, case = self._torch, bench.case
        tensors = self._tensors(bench)
        outputs = [tensor.name for tensor in case.program.tensors if tensor.role == "output"]
        eager = name == "torch_eager"
        given: Sequence[Any]
        prepare: Callable[[], None] = lambda: None  # noqa: E731
        if calls:
            sequence = torch_sequence(torch, calls, tensors, {**case.params, **case.dims}, outputs, preallocated=eager)
            run, given, prepare = sequence.module.forward, sequence.tensors, sequence.prepare
            written = [call if eager else replace(call, out=None) for call in calls]
            implementation = "; ".join(
                f"{'before timing: ' * call.untimed}{call.text(named=len(calls) > 1)}" for call in written
            )
            owner = allocation(calls, tuple(outputs)) if eager else ALLOCATED
        else:
            if not eager:
                _check_unrolled(case)
            run, given = _program(case, outputs), [tensors[name] for name in tensors if name not in outputs]
            implementation = f"program {case.program.name} statement by statement with torch operations"
            owner = ALLOCATED
        if not eager:
            torch.compiler.reset()  # what was compiled for other cases counts towards a limit, beyond which it is not
        if name == "torch_compile":
            run = torch.compile(run)
        bound = inductor_core(torch, run, given) if name == "inductor_core" else lambda these: lambda: run(*these)

        def over(these: Sequence[Any]) -> Callable[[], Mapping[str, Any]]:
            call = bound(these)
            return lambda: dict(zip(outputs, call(), strict=True))

        return Baseline(
            tensors=given,
            over=over,
            call=over(given),
            implementation=_IMPLEMENTED[name] + implementation,
            allocation=_OWNERS.get(owner, f"{owner}; the rest is allocated inside the timed call"),
            plus_infinity=not any(call.wrong_at_plus_infinity for call in calls),
            prepare=prepare,
        )


def _rounds_between(case: Case, calls: Sequence[TorchCall]) -> bool:
    """Whether torch stores what one call hands to the next with 16 bits, where the program's meaning is float32."""
    return case.has_16_bits and sum(not call.untimed for call in calls) > 1


def _check_unrolled(case: Case) -> None:
    """NotExpressible for loops that torch.compile would take too long for."""
    from search.measuring.torch_program import NotExpressible

    def statements(loop: Loop) -> int:
        each = sum(statements(inner) if isinstance(inner, Loop) else 1 for inner in loop.body)
        return each * int({**case.params, **case.dims}[loop.count])

    unrolled = sum(statements(one) for one in case.program.body if isinstance(one, Loop))
    if unrolled > UNROLLED_STATEMENTS:
        message = (
            f"torch.compile unrolls loops; theirs are {unrolled} statements here, it is given {UNROLLED_STATEMENTS}"
        )
        raise NotExpressible(f"{message} at the most")


def _program(case: Case, outputs: Sequence[str]) -> Callable[..., Sequence[Any]]:
    """The case's program as a function of its input tensors, in declared order."""
    from search.measuring.torch_program import TorchProgram

    program = TorchProgram(case)
    names = [tensor.name for tensor in case.program.tensors if tensor.role == "input"]

    def run(*tensors: Any) -> Sequence[Any]:
        found = program(**dict(zip(names, tensors, strict=True)))
        return tuple(found[output] for output in outputs)

    return run


def as_arrays(bench: Bench, outputs: Mapping[str, Any]) -> dict[str, Any]:
    """Torch results as numpy arrays; a result in the bench's own buffer is that buffer, whose poison is looked for."""
    arrays = {}
    for name, tensor in outputs.items():
        buffer = bench.buffers[name]
        arrays[name] = buffer.array if tensor.data_ptr() == buffer.address else _as_numpy(tensor, buffer.array.dtype)
    return arrays


def as_torch(array: Any, dtype: str) -> Any:
    """An array as a CPU tensor over the same memory; numpy has no bfloat16 that torch would know."""
    import torch

    if dtype == "bfloat16":
        return torch.from_numpy(array.view("int16")).view(torch.bfloat16)
    return torch.from_numpy(array)


def _as_numpy(tensor: Any, dtype: Any) -> Any:
    """A result as a numpy array, of ``dtype`` where the result has it."""
    import torch

    dense = tensor.contiguous()
    return dense.view(torch.int16).numpy().view(dtype) if dense.dtype == torch.bfloat16 else dense.numpy()


def main() -> None:
    """Enter before torch is imported, then serve."""
    channel: Channel = enter(sys.argv[1])
    child = TorchChild()
    serve(
        channel,
        {
            "case": child.case,
            "baseline": child.baseline,
            "pair_sample": child.pair_sample,
            "phases": child.phases,
        },
    )


if __name__ == "__main__":
    main()
