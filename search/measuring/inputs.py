"""The three input sets of the correctness check, drawn from the case alone. Child side; numpy.

``normal``: row tensors are standard normal, tensors without the row axis and row scalars lie around 1.
``large_offset``: the same with mean 1000. ``edge_rows``: row r of a row tensor follows pattern r of ``EDGE_PATTERNS``,
cycling; with several row tensors the pattern moves on from one to the next while the others stay normal. With fewer
rows than patterns the set has several passes, so that every pattern is met whatever the number of rows.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from search.program.case import Case
from search.program.ir import Tensor

SetName = Literal["normal", "large_offset", "edge_rows"]
Array = npt.NDArray[Any]

NUMPY_DTYPES: dict[str, np.dtype[Any]] = {
    "float32": np.dtype(np.float32),
    "float16": np.dtype(np.float16),
    "int32": np.dtype(np.int32),
}
LARGE_OFFSET = 1000.0


@dataclass(frozen=True, kw_only=True)
class InputPass:
    """One run's inputs. ``patterns`` names the edge patterns met by some row (empty for the other sets)."""

    name: SetName
    number: int
    inputs: Mapping[str, Array]
    patterns: tuple[str, ...] = ()


def _some_minus_infinity(rows: Array, where: Array) -> None:
    rows[:, :: max(2, rows.shape[1] // 7)] = -np.inf
    rows[np.arange(len(rows)), where] = 0.5  # at least one element stays finite


def _one_hot(rows: Array, where: Array) -> None:
    rows[:] = 0
    rows[np.arange(len(rows)), where] = 1


def _constant(rows: Array, where: Array) -> None:
    rows[:] = 2  # a power of two: its sums are exact in any order, so no rounding is blamed on a candidate


def _denormal(rows: Array, where: Array) -> None:
    rows *= 1e-40 if rows.dtype.itemsize == 4 else 1e-6


def _one_nan(rows: Array, where: Array) -> None:
    rows[np.arange(len(rows)), where] = np.nan


def _all_minus_infinity(rows: Array, where: Array) -> None:
    rows[:] = -np.inf


def _zeros(rows: Array, where: Array) -> None:
    rows[:] = 0


def _wide(rows: Array, where: Array) -> None:
    rows *= 30


def _one_plus_infinity(rows: Array, where: Array) -> None:
    rows[np.arange(len(rows)), where] = np.inf


EDGE_PATTERNS: dict[str, Callable[[Array, Array], None]] = {
    "some_minus_infinity": _some_minus_infinity,
    "one_hot": _one_hot,
    "constant": _constant,
    "denormal": _denormal,
    "one_nan": _one_nan,
    "all_minus_infinity": _all_minus_infinity,
    "zeros": _zeros,
    "wide": _wide,
    "one_plus_infinity": _one_plus_infinity,
}
"""Each changes normal rows (k × elements) in place; ``where`` is one moving position per row."""


def input_passes(case: Case) -> Iterator[InputPass]:
    """Every pass of every set, in a fixed order; deterministic in the case's JSON form."""
    yield InputPass(name="normal", number=0, inputs=_draw(case, "normal", 0))
    yield InputPass(name="large_offset", number=0, inputs=_draw(case, "large_offset", 0, offset=LARGE_OFFSET))
    edged = [t for t in _inputs(case) if _is_row_tensor(case, t) and NUMPY_DTYPES[case.dtypes[t.name]].kind == "f"]
    combinations = len(EDGE_PATTERNS) * max(1, len(edged))
    for number in range(max(1, -(-combinations // case.rows))):
        inputs = _draw(case, "edge_rows", number)
        patterns = _apply_edges(case, inputs, edged, first_row=number * case.rows)
        yield InputPass(name="edge_rows", number=number, inputs=inputs, patterns=patterns)


def input_sha256(inputs: Mapping[str, Array]) -> str:
    """sha256 (hex) over name, dtype, shape and bytes of every input, in the order given."""
    digest = hashlib.sha256()
    for name, array in inputs.items():
        digest.update(json.dumps([name, str(array.dtype), list(array.shape)]).encode())
        digest.update(np.ascontiguousarray(array).data)
    return digest.hexdigest()


def _inputs(case: Case) -> list[Tensor]:
    return [tensor for tensor in case.program.tensors if tensor.role == "input"]


def _is_row_tensor(case: Case, tensor: Tensor) -> bool:
    return case.program.row_axis.name in tensor.axes and len(tensor.axes) > 1


def _draw(case: Case, name: str, number: int, *, offset: float = 0.0) -> dict[str, Array]:
    identity = json.dumps(case.document(), sort_keys=True)
    drawn = {}
    for tensor in _inputs(case):
        seed = hashlib.sha256(f"{identity}\n{name}\n{number}\n{tensor.name}".encode()).digest()
        generator = np.random.Generator(np.random.PCG64(int.from_bytes(seed, "little")))
        dtype, shape = NUMPY_DTYPES[case.dtypes[tensor.name]], case.shape(tensor)
        if dtype.kind == "i":
            drawn[tensor.name] = generator.integers(-8, 9, size=shape, dtype=dtype)
            continue
        values = generator.standard_normal(shape, dtype=np.float32)
        if _is_row_tensor(case, tensor):
            values += np.float32(offset)
        else:
            values = 1 + np.float32(0.25) * values
        drawn[tensor.name] = values.astype(dtype, copy=False)
    return drawn


def _apply_edges(case: Case, inputs: dict[str, Array], edged: list[Tensor], *, first_row: int) -> tuple[str, ...]:
    """Overwrite rows in place; row ``first_row + r`` of the endless sequence of edge rows lands in row r."""
    if not edged:
        return ()
    met = []
    sequence = first_row + np.arange(case.rows)
    patterns, turns = sequence % len(EDGE_PATTERNS), sequence // len(EDGE_PATTERNS) % len(edged)
    for turn, tensor in enumerate(edged):
        rows_first = np.moveaxis(inputs[tensor.name], tensor.axes.index(case.program.row_axis.name), 0)
        for number, (name, change) in enumerate(EDGE_PATTERNS.items()):
            chosen = np.flatnonzero((patterns == number) & (turns == turn))
            if not chosen.size:
                continue
            rows = rows_first[chosen].reshape(chosen.size, -1)
            # 0, then the last element, then all over the row: vector bodies and scalar tails are both met
            spread = (sequence[chosen] // len(EDGE_PATTERNS)) * 7919
            change(rows, np.where(sequence[chosen] % 2 == 0, spread, spread - 1) % rows.shape[1])
            rows_first[chosen] = rows.reshape(chosen.size, *rows_first.shape[1:])
            met.append(f"{tensor.name}:{name}")
    return tuple(met)
