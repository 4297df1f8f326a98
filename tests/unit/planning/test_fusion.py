"""The rules of the semantics page, "Fusion legality", each with what it admits and what it refuses.

One table, to be held beside the page: a clause as the page has it, examples, and per example the verdict of the one
admission function (``admitted``, or the rule that refuses) and what the planner does with it.
"""

import re
from dataclasses import dataclass, replace

import pytest

from search.outcome import Rejected
from search.planning.build import build_schedule
from search.planning.fusion import RULES, Admitted, Refused, admit
from search.planning.schedule import DistributedLoop, GlobalLoad, PrivateStore
from search.program.case import Case
from search.program.desugar import desugar
from search.program.document import parse_program
from search.program.dtypes import tensor_dtypes
from search.program.ir import Tensor
from search.program.verify import verify, verify_case
from search.space.uses import statement_uses

TENSORS = {
    "x": (["row", "col"], "input"),
    "w": (["col"], "input"),
    "m": (["row", "k", "col"], "input"),
    "y": (["row", "col"], "output"),
    "z": (["row", "col"], "output"),
    "n": (["row", "k", "col"], "output"),
    "s": (["row"], "output"),
}
AXES = {
    "row": {"dim": "rows", "kind": "row"},
    "k": {"dim": "ks", "kind": "column"},
    "col": {"dim": "cols", "kind": "column"},
}


def total(value="x", over=("col",), into="total"):
    return {"reduce": {"into": into, "op": "sum", "over": list(over), "value": value}}


def tile(value="x * x", over=("col",)):
    return {"tile": {"name": "t", "over": list(over), "value": value}}


def store(value="x / total", tensor="y", over=("col",)):
    return {"store": {"tensor": tensor, "over": list(over), "value": value}}


def explicit(update, **reducer):
    return (
        {"reducer": {"name": "acc", "op": "sum", **reducer}},
        update,
        {"finalize": {"reducer": "acc", "into": "total"}},
    )


def update(value="x", over=("col",), **more):
    return {"update": {"reducer": "acc", "over": list(over), "value": value, **more}}


SAVED = store("total", "s", ())
STAGE = {"stage": {}}


@dataclass(frozen=True, kw_only=True)
class Example:
    """A program, and what becomes of fusing one of its inputs."""

    clause: str
    name: str
    body: tuple
    verdict: str
    tensor: str = "x"
    ks: int = 3
    cols: int = 24
    materialize: str = "private"
    aliases: tuple = ()
    """(output, input) pairs."""
    snapshot: bool = True
    """Whether the traversal also keeps a snapshot."""
    rejection: str = "fusion_illegal"
    """The candidate's rejection; an input that no lane could keep is turned down before fusion is asked."""


FIRST = "the first operation that reads elements is a closed, unordered reduction (a unit-extent map may stand between)"
AXIS = "non-unit axes correspond one to one in identity and extent; units may be inserted or projected; permuted"
EFFECT = "no write, stage or unknown effect between load and consumer: tensors may alias as declared"
ONCE = "the first reduction reads each element once"
LATER = "later consumers: the traversal also stores the snapshot; none: nothing is allocated"
BACK = "strict folds, mismatched indices, wrappers, cross-scope uses and multi-use intermediates fall back"

