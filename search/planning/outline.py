"""The Outline: what one row does under a candidate's choices of input, fusion, materialize and nontemporal.

It knows nothing of lanes: extents are whole, and ``build.py`` spreads it over a candidate's lanes. Many candidates
share one outline, so it is made once per case and choice.

Names: a load or forwarded value is ``<tensor or tile>_<n>``, a snapshot ``<tensor>_snapshot``; both avoid every name
of the program, and equal inputs give equal names.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from search.planning.choices import Choices
from search.planning.grouping import Grouping
from search.planning.lift import FreshNames, Names, lifted
from search.planning.materialize import is_the_tile
from search.planning.reductions import Reductions, trips
from search.planning.schedule import (
    Accumulate,
    ArrayIndex,
    Compute,
    DistributedLoop,
    ElementOp,
    GlobalLoad,
    GlobalStore,
    PrivateLoad,
    PrivateStore,
    ReducerState,
    RowArray,
    RowCompute,
    RowLoad,
    RowStore,
    RowUpdate,
    SerialLoop,
    Step,
)
from search.planning.snapshots import Snapshots, Storage
from search.program.case import Case
from search.program.dtypes import value_dtype
from search.program.ir import (
    DType,
    Finalize,
    Let,
    Load,
    Loop,
    Name,
    Program,
    Reducer,
    StageBoundary,
    Store,
    Tile,
    Update,
)
from search.program.walk import statements
from search.space.uses import LoopEnd, Use, natural_index, row_level, streamable


@dataclass(frozen=True, kw_only=True)
class Outline:
    """The schedule of a row before it is spread over lanes. Stripes in ``steps`` are whole extents, rounds are 0."""

    reducers: tuple[ReducerState, ...]
    storage: tuple[Storage, ...]
    staged: tuple[tuple[str, str], ...]
    steps: tuple[Step, ...]
    scalar_dtypes: tuple[tuple[str, DType], ...]
    arrays: tuple[RowArray, ...]


def outline(
    case: Case,
    program: Program,
    uses: Sequence[Use],
    grouping: Grouping,
    dtypes: Mapping[str, DType],
    choices: Choices,
) -> Outline:
    """Lay the statements of a desugared program out as steps.

    ``uses`` and ``grouping`` are of the candidate's view (tiles inlined under recompute); ``dtypes`` names every
    name's dtype.
    """
    return _Outliner(case, program, uses, grouping, dtypes, choices).build()


@dataclass(frozen=True)
class _Around:
    """What stood before a serial loop, while its body is laid out."""

    loop: Loop
    steps: list[Step]
    row_loads: dict[Load, str]


@dataclass
class _OpenLoop:
    """A loop that may still take statements, with what goes before and what waits behind it."""

    number: int
    axes: tuple[str, ...]
    ops: list[ElementOp] = field(default_factory=list)
    statements: list[int] = field(default_factory=list)
    before: list[Step] = field(default_factory=list)
    behind: list[tuple[Step, bool]] = field(default_factory=list)
    """Steps after the loop; True marks those that may move before it."""
    forwarded: dict[str, str] = field(default_factory=dict)
    """Tile to the value that an op of this loop gave it."""


class _Outliner:
    def __init__(
        self,
        case: Case,
        program: Program,
        uses: Sequence[Use],
        grouping: Grouping,
        dtypes: Mapping[str, DType],
        choices: Choices,
    ) -> None:
        self._case = case
        self._program = program
        self._uses = uses
        self._grouping = grouping
        self._dtypes = dtypes
        self._choices = choices
        self._tiles = {s.name: s for _, s in statements(program.body) if isinstance(s, Tile)}
        self._names = FreshNames(program)
        self._steps: list[Step] = []
        self._loop: _OpenLoop | None = None
        self._row_loads: dict[Load, str] = {}
        self._scalars: dict[str, DType] = {}
        self._reductions = Reductions(case, program)
        self._around: list[_Around] = []
        self._storage: dict[str, Storage] = {}
        self._snapshots = Snapshots(case, program, self._names, self._storage)

    def build(self) -> Outline:
        for use in self._uses:
            if isinstance(use.statement, StageBoundary):
                self._close()
                self._row_loads.clear()
            elif isinstance(use.statement, Loop):
                self._close()
                self._around.append(_Around(use.statement, self._steps, self._row_loads))
                self._steps, self._row_loads = [], dict(self._row_loads)
            elif isinstance(use.statement, LoopEnd):
                self._end_serial_loop()
            elif use.distributed:
                self._distributed(use)
            else:
                self._row_statement(use)
        self._close()
        return Outline(
            reducers=tuple(self._reductions.states.values()),
            storage=tuple(self._storage.values()),
            staged=tuple(self._choices.staged.items()),
            steps=tuple(self._steps),
            scalar_dtypes=tuple(self._scalars.items()),
            arrays=tuple(self._reductions.arrays.values()),
        )

    def _end_serial_loop(self) -> None:
        """What the body loaded once per row is not there behind it: the loop may run zero times."""
        self._close()
        around, body = self._around.pop(), self._steps
        self._steps, self._row_loads = around.steps, around.row_loads
        loop = around.loop
        number = trips(self._case, loop)
        self._steps.append(SerialLoop(trips=number, count=loop.count, index=loop.index, steps=tuple(body)))

    # --- row-level statements ---

    def _row_statement(self, use: Use) -> None:
        names: Names = {load: self._row_load(load) for load in use.loads}
        match use.statement:
            case Reducer() as reducer:
                self._place(self._reductions.open(reducer, names))
            case Update() as update:
                where = None if update.where is None else lifted(update.where, names)
                step = RowUpdate(
                    reducer=update.reducer,
                    value=lifted(update.value, names),
                    where=where,
                    index=self._index(update, names),
                )
                self._place(step, movable=False)
            case Finalize() as finalize:
                self._place(self._reductions.finalize(finalize, self._scalars), movable=False)
            case Let() as let:
                dtype = self._dtypes[let.name]
                self._scalars[let.name] = dtype
                step_ = RowCompute(into=let.name, value=lifted(let.value, names), dtype=dtype)
                self._place(step_, movable=use.index not in self._grouping.late)
            case Store() as store:
                self._place(RowStore(tensor=store.tensor, value=lifted(store.value, names)), movable=False)
            case other:
                raise TypeError(f"{type(other).__name__} cannot be planned by this version")

    def _index(self, update: Update, names: Names) -> tuple[ArrayIndex, ...]:
        return self._reductions.index(update, names, [around.loop for around in self._around])

    def _place(self, step: Step, *, movable: bool = True) -> None:
        if self._loop is None:
            self._steps.append(step)
        else:
            self._loop.behind.append((step, movable))

    def _row_load(self, load: Load) -> str:
        if load not in self._row_loads:
            into = self._names.fresh(load.tensor)
            dtype = self._case.dtypes[load.tensor]
            self._row_loads[load] = into
            self._scalars[into] = value_dtype(dtype)
            self._place(RowLoad(into=into, tensor=load.tensor, index=load.index, dtype=dtype))
        return self._row_loads[load]

    # --- distributed statements ---

    def _distributed(self, use: Use) -> None:
        loop = self._enter(use)
        loop.before += self._snapshots.before_write(use, self._uses, self._choices.cached)
        loop.statements.append(use.index)
        if any(is_the_tile(use.statement, tile) for tile, output in self._choices.staged.items() if _into(use, output)):
            return  # staging has written it
        names = self._loads(use, loop)
        match use.statement:
            case Update() as update:
                where = None if update.where is None else lifted(update.where, names)
                loop.ops.append(
                    Accumulate(
                        reducer=update.reducer,
                        value=lifted(update.value, names),
                        where=where,
                        index=self._index(update, names),
                    )
                )
            case Tile() as tile:
                self._tile(tile, loop, names)
            case Store() as store:
                value = lifted(store.value, names)
                wide_enough = self._case.element_bytes(store.tensor) in self._choices.streaming
                streaming = wide_enough and streamable(self._case, store)
                loop.ops.append(GlobalStore(tensor=store.tensor, value=value, streaming=streaming))
            case other:
                raise TypeError(f"{type(other).__name__} cannot be planned by this version")

    def _enter(self, use: Use) -> _OpenLoop:
        number = self._grouping.loop_of[use.index]
        if self._loop is not None and self._loop.number == number:
            self._loop.before += [step for step, movable in self._loop.behind if movable]
            self._loop.behind = [(step, movable) for step, movable in self._loop.behind if not movable]
            return self._loop
        self._close()
        self._loop = _OpenLoop(number=number, axes=use.over)
        return self._loop

    def _close(self) -> None:
        loop, self._loop = self._loop, None
        if loop is None:
            return
        extent = self._case.domain_extent(loop.axes)
        self._steps += loop.before
        if not loop.ops:
            self._steps += [step for step, _ in loop.behind]
            return
        self._steps.append(
            DistributedLoop(
                axes=loop.axes,
                extent=extent,
                stripe_scalars=extent,
                ops=tuple(loop.ops),
                statements=tuple(loop.statements),
                serial=self._reductions.strict(loop.ops),
            )
        )
        self._steps += [step for step, _ in loop.behind]

    def _loads(self, use: Use, loop: _OpenLoop) -> Names:
        """Emit the statement's reads, each distinct one once, and name them."""
        names: Names = {}
        for load in use.loads:
            if row_level(self._program, load):
                names[load] = self._distributed_row_load(load, loop)
            elif load.tensor in self._choices.cached:
                names[load] = self._cached_load(load, use, loop)
            else:
                names[load] = self._global_load(load, loop.ops)
        for tile in use.tiles:
            names[tile] = loop.forwarded[tile] if tile in loop.forwarded else self._tile_load(tile, loop)
        if self._choices.recompute:
            self._recompute(use, loop, names)
        return names

    def _distributed_row_load(self, load: Load, loop: _OpenLoop) -> str:
        if load not in self._row_loads:
            into = self._row_load(load)
            step, _ = loop.behind.pop()  # the load was just placed behind; this loop needs it before
            loop.before.append(step)
            return into
        return self._row_loads[load]

    def _global_load(self, load: Load, ops: list[ElementOp]) -> str:
        into = self._names.fresh(load.tensor)
        ops.append(GlobalLoad(into=into, tensor=load.tensor, index=load.index, dtype=self._case.dtypes[load.tensor]))
        return into

    def _cached_load(self, load: Load, use: Use, loop: _OpenLoop) -> str:
        tensor = load.tensor
        admitted = self._choices.fused.get(tensor)
        if admitted is not None and admitted.site == use.index:
            into = self._global_load(load, loop.ops)
            if admitted.later_consumers:
                loop.ops.append(PrivateStore(tile=self._snapshots.storage(tensor, use).name, value=Name(name=into)))
            return into
        if tensor not in self._snapshots.taken:
            # Taken once: before the outermost serial loop around the reader, if there is one.
            before = self._around[0].steps if self._around else loop.before
            before.append(self._snapshots.loop(load, use))
        into = self._names.fresh(tensor)
        loop.ops.append(PrivateLoad(into=into, tile=self._snapshots.taken[tensor], dtype=self._case.dtypes[tensor]))
        return into

    # --- tiles ---

    def _tile(self, tile: Tile, loop: _OpenLoop, names: Names) -> None:
        into = self._names.fresh(tile.name)
        dtype = self._dtypes[tile.name]
        loop.ops.append(Compute(into=into, value=lifted(tile.value, names), dtype=dtype))
        loop.forwarded[tile.name] = into
        if tile.name not in self._choices.stored:
            return
        output = self._choices.staged.get(tile.name)
        if output is not None:
            loop.ops.append(GlobalStore(tensor=output, value=Name(name=into), staged=True))
            return
        self._storage[tile.name] = Storage(
            name=tile.name, kind="tile", dtype=dtype, axes=tile.over, extent=self._case.domain_extent(tile.over)
        )
        loop.ops.append(PrivateStore(tile=tile.name, value=Name(name=into)))

    def _tile_load(self, tile: str, loop: _OpenLoop) -> str:
        into = self._names.fresh(tile)
        dtype = self._dtypes[tile]
        output = self._choices.staged.get(tile)
        if output is None:
            loop.ops.append(PrivateLoad(into=into, tile=tile, dtype=dtype))
        else:
            index = natural_index(self._program.tensor(output))
            loop.ops.append(GlobalLoad(into=into, tensor=output, index=index, dtype=dtype, staged=True))
        return into

    def _recompute(self, use: Use, loop: _OpenLoop, names: Names) -> None:
        """Compute the tiles that the statement needs, in program order: once per statement, again in the next."""
        for name in self._needed_tiles(use):
            tile = self._tiles[name]
            into = self._names.fresh(name)
            loop.ops.append(Compute(into=into, value=lifted(tile.value, names), dtype=self._dtypes[name]))
            names[name] = into

    def _needed_tiles(self, use: Use) -> list[str]:
        return [name for name in self._tiles if name in use.inlined]


def _into(use: Use, output: str) -> bool:
    return isinstance(use.statement, Store) and use.statement.tensor == output
