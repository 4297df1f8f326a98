"""Full comparison of outputs with the oracle: exact statistics, in blocks that stay in cache. Child side; numpy.

Per element: |error| ≤ max(2 ulp, row bound) (of 16 bits the row bound and 1 ulp; of int32 the row bound, which is 0 for
integer arithmetic), NaN exactly where the oracle has NaN, equal infinities. The largest
absolute error is over all elements but those that are right by what plain float32 arithmetic gives out of its range, so
it is at most the largest tolerance where no element fails; the relative and the ulp error are over those of them whose
expected magnitude is at least the smallest normal number (below it flushing is allowed, and a relative figure says
nothing).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt

from search.measuring.oracle import Expected

ULP_TOLERANCE = 2.0
TOLERANCE = (
    "|error| <= max(2 ulp of the oracle rounded to the output dtype, 8 x the row's largest error of plain float32 "
    "two-pass evaluations (pairwise, left fold, left folds over shuffled columns; products of n factors off by n/8 "
    "roundings, sums of few terms by sqrt(n)/8), smallest normal float32 number); "
    "NaN and infinities exactly where the oracle has them. float16 and bfloat16: 1 ulp more than those errors; int32: "
    "8 x that largest difference, 0 for integer arithmetic"
)
_BLOCK_ELEMENTS = 1 << 15
Array = npt.NDArray[Any]


@dataclass(frozen=True, kw_only=True)
class _Format:
    """Bit layout of a float dtype: exponent mask, spacing of 1.0, smallest normal, smallest spacing."""

    unsigned: np.dtype[Any]
    exponent_mask: int
    epsilon: float
    tiny: float
    smallest_spacing: float


_FORMATS = {
    np.dtype(np.float32): _Format(
        unsigned=np.dtype(np.uint32), exponent_mask=0x7F800000, epsilon=2.0**-23, tiny=2.0**-126,
        smallest_spacing=2.0**-149,
    ),
    np.dtype(np.float16): _Format(
        unsigned=np.dtype(np.uint16), exponent_mask=0x7C00, epsilon=2.0**-10, tiny=2.0**-14, smallest_spacing=2.0**-24
    ),
    np.dtype(ml_dtypes.bfloat16): _Format(
        unsigned=np.dtype(np.uint16), exponent_mask=0x7F80, epsilon=2.0**-7, tiny=2.0**-126, smallest_spacing=2.0**-133
    ),
}  # fmt: skip


@dataclass(kw_only=True)
class Tally:
    """Running statistics over the outputs of one input set."""

    elements: int = 0
    max_abs_error: float = 0.0
    max_rel_error: float = 0.0
    max_ulp_error: float = 0.0
    max_tolerance: float = 0.0
    failures: dict[str, int] = field(default_factory=dict)
    """Reason → elements."""
    first_failure: dict[str, Any] | None = None
    """The failing element with the smallest index, of the first output that has one."""
    first_index: int | None = None
    settled: bool = False
    """Whether an earlier output has failed: then ``first_failure`` stays."""

    def fail(self, kind: str, count: int, index: int, describe: Callable[[], Mapping[str, Any]]) -> None:
        """Count failing elements of one kind, the first of which has the flat index ``index`` in its output."""
        self.failures[kind] = self.failures.get(kind, 0) + count
        if not self.settled and (self.first_index is None or index < self.first_index):
            self.first_index, self.first_failure = index, {**describe(), "kind": kind}

    def finite(self, name: str) -> float | None:
        """A maximum, or null when it is not finite."""
        value: float = getattr(self, name)
        return value if math.isfinite(value) else None


def worst_reason(failures: Mapping[str, int]) -> str | None:
    """The reason a candidate is charged with when elements fail in several ways; None if none failed."""
    for reason in ("unwritten_elements", "nan_mismatch", "wrong_values"):
        if failures.get(reason):
            return reason
    return None


def compare_output(tensor: str, got: Array, expected: Expected, unwritten: Array, tally: Tally) -> None:
    """Compare one output with the oracle and add to the tally.

    ``got`` is (rows, elements of a row) as the oracle's arrays are; ``unwritten`` holds flat indices into it.
    """
    rows, columns = got.shape
    tally.elements += got.size
    if unwritten.size:
        index = int(unwritten[0])
        tally.fail(
            "unwritten_elements",
            int(unwritten.size),
            index,
            lambda: _describe(tensor, got, expected, index, tolerance=None),
        )
    row_step = max(1, _BLOCK_ELEMENTS // columns)
    column_step = min(columns, _BLOCK_ELEMENTS)
    for row in range(0, rows, row_step):
        for column in range(0, columns, column_step):
            block = (slice(row, row + row_step), slice(column, column + column_step))
            _compare_block(tensor, got, expected, block, unwritten, tally)
    tally.settled = tally.first_failure is not None


def _compare_block(
    tensor: str, got: Array, expected: Expected, block: tuple[slice, slice], unwritten: Array, tally: Tally
) -> None:
    if got.dtype.kind == "i":
        _compare_integers(tensor, got, expected, block, unwritten, tally)
        return
    layout = _FORMATS[got.dtype]
    want = np.asarray(expected.values[block])
    bound = expected.row_bound[block[0]][:, np.newaxis]
    magnitude = np.abs(want.astype(np.float64))
    with np.errstate(invalid="ignore"):  # inf - inf and NaN: sorted out below
        error = np.abs(np.subtract(got[block], want, dtype=np.float64))
    # 2^exponent of an element times epsilon is its ulp; a power of two, so exact.
    powers = (want.view(layout.unsigned) & layout.unsigned.type(layout.exponent_mask)).view(want.dtype)
    with np.errstate(invalid="ignore"):
        spacing = np.maximum(powers.astype(np.float64) * layout.epsilon, layout.smallest_spacing)
        # The bound is about float32 arithmetic: of 16 bits, each side's own rounding comes on top.
        rounding = spacing if layout.unsigned.itemsize == 2 else 0.0
        tolerance = np.maximum(spacing * ULP_TOLERANCE, bound + rounding)
    if not math.isfinite(float(error.max())):
        finite = np.isfinite(error)
        _compare_specials(tensor, got, expected, block, finite, unwritten, tally)
        error = np.where(finite, error, 0.0)
        # Elements whose oracle is NaN or infinite have no tolerance and no finite error.
        magnitude, tolerance = np.where(finite, magnitude, 1.0), np.where(finite, tolerance, 0.0)
        spacing = np.where(finite, spacing, 1.0)
    tally.max_tolerance = max(tally.max_tolerance, float(tolerance.max()))
    beyond = error > tolerance
    if beyond.any():
        # A finite poison does not exist, so unwritten elements are never counted here.
        allowed = _in_range_set(got, expected, block, np.flatnonzero(beyond))
        # What plain arithmetic gives out of range was not judged by the tolerance: its distance is no error.
        error[np.unravel_index(np.flatnonzero(beyond)[allowed], error.shape)] = 0.0
        wrong = np.flatnonzero(beyond)[~allowed]
        if wrong.size:
            first = _flat_index(got, block, int(wrong[0]), beyond.shape[1])
            limit = float(tolerance.reshape(-1)[wrong[0]])
            tally.fail(
                "wrong_values", int(wrong.size), first, lambda: _describe(tensor, got, expected, first, tolerance=limit)
            )
    tally.max_abs_error = max(tally.max_abs_error, float(error.max()))
    normal = np.where(magnitude >= layout.tiny, error, 0.0)
    np.maximum(magnitude, layout.tiny, out=magnitude)
    tally.max_rel_error = max(tally.max_rel_error, float(np.divide(normal, magnitude, out=magnitude).max()))
    tally.max_ulp_error = max(tally.max_ulp_error, float(np.divide(normal, spacing, out=spacing).max()))


def _compare_integers(
    tensor: str, got: Array, expected: Expected, block: tuple[slice, slice], unwritten: Array, tally: Tally
) -> None:
    """A block of int32: there are no special values, and an ulp is 1."""
    want = np.asarray(expected.values[block])
    error = np.abs(np.subtract(got[block], want, dtype=np.float64))
    tolerance = np.broadcast_to(expected.row_bound[block[0]][:, np.newaxis], error.shape)
    tally.max_tolerance = max(tally.max_tolerance, float(tolerance.max()))
    places = np.flatnonzero(error > tolerance)
    places = places[~np.isin(_flat_indices(got, block, places, error.shape[1]), unwritten)]
    if places.size:
        first = _flat_index(got, block, int(places[0]), error.shape[1])
        limit = float(tolerance.reshape(-1)[places[0]])
        tally.fail(
            "wrong_values", int(places.size), first, lambda: _describe(tensor, got, expected, first, tolerance=limit)
        )
    magnitude = np.maximum(np.abs(want.astype(np.float64)), 1.0)
    tally.max_abs_error = max(tally.max_abs_error, float(error.max()))
    tally.max_rel_error = max(tally.max_rel_error, float((error / magnitude).max()))
    tally.max_ulp_error = max(tally.max_ulp_error, float(error.max()))


def _compare_specials(
    tensor: str, got: Array, expected: Expected, block: tuple[slice, slice], finite: Array, unwritten: Array,
    tally: Tally,
) -> None:  # fmt: skip
    """The elements of a block where the output or the oracle is NaN or infinite."""
    places = np.flatnonzero(~finite)
    mine = np.asarray(got[block]).reshape(-1)[places]
    want = np.asarray(expected.values[block]).reshape(-1)[places]
    both_nan = np.isnan(mine) & np.isnan(want)
    mismatch = ~(both_nan | (mine == want))
    if not mismatch.any():
        return
    places, mine, want = places[mismatch], mine[mismatch], want[mismatch]
    columns = finite.shape[1]
    flat = _flat_indices(got, block, places, columns)
    keep = ~_in_range_set(got, expected, block, places) & ~np.isin(flat, unwritten)
    nan = keep & (np.isnan(mine) | np.isnan(want))
    other = keep & ~nan
    for kind, chosen in (("nan_mismatch", nan), ("wrong_values", other)):
        if chosen.any():
            tally.max_abs_error = tally.max_rel_error = tally.max_ulp_error = math.inf
            first = int(flat[chosen][0])
            tally.fail(
                kind,
                int(np.count_nonzero(chosen)),
                first,
                lambda first=first: _describe(tensor, got, expected, first, tolerance=None),  # type: ignore[misc]
            )


def _in_range_set(got: Array, expected: Expected, block: tuple[slice, slice], places: Array) -> npt.NDArray[np.bool_]:
    """Which of a block's elements have what plain float32 arithmetic gives where it leaves its range."""
    if not expected.range_indices.size or not places.size:
        return np.zeros(places.size, dtype=bool)
    columns = np.asarray(got[block]).shape[1]
    flat = _flat_indices(got, block, places, columns)
    first = np.searchsorted(expected.range_indices, flat, side="left")
    outcomes = np.searchsorted(expected.range_indices, flat, side="right") - first
    mine = got.reshape(-1)[flat]
    same = np.zeros(places.size, dtype=bool)
    for turn in range(int(outcomes.max())):
        plain = expected.range_values[np.minimum(first + turn, expected.range_indices.size - 1)]
        same |= (turn < outcomes) & ((mine == plain) | (np.isnan(mine) & np.isnan(plain)))
    return same


def _flat_indices(got: Array, block: tuple[slice, slice], places: Array, columns: int) -> npt.NDArray[np.int64]:
    rows = block[0].start + places // columns
    flat: npt.NDArray[np.int64] = rows * got.shape[1] + block[1].start + places % columns
    return flat


def _flat_index(got: Array, block: tuple[slice, slice], place: int, columns: int) -> int:
    return int(_flat_indices(got, block, np.array([place]), columns)[0])


def _describe(tensor: str, got: Array, expected: Expected, index: int, *, tolerance: float | None) -> dict[str, Any]:
    return {
        "tensor": tensor,
        "index": [int(i) for i in np.unravel_index(index, got.shape)],
        "got": _number(got.reshape(-1)[index]),
        "expected": _number(expected.values.reshape(-1)[index]),
        "tolerance": tolerance,
    }


def _number(value: Any) -> float | str:
    """JSON has no NaN and no infinity: they become words."""
    number = float(value)
    return number if math.isfinite(number) else str(number)