TABLE = (
    # --- (1) the first consumer
    Example(clause=FIRST, name="a reduction comes first", body=(total(), store()), verdict="admitted"),
    Example(
        clause=FIRST,
        name="an elementwise store comes first",
        body=(store("x * 2", "z"), total(), SAVED),
        verdict="not_a_reduction",
    ),
    Example(
        clause=FIRST,
        name="a map of one element stands between",
        body=(tile(), total("t"), store()),
        cols=1,
        verdict="admitted",
    ),
    Example(
        clause=FIRST,
        name="a map of many elements stands between",
        body=(tile(), total("t"), store()),
        verdict="non_unit_wrapper",
    ),
    Example(
        clause=FIRST,
        name="the same map is recomputed in the reduction",
        body=(tile(), total("t"), store()),
        materialize="recompute",
        verdict="admitted",
    ),
    Example(
        clause=FIRST,
        name="a map of one element ends in a store",
        body=(tile(), store("t + w", "z"), total(), SAVED),
        cols=1,
        verdict="not_a_reduction",
    ),
    # --- (2) axes
    Example(
        clause=AXIS,
        name="every axis, in the input's order",
        body=(total("m", ("k", "col")), store("m - total", "n", ("k", "col"))),
        tensor="m",
        verdict="admitted",
    ),
    Example(
        clause=AXIS,
        name="a complete reduction permutes its axes",
        body=(total("m", ("col", "k")), store("m - total", "n", ("col", "k"))),
        tensor="m",
        verdict="admitted",
    ),
    Example(
        clause=AXIS,
        name="a later reader in another order owns other elements",
        body=(total("m", ("col", "k")), store("m - total", "n", ("k", "col"))),
        tensor="m",
        verdict="admitted",
        rejection="input_not_cacheable",
    ),
    Example(
        clause=AXIS,
        name="a unit axis is inserted",
        body=(total("x", ("k", "col")), store()),
        ks=1,
        verdict="admitted",
    ),
    Example(
        clause=AXIS,
        name="an axis of two points is inserted",
        body=(total("x", ("k", "col")), store()),
        ks=2,
        verdict="mismatched_index",
        rejection="input_not_cacheable",
    ),
    Example(
        clause=AXIS,
        name="a unit axis is projected",
        body=(total("m[0, col]"), store("m[0, col] - total")),
        tensor="m",
        ks=1,
        verdict="admitted",
    ),
    Example(
        clause=AXIS,
        name="an axis of two points is projected",
        body=(total("m[0, col]"), store("m[0, col] - total")),
        tensor="m",
        ks=2,
        verdict="mismatched_index",
        rejection="input_not_cacheable",
    ),
    Example(
        clause=AXIS,
        name="only some of the axes are reduced at a fixed point of the others",
        body=(total("m[1, col]"), store("m - total", "n", ("k", "col"))),
        tensor="m",
        verdict="mismatched_index",
        rejection="input_not_cacheable",
    ),
    # --- (3) effects
    Example(
        clause=EFFECT,
        name="a write to a buffer that aliases nothing",
        body=(store("w * 2", "z"), total(), store()),
        verdict="admitted",
    ),
    Example(
        clause=EFFECT,
        name="a write that aliases the input",
        body=(store("w * 2", "z"), total(), store()),
        aliases=(("z", "x"),),
        verdict="effect_between",
    ),
    Example(
        clause=EFFECT,
        name="an aliasing write behind the reduction",
        body=(total(), store("x / total", "z")),
        aliases=(("z", "x"),),
        verdict="admitted",
    ),
    Example(
        clause=EFFECT,
        name="a stage behind the reduction",
        body=(total(), STAGE, store()),
        verdict="admitted",
    ),
    Example(
        clause=EFFECT,
        name="a stage in front of the load",
        body=(store("w * 2", "z"), STAGE, total(), store()),
        verdict="admitted",
    ),
    Example(
        clause=EFFECT,
        name="a stage between a map of one element and the reduction",
        body=(tile(), STAGE, total("t"), store()),
        cols=1,
        verdict="effect_between",
    ),
    Example(
        clause=EFFECT,
        name="a stage over which a recomputed tile would carry the load",
        body=(tile(), STAGE, total("t"), store()),
        materialize="recompute",
        verdict="effect_between",
    ),
    # --- (4) each element once
    Example(clause=ONCE, name="one read, used twice", body=(total("x * x"), store()), verdict="admitted"),
    Example(
        clause=ONCE,
        name="one read, under a condition",
        body=(*explicit(update(where="x > 0 and w > 0")), store()),
        verdict="admitted",
    ),
    Example(
        clause=ONCE,
        name="the element and a fixed one",
        body=(total("x * x[0]"), store()),
        verdict="repeated_read",
        rejection="input_not_cacheable",
    ),
    Example(
        clause=ONCE,
        name="one element, written in two ways",
        body=(total("m * m[0, col]", ("k", "col")), store("m[0, col] - total")),
        tensor="m",
        ks=1,
        verdict="repeated_read",
    ),
    # --- what is kept
    Example(clause=LATER, name="a later store", body=(total(), store()), verdict="admitted"),
    Example(
        clause=LATER,
        name="a later reduction in the same traversal",
        body=(total(), total("x * x", into="squares"), store("total / squares", "s", ())),
        verdict="admitted",
    ),
    Example(clause=LATER, name="no later reader", body=(total(), SAVED), verdict="admitted", snapshot=False),
    # --- what falls back
    Example(clause=BACK, name="an unordered fold", body=(*explicit(update()), store()), verdict="admitted"),
    Example(
        clause=BACK,
        name="a strict fold",
        body=(*explicit(update(), order="strict"), store()),
        verdict="strict_fold",
    ),
    Example(
        clause=BACK,
        name="a reducer array is not one closed result",
        body=(*explicit(update(index=["index(col)"]), shape=["col"]), store()),
        verdict="reducer_array",
    ),
    Example(
        clause=BACK,
        name="a fixed column",
        body=(total("x[0] * w"), store()),
        verdict="mismatched_index",
        rejection="input_not_cacheable",
    ),
    Example(
        clause=BACK,
        name="a first use inside a loop, another scope than the load's",
        body=(*explicit({"loop": {"count": "ks", "body": [update()]}}), store()),
        verdict="cross_scope",
    ),
    Example(
        clause=BACK,
        name="the loop comes after the first use",
        body=(
            total(),
            *(
                {"reducer": {"name": "again", "op": "sum"}},
                {
                    "loop": {
                        "count": "ks",
                        "body": [{"update": {"reducer": "again", "over": ["col"], "value": "x * total"}}],
                    }
                },
                {"finalize": {"reducer": "again", "into": "more"}},
            ),
            store("more", "s", ()),
        ),
        verdict="admitted",
    ),
    Example(
        clause=BACK,
        name="an intermediate that is used twice",
        body=(tile(), total("t"), store("t / total + x")),
        verdict="multi_use_intermediate",
    ),
    Example(
        clause=BACK,
        name="recomputed, it is no intermediate",
        body=(tile(), total("t"), store("t / total + x")),
        materialize="recompute",
        verdict="admitted",
    ),
)
EXAMPLES = pytest.mark.parametrize("example", TABLE, ids=[example.name for example in TABLE])


