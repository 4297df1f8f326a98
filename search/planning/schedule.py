"""The Schedule: Program × Candidate made explicit. The one truth between plan and code.

Demand, budget and cost count what it says; the lowerings emit what it says, so they cannot drift apart. A schedule
describes one program instance (one row); how instances are laid over lanes and packets is the candidate's mapping.

Within a :class:`DistributedLoop` the ops run in order for every element of the loop's flattened domain. Expressions
in ops are ``search.program.ir`` nodes without ``Load``: loads were lifted into ops, and ``Name`` refers to a param,
a dim, a row scalar, or a value defined by an earlier op (``into``) of the same loop. ``Index`` remains.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, TypeAlias

from search.program.case import Case
from search.program.ir import Affine, DType, Expr, ReduceOp
from search.program.monoids import result_dtypes
from search.space.candidate import Candidate


@dataclass(frozen=True, kw_only=True)
class PrivateTile:
    """Private storage of one distributed tile. Indexed by the flattened element of its domain."""

    name: str
    """Unique storage name: the tile's name, or ``<tensor>_snapshot`` for a cached input."""
    kind: Literal["tile", "snapshot"]
    dtype: DType
    axes: tuple[str, ...]
    extent: int
    """N: elements of one row."""
    stripe_scalars: int
    """ceil(N / L): scalars owned by the busiest lane, blind to vector."""
    allocated_scalars: int
    """ceil(N / (L·V))·V: what a lane's storage really holds, padded to whole vectors."""


@dataclass(frozen=True, kw_only=True)
class GlobalLoad:
    """``into = tensor[index]``, per element. ``staged`` marks a read of a tile staged in an output's storage."""

    into: str
    tensor: str
    index: tuple[Affine, ...]
    dtype: DType
    """Storage dtype; the value is widened to float32 when it is a 16-bit float."""
    staged: bool = False


@dataclass(frozen=True, kw_only=True)
class PrivateLoad:
    """``into = tile[element]``."""

    into: str
    tile: str
    dtype: DType


@dataclass(frozen=True, kw_only=True)
class Compute:
    """``into = value`` (a named per-element value: the source of a tile, used again in the same loop)."""

    into: str
    value: Expr
    dtype: DType


@dataclass(frozen=True, kw_only=True)
class PrivateStore:
    """``tile[element] = value``."""

    tile: str
    value: Expr


@dataclass(frozen=True, kw_only=True)
class GlobalStore:
    """``tensor[natural subscripts] = value``.

    ``streaming`` asks for a non-temporal store: never for staged ones, and only where a pass covers whole lines.
    """

    tensor: str
    value: Expr
    staged: bool = False
    streaming: bool = False


@dataclass(frozen=True, kw_only=True)
class ArrayIndex:
    """Which element of a reducer array, along one of its axes."""

    value: Expr
    extent: int
    clamped: bool
    """Only ``where`` keeps it in 0..extent-1; the lowering clamps it, so that what is not enabled touches no memory."""


@dataclass(frozen=True, kw_only=True)
class Accumulate:
    """``partial[reducer][index] = combine(partial[reducer][index], value)`` where ``where`` holds (None: always)."""

    reducer: str
    value: Expr
    where: Expr | None = None
    index: tuple[ArrayIndex, ...] = ()


ElementOp: TypeAlias = GlobalLoad | PrivateLoad | Compute | PrivateStore | GlobalStore | Accumulate


@dataclass(frozen=True, kw_only=True)
class ReducerState:
    """A reducer's per-lane partials (``partials`` of them per lane, per row)."""

    name: str
    op: ReduceOp
    dtype: DType
    seed: Expr | None
    strict: bool = False
    """One chain per row, in index order, instead of partials: it passes from owner to owner of the elements."""

    elements: int = 1
    """Of a reducer array: every partial is a whole one."""

    def scalars(self, partials: int) -> int:
        """Scalars that one lane holds for one row."""
        each = 1 if self.strict else partials
        return self.elements * each * len(result_dtypes(self.op, self.dtype))


@dataclass(frozen=True, kw_only=True)
class OpenReducer:
    """Every partial of the reducer := the op's identity."""

    reducer: str


