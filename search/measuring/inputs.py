"""The three input sets of the correctness check, drawn from the case alone. Child side; numpy.

``normal``: row tensors are standard normal, tensors without the row axis and row scalars lie around 1.
``large_offset``: the same with mean 1000. ``edge_rows``: row r of a row tensor follows pattern r of ``EDGE_PATTERNS``,
cycling; with several row tensors the pattern moves on from one to the next while the others stay normal. With fewer
rows than patterns the set has several passes, so that every pattern is met whatever the number of rows. Values are
drawn in float32 and rounded to the tensor's dtype; int32 inputs are those of ``integers.py``.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import ml_dtypes
import numpy as np
import numpy.typing as npt

from search.measuring.integers import coordinate_extents, draw_integers, edge_count, edge_integers
from search.program.case import Case
from search.program.ir import Tensor

SetName = Literal["normal", "large_offset", "edge_rows"]
Array = npt.NDArray[Any]

NUMPY_DTYPES: dict[str, np.dtype[Any]] = {
    "float32": np.dtype(np.float32),
    "float16": np.dtype(np.float16),
    "bfloat16": np.dtype(ml_dtypes.bfloat16),
    "int32": np.dtype(np.int32),
}
LARGE_OFFSET = 1000.0
_DENORMAL = {"float32": 1e-40, "float16": 1e-6, "bfloat16": 1e-39}
"""Makes normal numbers denormal ones of the dtype, several bits long."""


@dataclass(frozen=True, kw_only=True)
class InputPass:
    """One run's inputs. ``patterns`` names the edge patterns met by some row (empty for the other sets)."""

    name: SetName
    number: int
    inputs: Mapping[str, Array]
    patterns: tuple[str, ...] = ()