def case_of(example: Example) -> Case:
    """The example's case: a program that the verifier accepts, whatever the lowerings can do."""
    words = set(re.findall(r"[a-z]+", repr(example.body)))
    tensors = {name: declared for name, declared in TENSORS.items() if name in words}
    axes = (words | {axis for declared, _ in tensors.values() for axis in declared} | {"row"}) & set(AXES)
    aliases = dict(example.aliases)
    document = {
        "name": "example",
        "dims": [declared["dim"] for axis, declared in AXES.items() if axis in axes or declared["dim"] in words],
        "axes": {axis: declared for axis, declared in AXES.items() if axis in axes},
        "tensors": {
            name: {"axes": declared, "role": role, "dtype": "float32"}
            | ({"aliases": aliases[name]} if name in aliases else {})
            for name, (declared, role) in tensors.items()
        },
        "body": list(example.body),
    }
    program = parse_program(document)
    assert verify(program) == ()
    dims = {"rows": 2, "ks": example.ks, "cols": example.cols}
    case = Case(
        kernel="example",
        program=program,
        params={},
        dims={dim: dims[dim] for dim in program.dims},
        dtypes=tensor_dtypes(program, {}),
        from_document=True,
    )
    assert verify_case(case) == ()
    return case


def ask(case, tensor="x", *, recompute=False):
    return admit(case, statement_uses(desugar(case.program), inline_tiles=recompute), tensor)


