"""Emission as a whole: pure, free of rows, and with exactly the loops and guards that a candidate needs."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest

from search.lowering.cpu.emit import emit
from search.lowering.cpu.numerics import describe_numerics
from search.lowering.registry import LOWERINGS
from search.planning.build import build_schedule
from search.planning.schedule import Schedule
from search.program.case import Case
from search.program.resolve import resolve_case
from search.space.candidate import Candidate, CpuMapping

COPY_AND_SUM: dict[str, Any] = {
    "name": "copy_and_sum",
    "dims": ["rows", "cols"],
    "axes": {"row": {"dim": "rows", "kind": "row"}, "col": {"dim": "cols", "kind": "column"}},
    "tensors": {
        "x": {"axes": ["row", "col"], "role": "input", "dtype": "float32"},
        "y": {"axes": ["row", "col"], "role": "output", "like": "x"},
        "s": {"axes": ["row"], "role": "output", "like": "x"},
    },
    "body": [
        {"store": {"tensor": "y", "over": ["col"], "value": "x * 2"}},
        {"reduce": {"into": "total", "op": "sum", "over": ["col"], "value": "x"}},
        {"store": {"tensor": "s", "over": [], "value": "total"}},
    ],
}
"""One loop both stores and accumulates."""


def schedule(
    kernel: str, *, rows: int = 4, cols: int = 100, mapping: CpuMapping | None = None, **knobs: Any
) -> Schedule:
    base = {
        "width": 16,
        "input": "reload",
        "fusion": "separate",
        "materialize": "private",
        "vector": 1,
        "unroll": 1,
        "partials": 1,
    }
    width = knobs.get("width", 16)
    candidate = Candidate(mapping=mapping or CpuMapping(local_lanes=width), **{**base, **knobs})
    made = build_schedule(resolve_case({"kernel": kernel, "dims": {"rows": rows, "cols": cols}}), candidate)
    assert isinstance(made, Schedule), made
    return made


def text(kernel: str, **knobs: Any) -> str:
    return emit(schedule(kernel, **knobs)).tilelang_text


def test_emission_imports_neither_tilelang_nor_torch_nor_numpy() -> None:
    program = (
        "import sys\nimport search.lowering.registry, search.lowering.builder, search.lowering.store\n"
        "sys.exit(3 if {'tilelang', 'torch', 'numpy'} & set(sys.modules) else 0)"
    )
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0


def test_the_text_is_the_same_for_every_number_of_rows() -> None:
    assert text("softmax", rows=1) == text("softmax", rows=999)
    assert text("softmax", cols=100) != text("softmax", cols=101)


def test_the_mapping_s_marks_appear_only_where_they_are_asked_for() -> None:
    plain = text("softmax")
    assert "simd()" not in plain
    assert "def unroll(" not in plain
    assert "row[" not in plain
    assert "live_" not in plain
    main = text("softmax", mapping=CpuMapping(local_lanes=16, simd_scope="main"))
    everything = text("softmax", mapping=CpuMapping(local_lanes=16, simd_scope="all"))
    assert 0 < main.count("simd()\n") < everything.count("simd()\n")
    assert " unroll(4)\n" in text("softmax", unroll=4)


def test_stores_of_rows_that_may_not_exist_are_guarded() -> None:
    blocked = text("rms_norm", mapping=CpuMapping(local_lanes=16, row_block=4))
    assert "if live_slot(r, bx * 4, d_rows):" in blocked
    assert "T.min(bx * 4 + g, d_rows - 1)" in blocked
    across = text("rms_norm", mapping=CpuMapping(local_lanes=4))
    assert "if live_row(bx * 4 + s, d_rows):" in across


def test_a_streamed_store_waits_for_a_whole_pass() -> None:
    streamed = text("rms_norm", mapping=CpuMapping(local_lanes=16, nontemporal=True))
    assert "b_y = T.alloc_local((16,), F32)" in streamed
    assert "stream(T.address_of(g_y[bx, p * 16]), T.address_of(b_y[0]), 16)" in streamed
    assert "g_y[bx, e] = " in streamed, "the tail is stored plainly"


def test_rows_that_share_a_packet_stream_one_after_the_other() -> None:
    half = text("rms_norm", width=32, mapping=CpuMapping(local_lanes=16, simd_scope="all", nontemporal=True))
    lines = [line.strip() for line in half.splitlines()]
    at = lines.index("stream(T.address_of(g_y[row[s], p * 16]), T.address_of(b_y[0]), 16)")
    assert lines[at - 8 : at - 4] == [
        "for s in T.serial(2):",
        "if live_row(bx * 2 + s, d_rows):",
        "simd()",
        "for q in T.serial(16):",
    ]


def test_rows_that_stream_are_never_lanes_of_one_vector() -> None:
    case = resolve_case({"program": COPY_AND_SUM, "dims": {"rows": 4, "cols": 100}})
    knobs = {"input": "reload", "fusion": "separate", "materialize": "private", "unroll": 1, "partials": 1}

    def loop(nontemporal: bool) -> list[str]:
        mapping = CpuMapping(local_lanes=1, simd_scope="main", nontemporal=nontemporal)
        made = build_schedule(case, Candidate(width=16, vector=16, mapping=mapping, **knobs))
        assert isinstance(made, Schedule), made
        lines = [line.strip() for line in emit(made).tilelang_text.splitlines()]
        return lines[lines.index("for p in T.serial(6):") :]

    assert loop(False)[1:3] == ["simd()", "for s in T.serial(16):"]
    assert loop(True)[1:3] == ["for s in T.serial(16):", "if live_row(bx * 16 + s, d_rows):"]


def test_a_pass_shorter_than_a_line_is_stored_as_if_streaming_was_not_asked_for() -> None:
    asked, plain = (
        text("rms_norm", width=32, mapping=CpuMapping(local_lanes=8, nontemporal=nontemporal))
        for nontemporal in (True, False)
    )
    assert asked != plain, "the candidate is named in the text"
    assert [line for line in asked.splitlines() if "Candidate:" not in line] == [
        line for line in plain.splitlines() if "Candidate:" not in line
    ]


def test_partials_are_combined_before_the_lanes() -> None:
    made = text("rms_norm", partials=4)
    name = next(line.split(" = ")[0].strip() for line in made.splitlines() if "alloc_local((4, 16)" in line)
    first = made.index(f"{name}[0, w] = {name}[0, w] + {name}[2, w]")
    assert first < made.index("for l in T.serial(8 >> h):")


@pytest.mark.parametrize(
    ("half", "streams", "around"),
    [(40, False, "T.unroll(2, explicit=True)"), (40, True, "T.unroll(2, ex"), (8, False, "")],
)
def test_axes_before_the_last_one_have_a_loop_around(half: int, streams: bool, around: str) -> None:
    case = resolve_case({"kernel": "rope", "dims": {"rows": 3, "parts": 2, "half": half}})
    made = build_schedule(
        case,
        Candidate(
            width=16,
            input="reload",
            fusion="separate",
            materialize="private",
            vector=1,
            unroll=1,
            partials=1,
            mapping=CpuMapping(local_lanes=16, nontemporal=streams),
        ),
    )
    assert isinstance(made, Schedule)
    written = emit(made).tilelang_text
    # a remainder or a quotient in every element's index is what the C compiler cannot vectorise
    assert ("%" in written or "//" in written) == (not around)
    assert (f"for o in {around}" in written) == bool(around)
    assert (f"y[bx, o * {half} + p * 16]" in written) == streams


def test_a_kernel_name_that_is_no_identifier_never_reaches_the_text() -> None:
    made = schedule("softmax")
    hostile = Case(**{**vars(made.case), "kernel": '"""\nimport os'})
    with pytest.raises(ValueError, match="not an identifier"):
        emit(Schedule(**{**vars(made), "case": hostile}))


def test_numerics_name_what_the_kernel_does_and_no_more() -> None:
    softmax, rms_norm = describe_numerics(schedule("softmax")), describe_numerics(schedule("rms_norm", partials=2))
    assert "-87.33" in softmax["exp"]
    assert "max reduction" in softmax
    assert "exp" not in rms_norm
    assert rms_norm["sum reduction"] == "16 lanes x 2 partials, then a binary tree"
    assert "division" in rms_norm


def test_the_registry_serves_the_cpu() -> None:
    made = schedule("softmax")
    assert LOWERINGS["cpu"](None).emit(made) == emit(made)