def _some_minus_infinity(rows: Array, where: Array, dtype: str) -> None:
    rows[:, :: max(2, rows.shape[1] // 7)] = -np.inf
    rows[np.arange(len(rows)), where] = 0.5  # at least one element stays finite


def _one_hot(rows: Array, where: Array, dtype: str) -> None:
    rows[:] = 0
    rows[np.arange(len(rows)), where] = 1


def _constant(rows: Array, where: Array, dtype: str) -> None:
    rows[:] = 2  # a power of two: its sums are exact in any order, so no rounding is blamed on a candidate


def _denormal(rows: Array, where: Array, dtype: str) -> None:
    rows *= _DENORMAL[dtype]


def _one_nan(rows: Array, where: Array, dtype: str) -> None:
    rows[np.arange(len(rows)), where] = np.nan


def _all_minus_infinity(rows: Array, where: Array, dtype: str) -> None:
    rows[:] = -np.inf


def _zeros(rows: Array, where: Array, dtype: str) -> None:
    rows[:] = 0


def _wide(rows: Array, where: Array, dtype: str) -> None:
    rows *= 30


def _one_plus_infinity(rows: Array, where: Array, dtype: str) -> None:
    rows[np.arange(len(rows)), where] = np.inf


EDGE_PATTERNS: dict[str, Callable[[Array, Array, str], None]] = {
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
"""Each changes normal float32 rows (k × elements) in place; ``where`` is one moving position per row, ``dtype`` what
they will be rounded to."""


def input_passes(case: Case) -> Iterator[InputPass]:
    """Every pass of every set, in a fixed order; deterministic in the case's JSON form."""
    draw = _Draw(case)
    yield InputPass(name="normal", number=0, inputs=draw.rounded(draw.values("normal", 0)))
    offset = draw.values("large_offset", 0, offset=LARGE_OFFSET)
    yield InputPass(name="large_offset", number=0, inputs=draw.rounded(offset))
    combinations = max(len(EDGE_PATTERNS) * len(draw.edged), draw.integer_edges) or len(EDGE_PATTERNS)
    for number in range(max(1, -(-combinations // case.rows))):
        values = draw.values("edge_rows", number)
        sequence = number * case.rows + np.arange(case.rows)
        patterns = _apply_edges(case, values, draw.edged, sequence) + draw.apply_integer_edges(values, sequence)
        yield InputPass(name="edge_rows", number=number, inputs=draw.rounded(values), patterns=patterns)


def input_sha256(inputs: Mapping[str, Array]) -> str:
    """sha256 (hex) over name, dtype, shape and bytes of every input, in the order given."""
    digest = hashlib.sha256()
    for name, array in inputs.items():
        digest.update(json.dumps([name, str(array.dtype), list(array.shape)]).encode())
        digest.update(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)
    return digest.hexdigest()


def _is_row_tensor(case: Case, tensor: Tensor) -> bool:
    return case.program.row_axis.name in tensor.axes and len(tensor.axes) > 1


class _Draw:
    """Draws the inputs of one case."""

    def __init__(self, case: Case) -> None:
        self.case = case
        self.identity = json.dumps(case.document(), sort_keys=True)
        self.inputs = [tensor for tensor in case.program.tensors if tensor.role == "input"]
        self.integers = [tensor for tensor in self.inputs if case.dtypes[tensor.name] == "int32"]
        self.edged = [t for t in self.inputs if _is_row_tensor(case, t) and t not in self.integers]
        self.coordinates = coordinate_extents(case) if self.integers else {}

    def values(self, name: str, number: int, *, offset: float = 0.0) -> dict[str, Array]:
        """One pass's values in float32 (or int32), before any edge."""
        drawn: dict[str, Array] = {}
        for tensor in self.inputs:
            generator, shape = self._generator(name, number, tensor), self.case.shape(tensor)
            if tensor in self.integers:
                extent = self.coordinates.get(tensor.name)
                drawn[tensor.name] = draw_integers(generator, shape, extent=extent, wide=name == "large_offset")
                continue
            values = generator.standard_normal(shape, dtype=np.float32)
            if _is_row_tensor(self.case, tensor):
                values += np.float32(offset)
            else:
                values = 1 + np.float32(0.25) * values
            drawn[tensor.name] = values
        return drawn

    def rounded(self, values: Mapping[str, Array]) -> dict[str, Array]:
        """The values in the dtypes of their tensors."""
        with np.errstate(over="ignore"):
            return {
                name: array.astype(NUMPY_DTYPES[self.case.dtypes[name]], copy=False) for name, array in values.items()
            }

    @property
    def integer_edges(self) -> int:
        """How many edge rows the int32 inputs with a row axis want."""
        row = self.case.program.row_axis.name
        return max((edge_count(self.coordinates.get(t.name)) for t in self.integers if row in t.axes), default=0)

    def apply_integer_edges(self, values: dict[str, Array], sequence: Array) -> tuple[str, ...]:
        """Overwrite rows in place; each tensor is one edge ahead of the one before it."""
        met: list[str] = []
        row = self.case.program.row_axis.name
        for ahead, tensor in enumerate(t for t in self.integers if row in t.axes):
            rows_first = np.moveaxis(values[tensor.name], tensor.axes.index(row), 0)
            rows = rows_first.reshape(self.case.rows, -1)
            generator = self._generator("integer edges", int(sequence[0]), tensor)
            edges = edge_integers(generator, rows, sequence + ahead, self.coordinates.get(tensor.name))
            rows_first[...] = rows.reshape(rows_first.shape)
            met += [f"{tensor.name}:{edge}" for edge in edges]
        return tuple(met)

    def _generator(self, name: str, number: int, tensor: Tensor) -> np.random.Generator:
        seed = hashlib.sha256(f"{self.identity}\n{name}\n{number}\n{tensor.name}".encode()).digest()
        return np.random.Generator(np.random.PCG64(int.from_bytes(seed, "little")))


def _apply_edges(case: Case, inputs: dict[str, Array], edged: list[Tensor], sequence: Array) -> tuple[str, ...]:
    """Overwrite rows in place; row ``sequence[r]`` of the endless sequence of edge rows lands in row r."""
    if not edged:
        return ()
    met = []
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
            change(
                rows, np.where(sequence[chosen] % 2 == 0, spread, spread - 1) % rows.shape[1], case.dtypes[tensor.name]
            )
            rows_first[chosen] = rows.reshape(chosen.size, *rows_first.shape[1:])
            met.append(f"{tensor.name}:{name}")
    return tuple(met)
