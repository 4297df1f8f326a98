"""How much a case asks for: bytes of its tensors, points that its statements visit, nodes that its planning walks."""

from __future__ import annotations

import math

from search.program.case import Case
from search.program.ir import Loop, Program, Reduce, Statement, Store, Tile, Update
from search.program.limits import Limits
from search.program.report import Report
from search.program.walk import placed, statements, walk


def check_size(case: Case, limits: Limits, report: Report) -> None:
    """Reports what is too much for memory, for the int32 that kernels count in, and for anybody's patience."""
    sizes = [math.prod(case.shape(tensor)) * case.element_bytes(tensor.name) for tensor in case.program.tensors]
    if sum(sizes) > limits.tensor_bytes:
        message = f"the tensors take {sum(sizes)} bytes together, too much for memory; make the dims smaller"
        report.add("/dims", dict(case.dims), message, f"<= {limits.tensor_bytes} bytes")
        return  # then the points are too many for the same reason
    for pointer, statement in statements(case.program.body):
        if isinstance(statement, Update | Reduce | Tile | Store):
            points = case.domain_extent(statement.over)
            if points > limits.domain_points:
                over = ", ".join(statement.over)
                message = f"{pointer} runs over {points} points of {over} per row; make the dims smaller"
                report.add("/dims", dict(case.dims), message, f"<= {limits.domain_points} points")
    points = case.rows * _points_per_row(case.program.body, case)
    if points > limits.points:
        message = f"the statements visit {points} points together (rows × columns × loop trips); make the dims smaller"
        report.add("/dims", dict(case.dims), message, f"<= {limits.points} points")


def program_nodes(program: Program) -> int:
    """Operands and operations of all expressions, and the statements: what planning one candidate walks."""
    found = 0
    for pointer, statement in statements(program.body):
        found += 1 + sum(1 for part in placed(statement, pointer) for _ in walk(part.expr))
    return found


def _points_per_row(body: tuple[Statement, ...], case: Case) -> int:
    points = 0
    for statement in body:
        if isinstance(statement, Update | Reduce | Tile | Store):
            points += case.domain_extent(statement.over)
        elif isinstance(statement, Loop):
            trips = {**case.params, **case.dims}[statement.count]
            points += max(0, int(trips)) * (1 + _points_per_row(statement.body, case))
    return points
