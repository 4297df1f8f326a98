"""How far plain float32 evaluations of a row stray from the oracle: the yardstick of the tolerance. Child side; numpy.

Addition in float32 depends on its order, and the order is a candidate's to choose. One plain evaluation may hit the
true sum by luck, and its row would then refuse every other order. So a row is evaluated several times: pairwise, as a
left fold, and as left folds over shuffled columns; its largest error counts. Products are taken from the smallest
factor up and from the largest down as well: their order may decide between zero, infinity and NaN; how far their
roundings may add up is told by a bound, as it is of sums of a few terms. Where 16-bit dtypes make sums exact by luck,
row scalars are nudged too (``nudge.py``).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from search.measuring.nudge import nudged_programs, stretched_products, stretched_sums
from search.program.case import Case
from search.program.desugar import desugar
from search.program.ir import ROUNDED_OPS, Index, Loop, Program, Reducer, Statement
from search.program.reference import evaluate
from search.program.walk import loads, natural, placed, statements, walk

Array = npt.NDArray[Any]
Values = Mapping[str, Array]

MOST_ORDERS = 16
FEWEST_ORDERS = 3
FEWEST_ORDERS_OF_ROW_OUTPUTS = 10
"""Of one value per row only one error is seen an order, and among a thousand rows some are lucky three times."""
_ELEMENTS_PER_PASS = 1 << 24
"""Large cases are evaluated in fewer orders: with long rows no order is exact by luck in all of its elements."""


def plain_evaluations(case: Case, inputs: Values, *, seed: int) -> Iterator[Values]:
    """Every output of the case by several plain float32 evaluations, in the case's shapes, one after the other.

    The first is the left fold in the order as written. Columns are shuffled only where that cannot change the meaning.
    """
    fold = replace(case, program=left_fold(desugar(case.program)))
    yield evaluate(fold, inputs, dtype=np.float32)
    yield evaluate(case, inputs, dtype=np.float32)
    if any(
        isinstance(statement, Reducer) and statement.op == "product" for _, statement in statements(fold.program.body)
    ):
        yield evaluate(case, inputs, dtype=np.float32, product_order="ascending")
        yield evaluate(case, inputs, dtype=np.float32, product_order="descending")
    for program in (*nudged_programs(case), *stretched_products(case)):
        yield evaluate(replace(case, program=program), inputs, dtype=np.float32)
    for program in stretched_sums(case):
        yield evaluate(replace(case, program=program), inputs, dtype=np.float64)
    largest = max(math.prod(case.shape(tensor)) for tensor in case.program.tensors)
    row_outputs = any(tensor.role == "output" and len(tensor.axes) == 1 for tensor in case.program.tensors)
    fewest = FEWEST_ORDERS_OF_ROW_OUTPUTS if row_outputs else FEWEST_ORDERS
    orders = min(MOST_ORDERS, max(fewest, _ELEMENTS_PER_PASS // largest))
    generator = np.random.Generator(np.random.PCG64(seed))
    if not may_shuffle(case.program):
        # Columns mean something here; the order in which their contributions are combined still does not.
        if any(free_order(statement) for _, statement in statements(desugar(case.program).body)):
            for _ in range(orders - 2):
                yield evaluate(case, inputs, dtype=np.float32, shuffle=generator)
        return
    columns = [axis for axis in case.program.axes if axis.kind == "column"]
    for _ in range(orders - 2):
        order = {axis.name: generator.permutation(case.extent(axis.name)) for axis in columns}
        shuffled = {name: _take(case, name, array, order) for name, array in inputs.items()}
        back = {name: np.argsort(places) for name, places in order.items()}
        outputs = evaluate(fold, shuffled, dtype=np.float32)
        yield {name: _take(case, name, array, back) for name, array in outputs.items()}


def left_fold(program: Program) -> Program:
    """A desugared program whose sums and products run strictly in index order, those of structured ops too."""

    def strict(body: tuple[Statement, ...]) -> tuple[Statement, ...]:
        return tuple(
            replace(statement, order="strict")
            if isinstance(statement, Reducer) and statement.op in ROUNDED_OPS
            else replace(statement, body=strict(statement.body))
            if isinstance(statement, Loop)
            else statement
            for statement in body
        )

    return replace(program, body=strict(program.body))


def free_order(statement: Statement) -> bool:
    """True for a reducer whose result depends on an order that is the candidate's to choose."""
    return isinstance(statement, Reducer) and statement.order == "any" and statement.op in ROUNDED_OPS


def may_shuffle(program: Program) -> bool:
    """True when columns are exchangeable: no coordinate is read or found, no subscript shifted, no fold strict."""
    for pointer, statement in statements(program.body):
        if isinstance(statement, Reducer) and (statement.order == "strict" or statement.op == "argmax"):
            return False
        for part in placed(statement, pointer):
            if any(isinstance(node, Index) for node in walk(part.expr)):
                return False
            for load in loads(part.expr):
                if load.index != tuple(natural(axis) for axis in program.tensor(load.tensor).axes):
                    return False
    return True


def _take(case: Case, name: str, array: Array, order: Mapping[str, Array]) -> Array:
    for position, axis in enumerate(case.program.tensor(name).axes):
        if axis in order:
            array = np.take(array, order[axis], axis=position)
    return array
