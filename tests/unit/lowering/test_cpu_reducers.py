"""The text of deferred reducers: one collective behind a stream, one chain for a strict fold, indices inside."""

from __future__ import annotations

import re
from typing import Any

import pytest

from search.lowering.cpu.emit import emit
from search.lowering.cpu.numerics import describe_numerics
from search.planning.build import build_schedule
from search.planning.schedule import Schedule
from search.program.resolve import resolve_case
from search.space.candidate import Candidate, CpuMapping


def scheduled(body: list[dict[str, Any]], *, y: dict[str, Any] | None = None, **knobs: Any) -> Schedule:
    """A program over x: row,tile,col and its schedule for a packet of eight lanes."""
    document = {
        "name": "probe",
        "params": {"trips": 3},
        "dims": ["rows", "tiles", "cols"],
        "axes": {
            "row": {"dim": "rows", "kind": "row"},
            "tile": {"dim": "tiles", "kind": "column"},
            "col": {"dim": "cols", "kind": "column"},
        },
        "tensors": {
            "x": {"axes": ["row", "tile", "col"], "role": "input"},
            "y": {"axes": ["row", "tile"], "role": "output"} | (y or {}),
        },
        "body": [{"let": {"name": "three", "value": "cast(trips, float32)"}}, *body],
    }
    base = {"input": "reload", "fusion": "separate", "materialize": "private", "vector": 1, "unroll": 1, "partials": 1}
    lanes = knobs.pop("lanes", 8)
    candidate = Candidate(width=8, mapping=CpuMapping(local_lanes=lanes), **(base | knobs))
    case = resolve_case({"program": document, "dims": {"rows": 5, "tiles": 12, "cols": 20}})
    made = build_schedule(case, candidate)
    assert isinstance(made, Schedule), made
    return made


def lines(schedule: Schedule) -> list[str]:
    return emit(schedule).tilelang_text.splitlines()


def depth(line: str) -> int:
    return len(line) - len(line.lstrip())


STREAM = [
    {"reducer": {"name": "acc", "op": "sum"}},
    {
        "loop": {
            "count": "tiles",
            "index": "t",
            "body": [{"update": {"reducer": "acc", "over": ["col"], "value": "x[t, col]"}}],
        }
    },
    {"finalize": {"reducer": "acc", "into": "total"}},
    {"store": {"tensor": "y", "over": ["tile"], "value": "total + three"}},
]


@pytest.mark.parametrize("knobs", [{}, {"partials": 2, "vector": 4}, {"lanes": 1}])
def test_many_tiles_stream_into_one_collective(knobs: dict[str, Any]) -> None:
    text = lines(scheduled(STREAM, **knobs))
    (loop,) = [at for at, line in enumerate(text) if "for i_t in T.serial(12):" in line]
    behind = next(at for at in range(loop + 1, len(text)) if depth(text[at]) <= depth(text[loop]))
    combine = re.compile(r"a_acc\[.*\] = a_acc\[.*\] \+ a_acc\[")
    trees = [at for at, line in enumerate(text) if combine.search(line)]
    # log2 of lanes and of partials, each once in the text; and nothing of it inside the loop
    expected = {"": 1, "partials": 2, "lanes": 0}[next((name for name in ("partials", "lanes") if name in knobs), "")]
    assert len(trees) == expected
    assert all(at >= behind for at in trees)
    assert sum("partials and lanes combine" in line for line in text) == 1
    assert sum("a_acc" in line and "= f32(0.0)" in line for line in text) == 1


def test_a_strict_fold_is_one_chain_whatever_the_partials() -> None:
    body = [
        {"reducer": {"name": "acc", "op": "sum", "order": "strict"}},
        {"update": {"reducer": "acc", "over": ["tile", "col"], "value": "x"}},
        {"finalize": {"reducer": "acc", "into": "total"}},
        {"store": {"tensor": "y", "over": ["tile"], "value": "total * three"}},
    ]
    texts = []
    for partials in (1, 4):
        made = scheduled(body, partials=partials)
        text = emit(made).tilelang_text
        assert "CONTRACTION = False" in text
        assert "a_acc = T.alloc_local((1, 1), F32)" in text
        assert describe_numerics(made)["contraction"].startswith("no fma")
        assert describe_numerics(made)["strict sum reduction"] == "left fold in index order"
        texts.append(text[text.index("@T.prim_func") :])
    assert texts[0] == texts[1]
    assert "CONTRACTION" not in "".join(lines(scheduled(STREAM)))


def test_an_index_that_only_a_condition_bounds_is_clamped() -> None:
    def body(index: str, **more: Any) -> list[dict[str, Any]]:
        return [
            {"reducer": {"name": "acc", "op": "sum", "shape": ["tile"]}},
            {"update": {"reducer": "acc", "over": ["tile", "col"], "value": "x", "index": [index], **more}},
            {"finalize": {"reducer": "acc", "into": "total"}},
            {"store": {"tensor": "y", "over": ["tile"], "value": "total * three"}},
        ]

    own = "\n".join(lines(scheduled(body("index(tile)"))))
    assert "minimum_i32" not in own
    assert "a_acc = T.alloc_local((12, 8), F32)" in own
    guarded = "\n".join(
        lines(scheduled(body("cast(x, int32)", where="cast(x, int32) >= 0 and cast(x, int32) < tiles")))
    )
    assert "n_acc = minimum_i32(maximum_i32(truncate(v_x_0), 0), 11)" in guarded


def test_shared_buffers_are_named_for_the_compiler() -> None:
    body = [{"store": {"tensor": "y", "over": ["tile", "col"], "value": "x * three"}}]
    shared = {"axes": ["row", "tile", "col"], "aliases": "x"}
    assert 'SHARED = ("g_x", "g_y")' in emit(scheduled(body, y=shared)).tilelang_text
    assert "SHARED" not in emit(scheduled(body, y={"axes": ["row", "tile", "col"]})).tilelang_text
