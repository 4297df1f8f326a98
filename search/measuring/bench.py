"""One case on the bench: guarded buffers, the oracle, and the check of what fills the outputs. Child side; numpy."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from search.measuring.buffers import GuardedBuffer
from search.measuring.checks import TOLERANCE, Tally, compare_output, worst_reason
from search.measuring.inputs import NUMPY_DTYPES
from search.measuring.oracle import OraclePass, load_oracle, rows_first
from search.measuring.protocol import Checks, InputCheck
from search.outcome import Rejected
from search.program.case import Case

Array = npt.NDArray[Any]
Run = Callable[[], Mapping[str, Array]]
"""Computes the outputs from the input buffers once and gives them by name, in the case's shapes."""


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """What a check found. ``tainted``: the process may be damaged and must not run anything else."""

    checks: Checks
    rejection: Rejected | None
    tainted: bool


class Bench:
    """Buffers of one case, kept for every candidate, and the oracle they are compared with."""

    def __init__(self, case: Case, work_dir: Path, *, buffer_type: type[GuardedBuffer] = GuardedBuffer) -> None:
        self.case = case
        self._passes = load_oracle(case, work_dir)
        self._outputs = [tensor.name for tensor in case.program.tensors if tensor.role == "output"]
        self.buffers = {
            tensor.name: buffer_type(case.shape(tensor), NUMPY_DTYPES[case.dtypes[tensor.name]])
            for tensor in case.program.tensors
            if tensor.aliases is None
        }
        self._shared = {tensor.name: tensor.aliases for tensor in case.program.tensors if tensor.aliases is not None}
        # An output that shares an input's buffer is that buffer: loaded with the input, overwritten by the kernel.
        self.buffers |= {output: self.buffers[given] for output, given in self._shared.items()}

    @property
    def output_arrays(self) -> dict[str, Array]:
        """The buffers of the outputs, by name."""
        return {name: self.buffers[name].array for name in self._outputs}

    @property
    def shares_buffers(self) -> bool:
        """Whether kernels overwrite inputs of this case."""
        return bool(self._shared)

    @property
    def _memory(self) -> list[GuardedBuffer]:
        """Every buffer once."""
        return [buffer for name, buffer in self.buffers.items() if name not in self._shared]

    def reload_shared(self) -> None:
        """Put the ``normal`` values back where kernels overwrite their inputs; nothing else changes."""
        for given in self._shared.values():
            self.buffers[given].load(self._passes[0].given.inputs[given])

    def load_normal(self) -> None:
        """Put the ``normal`` inputs in place: they are what is timed."""
        self._load(self._passes[0])

    def check(self, run: Run, *, plus_infinity: bool = True) -> Verdict:
        """Run on every input set and compare everything with the oracle; stops early only when guards are damaged.

        Without ``plus_infinity``, rows for which an input holds +inf are run but not compared, nor counted.
        """
        tallies: dict[str, Tally] = {}
        passes: dict[str, list[OraclePass]] = {}
        guard_elements: dict[str, int] = {}
        harm: Rejected | None = None
        for one in self._passes:
            name = one.given.name
            tally = tallies.setdefault(name, Tally())
            passes.setdefault(name, []).append(one)
            self._load(one)
            outputs = run()
            guard_elements[name] = guard_elements.get(name, 0) + sum(b.guard_elements for b in self._memory)
            found = self._harm(one)
            harm = harm or found
            if found is not None and found.reason == "guard_overwritten":
                break
            left_out = None if plus_infinity else self._rows_with_plus_infinity(one)
            for output in self._outputs:
                self._compare(output, outputs[output], one, tally, left_out)
        inputs = tuple(_input_check(name, tallies[name], passes[name], guard_elements[name]) for name in tallies)
        rejection = harm or _charge(tallies)
        checks = Checks(
            passed=rejection is None and all(check.elements_checked > 0 for check in inputs),
            inputs=inputs,
            guards_intact=harm is None or harm.reason != "guard_overwritten",
            inputs_unchanged=harm is None or harm.reason != "input_modified",
        )
        if rejection is None and not checks.passed:
            rejection = Rejected(stage="correctness", reason="nothing_checked")
        return Verdict(checks=checks, rejection=rejection, tainted=harm is not None)

    def harm(self) -> Rejected | None:
        """Damage to guards or to the ``normal`` inputs since they were loaded (but to those that an output shares)."""
        return self._harm(self._passes[0])

    def _load(self, one: OraclePass) -> None:
        for name, values in one.given.inputs.items():
            self.buffers[name].load(values)
        for name in self._outputs:
            if name not in self._shared:
                self.buffers[name].poison()
        for buffer in self._memory:
            buffer.arm()

    def _harm(self, one: OraclePass) -> Rejected | None:
        damaged = {name: count for name, buffer in self.buffers.items() if (count := buffer.damaged_guards())}
        if damaged:
            return _harmful("guard_overwritten", one, guard_elements=damaged)
        overwritten = set(self._shared.values())
        changed = [
            name
            for name, values in one.given.inputs.items()
            if name not in overwritten and not self.buffers[name].holds(values)
        ]
        if changed:
            return _harmful("input_modified", one, tensors=changed)
        return None

    def _rows_with_plus_infinity(self, one: OraclePass) -> Array:
        found = np.zeros(self.case.rows, dtype=bool)
        for name, values in one.given.inputs.items():
            if np.isinf(values).any():
                found |= (rows_first(self.case, name, np.asarray(values)) == np.inf).any(axis=1)
        return found

    def _compare(self, output: str, array: Array, one: OraclePass, tally: Tally, left_out: Array | None) -> None:
        unwritten = np.empty(0, dtype=np.intp)
        mask = self.buffers[output].unwritten() if array is self.buffers[output].array else None
        if mask is not None:
            unwritten = np.flatnonzero(rows_first(self.case, output, mask))
        got, expected = rows_first(self.case, output, array), one.expected[output]
        if left_out is not None and left_out.any():
            got = np.where(left_out[:, np.newaxis], expected.values, got)
            tally.elements -= int(np.count_nonzero(left_out)) * got.shape[1]
        compare_output(output, got, expected, unwritten, tally)


