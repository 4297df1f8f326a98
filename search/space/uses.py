"""What each statement of a program reads, and which inputs a candidate may keep in private storage.

Candidate-independent facts, read from the desugared program. ``inline_tiles`` gives the view of
``materialize=recompute``: tile statements vanish and each statement reads what its tiles' expressions read.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass

from search.program.case import Case
from search.program.ir import (
    Affine,
    Expr,
    Finalize,
    Let,
    Load,
    Loop,
    Name,
    Program,
    Reduce,
    Reducer,
    StageBoundary,
    Statement,
    Store,
    Tensor,
    Tile,
    Update,
)
from search.program.walk import children, natural, statements


@dataclass(frozen=True, kw_only=True)
class LoopEnd:
    """Stands behind the last statement of a loop's body."""


@dataclass(frozen=True, kw_only=True)
class Use:
    """One statement of the desugared body with everything it reads, each distinct read once, in order."""

    index: int
    """Position in the desugared body, loop bodies counted where they stand (a ``LoopEnd`` has its loop's)."""
    statement: Statement | LoopEnd
    over: tuple[str, ...]
    """() for statements that run once per row."""
    loads: tuple[Load, ...]
    tiles: tuple[str, ...]
    """Tiles read from storage or from an earlier op (with ``inline_tiles`` none)."""
    inlined: frozenset[str]
    """Tiles whose expressions it evaluates itself (with ``inline_tiles``, else none)."""
    scalars: frozenset[str]
    """Params, dims, row scalars, loop indices and finalized arrays named by its expressions."""
    loops: tuple[int, ...] = ()
    """The loops around it, outermost first, by index."""

    @property
    def distributed(self) -> bool:
        """True when the statement runs over column axes."""
        return bool(self.over)

    def reads(self, tensor: str) -> bool:
        """True when the statement loads the tensor."""
        return any(load.tensor == tensor for load in self.loads)


def statement_uses(program: Program, *, inline_tiles: bool = False) -> tuple[Use, ...]:
    """The uses of every statement of a *desugared* program, in order; with ``inline_tiles`` its tiles are left out.

    A loop is followed by the uses of its body and a ``LoopEnd``.
    """
    tiles = {s.name: s for _, s in statements(program.body) if isinstance(s, Tile)}
    numbers = itertools.count()

    def uses(body: tuple[Statement, ...], loops: tuple[int, ...]) -> Iterator[Use]:
        for statement in body:
            index = next(numbers)
            if isinstance(statement, Loop):
                yield _use(statement, index, loops, _Reads(tiles, inline_tiles))
                yield from uses(statement.body, (*loops, index))
                yield _use(LoopEnd(), index, loops, _Reads(tiles, inline_tiles))
            elif not (inline_tiles and isinstance(statement, Tile)):
                reads = _Reads(tiles, inline_tiles)
                for expr in statement_expressions(statement):
                    reads.visit(expr)
                yield _use(statement, index, loops, reads)

    return tuple(uses(program.body, ()))


def _use(statement: Statement | LoopEnd, index: int, loops: tuple[int, ...], reads: _Reads) -> Use:
    return Use(
        index=index,
        statement=statement,
        over=statement.over if isinstance(statement, Update | Tile | Store) else (),
        loads=tuple(reads.loads),
        tiles=tuple(reads.tiles),
        inlined=frozenset(reads.inlined),
        scalars=frozenset(reads.scalars),
        loops=loops,
    )


def statement_expressions(statement: Statement) -> tuple[Expr, ...]:
    """The expressions that a desugared statement evaluates, in evaluation order (a loop's: those of its body)."""
    match statement:
        case Reducer():
            return () if statement.seed is None else (statement.seed,)
        case Update():
            where = () if statement.where is None else (statement.where,)
            return (*where, *statement.index, statement.value)
        case Let() | Tile() | Store():
            return (statement.value,)
        case Loop():
            return tuple(expr for inner in statement.body for expr in statement_expressions(inner))
        case Finalize() | StageBoundary():
            return ()
        case Reduce():
            raise TypeError("reduce is sugar: desugar the program before asking what its statements read")


def column_axes(program: Program, tensor: Tensor) -> tuple[str, ...]:
    """The tensor's axes without the row axis, in its own order."""
    return tuple(axis for axis in tensor.axes if axis != program.row_axis.name)


def natural_index(tensor: Tensor) -> tuple[Affine, ...]:
    """The subscripts of a tensor's bare name."""
    return tuple(natural(axis) for axis in tensor.axes)


