"""What a kernel is called with: its tensors in declared order, and the shapes they have at a number of rows."""

from __future__ import annotations

from dataclasses import dataclass

from search.program.case import Case
from search.program.ir import Affine, Index, Load, Loop, Name, Tensor, Update
from search.program.walk import placed, statements, walk

INDEX_LIMIT = 2**31
"""The kernels count elements in int32."""


@dataclass(frozen=True, kw_only=True)
class TensorSpec:
    """One tensor of a call."""

    name: str
    role: str
    dtype: str
    element_bytes: int
    extents: tuple[int | None, ...]
    """Extent per axis; None where it is the number of rows."""
    shares: str | None = None
    """The input whose buffer an output declares to be its own."""

    def shape(self, rows: int) -> tuple[int, ...]:
        """The shape at so many rows."""
        return tuple(rows if extent is None else extent for extent in self.extents)


@dataclass(frozen=True, kw_only=True)
class Layout:
    """Shapes and sizes of every tensor at one number of rows."""

    rows: int
    shapes: tuple[tuple[int, ...], ...]
    byte_sizes: tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class Signature:
    """The tensors of a kernel in declared order, and which numbers of rows it takes."""

    tensors: tuple[TensorSpec, ...]
    rows: int
    """Number of rows that it was built (and, from a catalog, accepted) for."""
    row_dim: str
    any_rows: bool
    """True: every number of rows is taken, not the built one alone. No rows at all are always taken."""

    @classmethod
    def of(cls, case: Case, *, any_rows: bool) -> Signature:
        """The signature of a case; ``any_rows`` only where :func:`row_bound` finds nothing."""
        row_axis = case.program.row_axis.name
        specs = tuple(
            TensorSpec(
                name=tensor.name,
                role=tensor.role,
                dtype=case.dtypes[tensor.name],
                element_bytes=case.element_bytes(tensor.name),
                extents=tuple(None if axis == row_axis else case.extent(axis) for axis in tensor.axes),
                shares=tensor.aliases,
            )
            for tensor in case.program.tensors
        )
        return cls(tensors=specs, rows=case.rows, row_dim=case.program.row_axis.dim, any_rows=any_rows)

    @property
    def inputs(self) -> tuple[int, ...]:
        """Positions of the inputs."""
        return tuple(place for place, spec in enumerate(self.tensors) if spec.role == "input")

    @property
    def outputs(self) -> tuple[int, ...]:
        """Positions of the outputs."""
        return tuple(place for place, spec in enumerate(self.tensors) if spec.role == "output")

    @property
    def shared(self) -> dict[int, int]:
        """Position of each output that is written over an input, and of that input."""
        places = {spec.name: place for place, spec in enumerate(self.tensors)}
        return {place: places[spec.shares] for place, spec in enumerate(self.tensors) if spec.shares is not None}

    @property
    def row_source(self) -> tuple[int, int] | None:
        """Tensor and axis that tell the number of rows (an input if one does); None when no tensor has the row axis."""
        for place in (*self.inputs, *self.outputs):
            extents = self.tensors[place].extents
            if None in extents:
                return place, extents.index(None)
        return None

    def takes(self, rows: int) -> bool:
        """Whether the kernel may be called with so many rows."""
        if rows in (0, self.rows):
            return True
        return self.any_rows and all(_elements(spec.shape(rows)) < INDEX_LIMIT for spec in self.tensors)

    def layout(self, rows: int) -> Layout:
        """Shapes and sizes at so many rows."""
        shapes = tuple(spec.shape(rows) for spec in self.tensors)
        sizes = zip(shapes, self.tensors, strict=True)
        return Layout(
            rows=rows, shapes=shapes, byte_sizes=tuple(_elements(shape) * spec.element_bytes for shape, spec in sizes)
        )


def row_bound(case: Case) -> str | None:
    """Why a kernel of this case is right for its own number of rows only; None when any number will do.

    The compiled function takes the number of rows as an argument, but a column axis as long as there are rows, or a
    subscript made from the row dim, was fixed (and proven in bounds) when it was built.
    """
    row_axis, row_dim = case.program.row_axis.name, case.program.row_axis.dim
    for axis in case.program.axes:
        if axis.kind == "column" and axis.dim == row_dim:
            return f"column axis {axis.name!r} runs over {row_dim!r} too"
    for pointer, statement in statements(case.program.body):
        if isinstance(statement, Loop) and statement.index is not None and statement.count == row_dim:
            return f"{pointer} counts {row_dim!r} and names its index"
        for part in placed(statement, pointer):
            for node in walk(part.expr):
                indexing = isinstance(statement, Update) and statement.index
                if indexing and node in (Name(name=row_dim), Index(axis=row_axis)):
                    return f"an index of {pointer} depends on {row_dim!r}"
                if isinstance(node, Load) and any(_names(subscript, row_dim) for subscript in node.index):
                    return f"a subscript of {node.tensor!r} is made from {row_dim!r}"
    return None


def spec_text(tensor: Tensor, spec: TensorSpec) -> str:
    """For people: ``x: float32[rows, 4096]``."""
    axes = ", ".join(
        axis if extent is None else str(extent) for axis, extent in zip(tensor.axes, spec.extents, strict=True)
    )
    return f"{spec.name}: {spec.dtype}[{axes}]"


def _names(subscript: Affine, dim: str) -> bool:
    return any(name == dim for name, _ in subscript.terms)


def _elements(shape: tuple[int, ...]) -> int:
    count = 1
    for extent in shape:
        count *= extent
    return count
