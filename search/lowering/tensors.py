"""How a tensor argument is declared and indexed: ``[before][row][after]``, the column axes of each side flattened."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import prod

from search.lowering.expressions import Scope, UnsupportedError
from search.lowering.indexing import join, product
from search.planning.schedule import RowArray
from search.program.case import Case
from search.program.ir import Affine, Tensor


@dataclass(frozen=True, kw_only=True)
class Layout:
    """Axes of one tensor around the row axis, with extents."""

    dtype: str
    axes: tuple[str, ...]
    extents: tuple[int, ...]
    """Per axis; the row axis's is not used."""
    row_at: int | None
    """Position of the row axis, None for a tensor that all rows share."""

    @property
    def natural(self) -> tuple[Affine, ...]:
        """The subscripts of the tensor written without brackets."""
        return tuple(Affine(terms=((axis, 1),)) for axis in self.axes)

    def shape(self, rows: str) -> str:
        """Shape text of the argument."""
        if self.row_at is None:
            return f"({prod(self.extents)},)"
        before, after = self.extents[: self.row_at], self.extents[self.row_at + 1 :]
        parts = ([str(prod(before))] if before else []) + [rows] + ([str(prod(after))] if after else [])
        return f"({', '.join(parts)}{',' if len(parts) == 1 else ''})"

    def index(
        self, subscripts: Sequence[Affine], scope: Scope, row: str, axes: tuple[str, ...], element: str = "e"
    ) -> str:
        """Index text of a load or store at affine subscripts, one per axis, at an element of a loop over ``axes``."""
        if self.row_at is None:
            return self._group(range(len(self.axes)), subscripts, scope, axes, element)
        rows = subscripts[self.row_at]
        row_text = row if rows == self.natural[self.row_at] else _row_affine(rows, self.axes[self.row_at], row)
        before, after = range(self.row_at), range(self.row_at + 1, len(self.axes))
        parts = [self._group(before, subscripts, scope, axes, element)] if before else []
        parts.append(row_text)
        parts += [self._group(after, subscripts, scope, axes, element)] if after else []
        return ", ".join(parts)

    def flat(self, row: str, offset: str) -> str:
        """Index text of a flattened column offset (tensors whose row axis comes first)."""
        if self.row_at != 0:
            raise UnsupportedError("streaming store to a tensor whose row axis is not the first")
        return f"{row}, {offset}"

    def run(
        self, subscripts: Sequence[Affine], scope: Scope, row: str, axes: tuple[str, ...], element: str
    ) -> str | None:
        """Index text at one element of a loop over ``axes``, if the elements after it lie after it in memory."""
        columns = [at for at in range(len(self.axes)) if at != self.row_at]
        if self.row_at not in (0, None) or (self.row_at == 0 and subscripts[0] != self.natural[0]):
            return None
        if all(subscripts[at] == self.natural[at] for at in columns) and tuple(self.axes[at] for at in columns) == axes:
            offset = element
        elif len(columns) == len(axes) == 1 and (axes[0], 1) in subscripts[columns[0]].terms:
            coordinates = {**scope.coordinates, axes[0]: element}
            offset = replace(scope, coordinates=coordinates).affine(subscripts[columns[0]])
        else:
            return None
        return offset if self.row_at is None else f"{row}, {offset}"

    def _group(
        self, positions: range, subscripts: Sequence[Affine], scope: Scope, axes: tuple[str, ...], element: str
    ) -> str:
        """The flattened index of some of the axes: the element itself when it walks exactly them in order."""
        natural = all(subscripts[at] == self.natural[at] for at in positions)
        if natural and tuple(self.axes[at] for at in positions) == axes:
            return element
        terms = []
        below = prod(self.extents[at] for at in positions)
        for at in positions:
            below //= self.extents[at]
            text = scope.affine(subscripts[at])
            terms.append(product(f"({text})" if "//" in text or "%" in text else text, below))
        return join(*terms)


def layout_of(case: Case, tensor: Tensor) -> Layout:
    """The layout of a tensor of a case."""
    row = case.program.row_axis.name
    return Layout(
        dtype=case.dtypes[tensor.name],
        axes=tensor.axes,
        extents=tuple(1 if axis == row else case.extent(axis) for axis in tensor.axes),
        row_at=tensor.axes.index(row) if row in tensor.axes else None,
    )


def array_layout(array: RowArray) -> Layout:
    """The layout of a finalized reducer array, behind the slot of its row."""
    return Layout(dtype=array.dtype, axes=array.axes, extents=array.extents, row_at=None)


def _row_affine(subscript: Affine, axis: str, row: str) -> str:
    coefficients = dict(subscript.terms)
    if set(coefficients) - {axis}:
        raise UnsupportedError("row subscript that names something other than the row axis")
    return join(product(row, coefficients.get(axis, 0)), str(subscript.constant))