def own_element(case: Case, load: Load) -> bool:
    """True when a load reads, of its tensor, the element at the current point, and moves with a column axis.

    Its subscripts are the natural ones. On an axis of one point any subscript is: the axis may be projected.
    """
    tensor = case.program.tensor(load.tensor)
    subscripts = zip(tensor.axes, load.index, strict=True)
    return not row_level(case.program, load) and all(
        subscript == natural(axis) or case.extent(axis) == 1 for axis, subscript in subscripts
    )


def row_level(program: Program, load: Load) -> bool:
    """True when no subscript moves with a column axis: one element per row."""
    columns = {axis.name for axis in program.axes if axis.kind == "column"}
    return not any(name in columns for subscript in load.index for name, _ in subscript.terms)


def wide_axes(case: Case, axes: tuple[str, ...]) -> tuple[str, ...]:
    """The axes of more than one point: those that decide which lane owns an element."""
    return tuple(axis for axis in axes if case.extent(axis) != 1)


def streamable(case: Case, store: Store) -> bool:
    """True for a distributed store to an output whose row lies in memory in the order of the traversal.

    Only such a store can bypass the cache with whole lines (``nontemporal``).
    """
    tensor = case.program.tensor(store.tensor)
    return (
        bool(store.over)
        and tensor.axes[:1] == (case.program.row_axis.name,)
        and wide_axes(case, tensor.axes[1:]) == wide_axes(case, store.over)
    )


def storable_inputs(case: Case, uses: tuple[Use, ...]) -> tuple[str, ...]:
    """Inputs that could live in private storage: each lane reads only what it owns.

    An input carries the row axis and a column axis, is read only at its own elements (an input with any shifted
    read ``x[col + half]`` or fixed column ``x[0]`` would need another lane's element), and every statement that reads
    it runs over the same axes in the same order, namely the input's own (axes of one point aside).
    ``uses`` are those of the desugared program. In declaration order.
    """
    program = case.program
    names = []
    for tensor in program.tensors:
        columns = column_axes(program, tensor)
        if tensor.role != "input" or not columns or len(columns) == len(tensor.axes):
            continue
        readers = [use for use in uses if use.reads(tensor.name)]
        loads = {load for use in readers for load in use.loads if load.tensor == tensor.name}
        orders = {wide_axes(case, use.over) for use in readers}
        if loads and all(own_element(case, load) for load in loads) and len(orders) == 1:
            (order,) = orders
            if sorted(order) == sorted(wide_axes(case, columns)):
                names.append(tensor.name)
    return tuple(names)


def cacheable_inputs(case: Case, uses: tuple[Use, ...]) -> tuple[str, ...]:
    """Inputs that the word ``cache`` keeps in private storage: storable ones that at least two statements read.

    An input that an output is written over needs one reader behind that store: nothing but a snapshot serves it.
    Counted on the program as written (desugared): ``recompute`` changes how often a statement's tiles are read, not
    which inputs are eligible.
    """
    stores = {use.statement.tensor: use.index for use in uses if isinstance(use.statement, Store)}
    overwritten = {tensor.aliases: stores[tensor.name] for tensor in case.program.tensors if tensor.aliases}
    return tuple(
        name
        for name in storable_inputs(case, uses)
        if len(readers := [use.index for use in uses if use.reads(name)]) >= 2
        or readers[-1] > overwritten.get(name, readers[-1])
    )


class _Reads:
    """Collects the distinct reads of some expressions, in order."""

    def __init__(self, tiles: dict[str, Tile], inline_tiles: bool) -> None:
        self._tile_statements = tiles
        self._inline_tiles = inline_tiles
        self.inlined: set[str] = set()
        self.loads: dict[Load, None] = {}
        self.tiles: dict[str, None] = {}
        self.scalars: set[str] = set()

    def visit(self, expr: Expr) -> None:
        # A worklist, not recursion: a chain of inlined tiles is deeper than Python's stack.
        pending = [expr]
        while pending:
            node = pending.pop()
            match node:
                case Load():
                    self.loads[node] = None
                case Name(name=name) if name in self._tile_statements:
                    if not self._inline_tiles:
                        self.tiles[name] = None
                    elif name not in self.inlined:
                        self.inlined.add(name)
                        pending.append(self._tile_statements[name].value)
                case Name(name=name):
                    self.scalars.add(name)
                case _:
                    pending.extend(reversed(children(node)))