@EXAMPLES
def test_the_admission_function(example):
    answer = ask(case_of(example), example.tensor, recompute=example.materialize == "recompute")
    if example.verdict == "admitted":
        assert isinstance(answer, Admitted), answer
        assert bool(answer.later_consumers) == example.snapshot
    else:
        assert isinstance(answer, Refused), answer
        assert answer.rule == example.verdict


@pytest.mark.parametrize("example", TABLE, ids=[example.name for example in TABLE])
def test_the_planner_does_what_the_admission_says(example, cpu):
    case = case_of(example)
    words = ((example.tensor, "cache"),)
    built = build_schedule(case, cpu(input=words, fusion="fused", materialize=example.materialize))
    if example.rejection != "fusion_illegal":
        assert (built.stage, built.reason) == ("constraints", example.rejection)
    elif example.verdict != "admitted":
        assert isinstance(built, Rejected), built
        assert (built.stage, built.reason, built.detail["rule"]) == ("constraints", "fusion_illegal", example.verdict)
        assert built.detail["tensor"] == example.tensor
        assert built.detail["message"] == RULES[example.verdict]
        separate = build_schedule(case, cpu(input=words, materialize=example.materialize))
        assert not isinstance(separate, Rejected), "kept without fusion, the input is legal"
    else:
        loops = [step for step in built.steps if isinstance(step, DistributedLoop)]
        reads = [op for loop in loops for op in loop.ops if isinstance(op, GlobalLoad) and op.tensor == example.tensor]
        assert len(reads) == 1, "global memory is read once, by the first consumer"
        site = ask(case, example.tensor, recompute=example.materialize == "recompute").site
        (first,) = (loop for loop in loops if site in loop.statements)
        kept = [op for op in first.ops if isinstance(op, PrivateStore) and op.tile == f"{example.tensor}_snapshot"]
        assert len(kept) == example.snapshot
        assert [t.kind for t in built.private_tiles].count("snapshot") == example.snapshot
        assert all(loop.purpose == "statements" for loop in loops), "no loop only copies"


def test_every_rule_has_an_example():
    assert {example.verdict for example in TABLE} == {"admitted", *RULES} - {"not_read"}


def test_an_input_that_nothing_reads():
    case = case_of(TABLE[0])
    extra = (*case.program.tensors, Tensor(name="unread", axes=("row", "col"), role="input"))
    answer = ask(replace(case, program=replace(case.program, tensors=extra)), "unread")
    assert answer == Refused(tensor="unread", rule="not_read", statement=None)


def test_an_admission_names_its_statements():
    assert ask(case_of(TABLE[0])) == Admitted(tensor="x", site=1, later_consumers=(3,))


PARTLY = (store("w - m", "n", ("k", "col")), total(), store(), total("m * m", ("k", "col"), into="squares"))


def test_partly_fusable_inputs(cpu):
    """``x`` can be fused and ``m`` cannot: both cached and fused is refused by name, ``x`` alone is a candidate."""
    example = Example(
        clause=BACK, name="partly", body=(*PARTLY, store("squares", "s", ())), verdict="not_a_reduction", tensor="m"
    )
    case = case_of(example)
    both = build_schedule(case, cpu(input="cache", fusion="fused"))
    assert isinstance(both, Rejected)
    assert (both.detail["tensor"], both.detail["rule"]) == ("m", "not_a_reduction")
    alone = build_schedule(case, cpu(input=(("m", "reload"), ("x", "cache")), fusion="fused"))
    assert [tile.name for tile in alone.private_tiles] == ["x_snapshot"]
    separate = build_schedule(case, cpu(input="cache"))
    assert {tile.name for tile in separate.private_tiles} == {"x_snapshot", "m_snapshot"}


@pytest.mark.parametrize("kernel", ["softmax", "rms_norm", "layer_norm"])
def test_the_kernels_fuse(kernel_case, kernel):
    assert isinstance(ask(kernel_case(kernel)), Admitted)
