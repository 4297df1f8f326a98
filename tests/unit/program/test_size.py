"""How much a case asks for: bytes, points and nodes, each with its limit."""

from __future__ import annotations

from search.program.case import Case
from search.program.document import parse_program
from search.program.library import kernels
from search.program.limits import ADMITTED_LIMITS, DEFAULT_LIMITS, Limits
from search.program.report import Report
from search.program.resolve import resolve_case
from search.program.size import check_size, program_nodes
from search.program.verify import verify


def counted(rows: int, trips: int, **extents: int) -> Case:
    """A program with small tensors and a lot to do: it counts points over its axes, in a loop."""
    axes = {name: {"dim": f"d{name}", "kind": "column"} for name in extents}
    program = {
        "name": "counted",
        "params": {"trips": 1},
        "dims": ["rows", *(f"d{name}" for name in extents)],
        "axes": {"row": {"dim": "rows", "kind": "row"}, **axes},
        "tensors": {"y": {"axes": ["row"], "role": "output"}},
        "body": [
            {"reducer": {"name": "r", "op": "sum"}},
            {"loop": {"count": "trips", "body": [{"update": {"reducer": "r", "over": list(extents), "value": "1"}}]}},
            {"finalize": {"reducer": "r", "into": "total"}},
            {"store": {"tensor": "y", "over": [], "value": "total"}},
        ],
    }
    dims = {"rows": rows, **{f"d{name}": extent for name, extent in extents.items()}}
    parsed = parse_program(program)
    assert verify(parsed) == ()
    return Case(kernel="counted", program=parsed, params={"trips": trips}, dims=dims, dtypes={"y": "float32"})


def size_problems(case: Case, limits: Limits = DEFAULT_LIMITS) -> list[str]:
    report = Report()
    check_size(case, limits, report)
    assert {problem.field for problem in report.problems} <= {"/dims"}
    return [problem.message for problem in report.problems]


def test_small_tensors_do_not_make_endless_work() -> None:
    assert size_problems(counted(1, 1, a=2**12, b=2**12, c=2**7 - 1)) == []
    [domain] = size_problems(counted(1, 1, a=2**12, b=2**12, c=2**7))
    assert domain == "/body/1/loop/body/0/update runs over 2147483648 points of a, b, c per row; make the dims smaller"
    assert size_problems(counted(2**14, 2**10, a=2**10)) == [
        f"the statements visit {2**14 * (2**10 * (2**10 + 1) + 1)} points together "
        "(rows × columns × loop trips); make the dims smaller"
    ]
    assert size_problems(counted(1, 2**31 - 1, a=2**10))
    assert size_problems(counted(2**14, 2**10, a=2**9)) == []
    assert size_problems(counted(2**14, 2**10, a=2**10), ADMITTED_LIMITS) == []


def test_tensors_that_are_too_much_for_memory_are_the_only_problem() -> None:
    case = resolve_case({"kernel": "softmax", "dims": {"rows": 2**24, "cols": 2**24}}, admitted=True)
    [message] = size_problems(case)
    assert message == f"the tensors take {2**51} bytes together, too much for memory; make the dims smaller"


def test_nodes_are_statements_operands_and_operations() -> None:
    assert program_nodes(counted(1, 1, a=1).program) == 5 + 2
    softmax = kernels()["softmax"].program
    assert program_nodes(softmax) == 5 + (1 + 4 + 1 + 3 + 3)
