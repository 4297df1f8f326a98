"""How each reducer of a kernel is combined: by TileLang's deferred reducers, by its collective template, or serially.

TileLang's reducers (``T.alloc_reducer``) know sum and the bitwise ops, one accumulator per lane, and updates inside
nests. Everything else keeps its partials in registers of its own and goes through ``tl::AllReduce`` with an operation
of ours: minimum and maximum (TileLang's drop NaN), product, wrapping int32 sums, several accumulators per lane,
arrays, structured ops, and reducers that rows themselves contribute to. A strict fold is one chain.
"""

from __future__ import annotations

from collections.abc import Iterator

from search.lowering.cuda.geometry import Geometry
from search.lowering.expressions import IDENTITIES
from search.lowering.indexing import join, product
from search.lowering.states import partial_arrays
from search.planning.schedule import ReducerState, RowUpdate, Schedule, flat_steps
from search.program.ir import STRUCTURED_OPS

DEFERRED = {("sum", "float32"): "sum", ("and", "int32"): "bitand", ("or", "int32"): "bitor", ("xor", "int32"): "bitxor"}
"""What TileLang's deferred reducers do as we mean it, by its name for it."""
_OPERATIONS = {
    ("sum", "float32"): "Sum",
    ("product", "float32"): "Product",
    ("max", "float32"): "Max",
    ("min", "float32"): "Min",
    ("sum", "int32"): "SumI32",
    ("product", "int32"): "ProductI32",
    ("max", "int32"): "MaxI32",
    ("min", "int32"): "MinI32",
    ("and", "int32"): "AndI32",
    ("or", "int32"): "OrI32",
    ("xor", "int32"): "XorI32",
}
_NEUTRAL = {("sum", "float32"): "f32(-0.0)"}
"""What changes nothing when it is folded in, where that is not the identity: -0 + 0 is +0."""


def deferred_reducers(schedule: Schedule, geometry: Geometry) -> frozenset[str]:
    """Names of the reducers that TileLang's deferred reducers serve."""
    by_row = {step.reducer for step, _ in flat_steps(schedule.steps) if isinstance(step, RowUpdate)}
    if geometry.width == 1 or geometry.partials > 1:
        return frozenset()
    return frozenset(
        state.name
        for state in schedule.reducers
        if (state.op, state.dtype) in DEFERRED and state.elements == 1 and not state.strict and state.name not in by_row
    )


def operation(state: ReducerState) -> str:
    """The C++ name of a scalar op."""
    return _OPERATIONS[state.op, state.dtype]


def structured(state: ReducerState) -> bool:
    """Whether partials hold several values."""
    return state.op in STRUCTURED_OPS


def reduce_name(state: ReducerState) -> str:
    """The C++ name of a structured op's collective."""
    return f"reduce_{state.op}"


def neutral(state: ReducerState) -> str:
    """Text of a value that leaves a fold's bits as they are."""
    return _NEUTRAL.get((state.op, state.dtype), IDENTITIES[state.op, state.dtype])


def slots(state: ReducerState, geometry: Geometry) -> int:
    """Scalars of each partial array: elements × partials."""
    return state.elements * (1 if state.strict else geometry.partials)


def slot(state: ReducerState, geometry: Geometry, partial: str, element: str = "0") -> str:
    """Index text of a partial."""
    return element if state.strict else join(product(element, geometry.partials), partial)


def array_lines(state: ReducerState, geometry: Geometry, dtypes: dict[str, str]) -> Iterator[str]:
    """Allocations of a reducer that keeps its own partials."""
    for held in partial_arrays(state):
        yield f"{held.text} = T.alloc_local(({slots(state, geometry)},), {dtypes[held.dtype]})"