def _input_check(name: str, tally: Tally, passes: list[OraclePass], guard_elements: int) -> InputCheck:
    digests = [one.input_sha256 for one in passes]
    return InputCheck(
        name=passes[0].given.name,
        elements_checked=tally.elements,
        guard_elements_checked=guard_elements,
        input_sha256=digests[0] if len(digests) == 1 else hashlib.sha256("\n".join(digests).encode()).hexdigest(),
        tolerance=TOLERANCE,
        max_abs_error=tally.finite("max_abs_error"),
        max_rel_error=tally.finite("max_rel_error"),
        max_ulp_error=tally.finite("max_ulp_error"),
        max_tolerance=tally.finite("max_tolerance"),
        failures=sum(tally.failures.values()),
        first_failure=tally.first_failure,
        patterns=tuple(dict.fromkeys(pattern for one in passes for pattern in one.given.patterns)),
    )


def _harmful(reason: str, one: OraclePass, **detail: object) -> Rejected:
    return Rejected(stage="correctness", reason=reason, detail={"input_set": one.given.name, **detail})


def _charge(tallies: Mapping[str, Tally]) -> Rejected | None:
    """The worst reason over all input sets; None if nothing failed."""
    total: dict[str, int] = {}
    for tally in tallies.values():
        for reason, count in tally.failures.items():
            total[reason] = total.get(reason, 0) + count
    worst = worst_reason(total)
    if worst is None:
        return None
    name, tally = next((name, tally) for name, tally in tallies.items() if tally.failures.get(worst))
    detail = {"input_set": name, "failures": total, "first_failure": tally.first_failure}
    return Rejected(stage="correctness", reason=worst, detail=detail)
