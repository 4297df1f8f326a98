"""What each output should be and how far off it may be: computed once per case, kept on disk. Child side; numpy.

expected   the float64 evaluation of the inputs (rounded to their dtypes) rounded to the output's dtype
row bound  max(8 × the row's largest error of plain float32 evaluations before they are rounded to the output's dtype,
           smallest normal float32 number); elements where either is not finite have no part in it. Of an int32 output
           the largest difference alone
range      elements where plain float32 arithmetic leaves its range although float64 does not (or NaN meets infinity):
           the definition accumulates in float32, so there the float32 outcome is as right as the oracle's
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from search.measuring.inputs import NUMPY_DTYPES, InputPass, input_passes, input_sha256
from search.measuring.yardstick import plain_evaluations
from search.program.case import Case
from search.program.dtypes import value_dtype
from search.program.reference import evaluate

FLOAT32_ERRORS = 8.0
CACHE_BYTES = 4 << 30
"""Oldest cases are dropped from a work directory above this."""
_ROWS_ELEMENTS = 1 << 20
Array = npt.NDArray[Any]


@dataclass(frozen=True, kw_only=True)
class Expected:
    """One output of one pass, rows first: arrays are (rows, elements of a row)."""

    values: Array
    row_bound: npt.NDArray[np.float64]
    """(rows,)"""
    range_indices: npt.NDArray[np.int64]
    """Flat indices of the range elements, sorted; an element stands once for each outcome."""
    range_values: Array
    """What plain float32 evaluations give there."""


@dataclass(frozen=True, kw_only=True)
class OraclePass:
    """One run: its inputs and what must come out."""

    given: InputPass
    input_sha256: str
    expected: Mapping[str, Expected]


def rows_first(case: Case, tensor_name: str, array: Array) -> Array:
    """View (or copy) an output as (rows, elements of a row), C-ordered."""
    axes = case.program.tensor(tensor_name).axes
    row = case.program.row_axis.name
    if row not in axes:
        return np.ascontiguousarray(array).reshape(1, -1)
    return np.ascontiguousarray(np.moveaxis(array, axes.index(row), 0)).reshape(case.rows, -1)


def compute_oracle(case: Case) -> Iterator[OraclePass]:
    """Evaluate every pass of a case in float64 and in plain float32, one pass at a time."""
    for given in input_passes(case):
        yield _evaluate_pass(case, given)


def load_oracle(case: Case, work_dir: Path) -> list[OraclePass]:
    """The oracle of a case, from the work directory when it is there, else computed and put there.

    Arrays read back are memory-mapped: what is not in use costs no memory, and computing holds one pass at a time.
    """
    folder = work_dir / "oracle" / _digest(case)
    passes = _read(folder)
    if passes is None:
        with contextlib.suppress(OSError):  # a full disk costs time and memory, not the measurement
            _write(folder, compute_oracle(case))
            _prune(folder.parent, keep=folder.name)
            passes = _read(folder)
    return list(compute_oracle(case)) if passes is None else passes


def _evaluate_pass(case: Case, given: InputPass) -> OraclePass:
    def rounded(outputs: Mapping[str, Array], dtypes: Mapping[str, str]) -> dict[str, Array]:
        with np.errstate(over="ignore", invalid="ignore"):  # beyond float32 is infinity: that is the rounding
            return {
                name: rows_first(case, name, array.astype(NUMPY_DTYPES[dtypes[name]]))
                for name, array in outputs.items()
            }

    digest = input_sha256(given.inputs)
    computed = {name: value_dtype(dtype) for name, dtype in case.dtypes.items()}
    outputs = evaluate(case, given.inputs, dtype=np.float64)
    exact, stored = rounded(outputs, computed), rounded(outputs, case.dtypes)
    del outputs
    largest = {name: np.zeros(len(values)) for name, values in exact.items()}
    outside: dict[str, list[Array]] = {name: [] for name in exact}
    for evaluation in plain_evaluations(case, given.inputs, seed=int(digest[:16], 16)):
        plain, plain_stored = rounded(evaluation, computed), rounded(evaluation, case.dtypes)
        for name, values in exact.items():
            np.maximum(largest[name], _row_errors(values, plain[name]), out=largest[name])
            outside[name].append(_outside(stored[name], plain_stored[name]))
    expected = {name: _bound(values, outside[name], largest[name]) for name, values in stored.items()}
    return OraclePass(given=given, input_sha256=digest, expected=expected)


def _outside(values: Array, plain: Array) -> Array:
    """(2, n): flat index and value of the elements of a plain evaluation that are infinite or NaN where the truth is
    not, the other way round, or in another way."""
    same = (np.isfinite(values) & np.isfinite(plain)) | (values == plain) | (np.isnan(values) & np.isnan(plain))
    places = np.flatnonzero(~same)
    return np.stack([places.astype(np.float64), plain.reshape(-1)[places].astype(np.float64)])


def _bound(values: Array, outside: list[Array], largest: npt.NDArray[np.float64]) -> Expected:
    places, found = np.concatenate(outside, axis=1)
    indices = places.astype(np.int64)
    # An order that overflows and one that underflows: a third one multiplies what they give.
    everything = np.concatenate([found, values.reshape(-1)[indices].astype(np.float64)])
    both = np.concatenate([indices, indices])
    zero, infinite = np.unique(both[everything == 0]), np.unique(both[np.isinf(everything)])
    mixed = np.intersect1d(zero, infinite)
    indices, found = np.concatenate([indices, mixed]), np.concatenate([found, np.full(mixed.size, np.nan)])
    smallest = 0.0 if values.dtype.kind == "i" else float(np.finfo(np.float32).tiny)
    pairs = np.unique(np.stack([indices.astype(np.float64), found]), axis=1, equal_nan=True)
    return Expected(
        values=values,
        row_bound=np.maximum(FLOAT32_ERRORS * largest, smallest),
        range_indices=pairs[0].astype(np.int64),
        range_values=pairs[1].astype(values.dtype),
    )


def _row_errors(values: Array, plain: Array) -> npt.NDArray[np.float64]:
    """Largest finite error of each row; some rows at a time, because float64 doubles them."""
    largest = np.zeros(len(values))
    step = max(1, _ROWS_ELEMENTS // values.shape[1])
    for row in range(0, len(values), step):
        rows = slice(row, row + step)
        with np.errstate(invalid="ignore"):  # inf - inf: such elements are left out
            error = np.abs(np.subtract(plain[rows], values[rows], dtype=np.float64))
        error[~np.isfinite(error)] = 0.0
        largest[rows] = error.max(axis=1)
    return largest


def _digest(case: Case) -> str:
    """Names everything that the arrays depend on: the case, this machinery's sources, numpy."""
    digest = hashlib.sha256(json.dumps([case.document(), np.__version__], sort_keys=True).encode())
    here = Path(__file__).parent
    for source in sorted((here.parent / "program").rglob("*.py")) + [
        here / name for name in ("inputs.py", "integers.py", "nudge.py", "oracle.py", "yardstick.py")
    ]:
        digest.update(source.read_bytes())
    return digest.hexdigest()