@dataclass(frozen=True, kw_only=True)
class DistributedLoop:
    """One traversal of a (flattened) product of column axes, spread over the L lanes of a row."""

    axes: tuple[str, ...]
    extent: int
    stripe_scalars: int
    """ceil(extent / L)."""
    ops: tuple[ElementOp, ...]
    purpose: Literal["statements", "snapshot"] = "statements"
    statements: tuple[int, ...] = ()
    """Indices into the (desugared) program body that this loop realises."""
    serial: bool = False
    """A strict fold is in it: elements go one after the other in index order, whatever lane owns them."""


@dataclass(frozen=True, kw_only=True)
class RowUpdate:
    """An ``over=()`` update: the row contributes once (lane 0's first partial)."""

    reducer: str
    value: Expr
    where: Expr | None = None
    index: tuple[ArrayIndex, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Collective:
    """Combine the partials of all L lanes of a row (then the seed, once) into the row scalar or row array ``into``."""

    reducer: str
    into: str
    op: ReduceOp
    dtype: DType
    seed: Expr | None
    rounds: int
    """elements × ceil(log2 L), whatever the number of components: one tree combines them all. 0 for a strict fold,
    whose one chain has the result already."""
    strict: bool = False
    elements: int = 1
    rest: tuple[str, ...] = ()
    """The row scalars of a structured op's further components."""

    @property
    def results(self) -> tuple[str, ...]:
        """Every row scalar that is delivered."""
        return (self.into, *self.rest)


@dataclass(frozen=True, kw_only=True)
class RowLoad:
    """``into = tensor[index]`` once per row (a tensor without column axes, or a constant column subscript)."""

    into: str
    tensor: str
    index: tuple[Affine, ...]
    dtype: DType


@dataclass(frozen=True, kw_only=True)
class RowCompute:
    """A row scalar (``let``)."""

    into: str
    value: Expr
    dtype: DType


@dataclass(frozen=True, kw_only=True)
class RowStore:
    """``over=()`` store: one value per row, written once."""

    tensor: str
    value: Expr


@dataclass(frozen=True, kw_only=True)
class RowArray:
    """A finalized reducer array: like a row scalar, every lane may read every element of it."""

    name: str
    dtype: DType
    axes: tuple[str, ...]
    extents: tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class SerialLoop:
    """Runs ``steps`` ``trips`` times, for all lanes and rows of a packet together."""

    trips: int
    count: str
    """The dim or param that ``trips`` is the value of."""
    index: str | None
    """Row-uniform int32 with the trip's number, if the steps read it."""
    steps: tuple[Step, ...]


Step: TypeAlias = OpenReducer | DistributedLoop | RowUpdate | Collective | RowLoad | RowCompute | RowStore | SerialLoop


def flat_steps(steps: tuple[Step, ...]) -> Iterator[tuple[Step, int]]:
    """Every step that is no loop of steps, in order, with the number of times it runs."""
    for step in steps:
        if isinstance(step, SerialLoop):
            yield from ((inner, times * step.trips) for inner, times in flat_steps(step.steps))
        else:
            yield step, 1


@dataclass(frozen=True, kw_only=True)
class Schedule:
    """What one row does, in order, and the storage it needs."""

    case: Case
    candidate: Candidate
    lanes_per_row: int
    reducers: tuple[ReducerState, ...]
    private_tiles: tuple[PrivateTile, ...]
    staged_tiles: tuple[tuple[str, str], ...]
    """(tile, output) pairs for ``materialize=output``."""
    steps: tuple[Step, ...]
    scalar_dtypes: tuple[tuple[str, DType], ...]
    """(row scalar, dtype) for every RowLoad, RowCompute and Collective result."""
    arrays: tuple[RowArray, ...] = ()
    """Results of the collectives of reducer arrays; ``Name`` is their element at the coordinates of the loop."""
    unavailable: str | None = None
    """Why the demand analysis does not know this program (None: it does)."""

    @property
    def private_scalars(self) -> int:
        """row_block × Σ stripe over all private tiles (cumulative: tiles do not share storage)."""
        return self.candidate.row_block * sum(tile.stripe_scalars for tile in self.private_tiles)

    @property
    def allocated_scalars(self) -> int:
        """row_block × Σ allocated over all private tiles: what the lowering really allocates per lane."""
        return self.candidate.row_block * sum(tile.allocated_scalars for tile in self.private_tiles)

    @property
    def partial_scalars(self) -> int:
        """Reducer partials per lane, all components; reported, not counted against the budget."""
        return self.candidate.row_block * sum(state.scalars(self.candidate.partials) for state in self.reducers)