_FIELDS = ("values", "row_bound", "range_indices", "range_values")
_OF_THE_TENSOR = ("input", "values", "range_values")
"""Those whose dtype is the tensor's."""


def _write(folder: Path, passes: Iterable[OraclePass]) -> None:
    folder.parent.mkdir(parents=True, exist_ok=True)
    temporary = Path(tempfile.mkdtemp(prefix=".new-", dir=folder.parent))
    try:
        listed = []
        for number, one in enumerate(passes):
            for name, array in one.given.inputs.items():
                np.save(temporary / f"{number}.input.{name}.npy", _plain(array))
            for name, expected in one.expected.items():
                for field in _FIELDS:
                    np.save(temporary / f"{number}.{field}.{name}.npy", _plain(getattr(expected, field)))
            listed.append(
                {
                    "name": one.given.name,
                    "number": one.given.number,
                    "patterns": one.given.patterns,
                    "input_sha256": one.input_sha256,
                    "inputs": list(one.given.inputs),
                    "outputs": list(one.expected),
                    "dtypes": {
                        name: array.dtype.name
                        for name, array in (
                            *one.given.inputs.items(),
                            *((name, expected.values) for name, expected in one.expected.items()),
                        )
                    },
                }
            )
        (temporary / "passes.json").write_text(json.dumps(listed))
        shutil.rmtree(folder, ignore_errors=True)  # it could not be read
        with contextlib.suppress(FileExistsError):
            temporary.rename(folder)  # whole or not at all
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _plain(array: Array) -> Array:
    """The array in a dtype that numpy's files know: they have no bfloat16."""
    return array.view(np.uint16) if array.dtype == NUMPY_DTYPES["bfloat16"] else array


def _read(folder: Path) -> list[OraclePass] | None:
    try:
        listed = json.loads((folder / "passes.json").read_text())
        passes = [_read_pass(folder, number, fields) for number, fields in enumerate(listed)]
        os.utime(folder)
    except (OSError, ValueError, KeyError):  # absent, or pruned by another child while we read
        return None
    return passes


def _read_pass(folder: Path, number: int, fields: Mapping[str, Any]) -> OraclePass:
    def load(kind: str, name: str) -> Array:
        path = folder / f"{number}.{kind}.{name}.npy"
        array: Array = np.load(path, mmap_mode="r" if path.stat().st_size > 1 << 16 else None)
        bfloat16 = fields["dtypes"][name] == "bfloat16" and kind in _OF_THE_TENSOR
        return array.view(NUMPY_DTYPES["bfloat16"]) if bfloat16 else array

    return OraclePass(
        given=InputPass(
            name=fields["name"],
            number=fields["number"],
            inputs={name: load("input", name) for name in fields["inputs"]},
            patterns=tuple(fields["patterns"]),
        ),
        input_sha256=fields["input_sha256"],
        expected={name: Expected(**{field: load(field, name) for field in _FIELDS}) for name in fields["outputs"]},
    )


def _prune(folder: Path, *, keep: str) -> None:
    """Drop the least recently used cases until what is left fits. Mapped files stay readable to who holds them."""
    sizes = {
        entry: sum(file.stat().st_size for file in entry.iterdir())
        for entry in folder.iterdir()
        if entry.is_dir() and not entry.name.startswith(".")
    }
    for entry in folder.glob(".new-*"):  # left by a child that was killed while it wrote
        if time.time() - entry.stat().st_mtime > 3600:
            shutil.rmtree(entry, ignore_errors=True)
    for entry in sorted(sizes, key=lambda path: path.stat().st_mtime):
        if sum(sizes.values()) <= CACHE_BYTES:
            return
        if entry.name != keep:
            shutil.rmtree(entry, ignore_errors=True)
            del sizes[entry]
