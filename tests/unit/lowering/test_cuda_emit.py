"""The text of CUDA candidates: what each knob does to it, and that nothing is read where nothing is."""

from __future__ import annotations

import re
from typing import Any

import pytest

from search.lowering.cuda.emit import emit
from search.lowering.cuda.numerics import describe_numerics
from search.outcome import Rejected
from search.planning.build import build_schedule
from search.planning.schedule import Schedule
from search.program.library import kernels
from search.program.resolve import resolve_case
from search.space.candidate import Candidate, CudaMapping


def candidate(width: int = 32, rows_per_block: int = 1, min_blocks: int = 0, **knobs: Any) -> Candidate:
    base = {"input": "reload", "fusion": "separate", "materialize": "private", "vector": 1, "unroll": 1, "partials": 1}
    mapping = CudaMapping(rows_per_block=rows_per_block, min_blocks=min_blocks)
    return Candidate(width=width, mapping=mapping, **(base | knobs))


def scheduled(kernel: str, cols: int, made: Candidate, **dtypes: str) -> Schedule:
    dims = {"rows": 9, "cols": cols}
    if "cols" not in kernels()[kernel].program.dims:
        dims = {"rows": 9, "parts": 2, "half": cols // 2}
    document: dict[str, Any] = {"kernel": kernel, "dims": dims}
    if dtypes:
        document["dtypes"] = dtypes
    schedule = build_schedule(resolve_case(document), made)
    assert isinstance(schedule, Schedule), schedule
    return schedule


def text_of(kernel: str, cols: int, made: Candidate, **dtypes: str) -> str:
    return emit(scheduled(kernel, cols, made, **dtypes)).tilelang_text


def body(text: str) -> str:
    return text[text.index("@T.prim_func") : text.index("if __name__")]


def test_a_sum_is_a_deferred_reducer_and_a_maximum_goes_through_the_collective_with_our_operation() -> None:
    text = body(text_of("softmax", 100, candidate(64)))
    assert text.count('T.alloc_reducer((1,), F32, op="sum")') == 1
    assert text.count("T.finalize_reducer(") == 1
    assert text.count('= across("Max", F32, ') == 1


@pytest.mark.parametrize(("knobs", "op"), [({"partials": 2}, "Sum"), ({"width": 1}, None)])
def test_several_accumulators_or_one_lane_leave_the_deferred_reducers(knobs: dict[str, Any], op: str | None) -> None:
    text = body(text_of("rms_norm", 300, candidate(**knobs)))
    assert "reducer" not in text.replace("_reducer", "")
    assert (f'across("{op}", ' in text) == (op is not None)


def test_reload_loops_are_unrolled_in_part_and_loops_over_registers_in_full() -> None:
    reload = body(text_of("rms_norm", 32 * 9, candidate(32, unroll=3)))
    assert reload.count("for p in T.unroll(9, unroll_factor=3):") == 2
    cache = body(text_of("rms_norm", 32 * 9, candidate(32, input="cache", unroll=4)))
    assert cache.count("for p in T.unroll(9):") == 3
    assert "unroll_factor" not in cache


@pytest.mark.parametrize(
    ("passes", "unroll", "factor"), [(2, 16, 1), (3, 16, 1), (4, 3, 2), (5, 4, 1), (12, 8, 6), (16, 15, 8), (16, 16, 8)]
)
def test_the_unroll_factor_divides_the_number_of_passes_and_stays_below_it(
    passes: int, unroll: int, factor: int
) -> None:
    """Passes that a factor leaves over stand outside the loop, and nvcc merged their loads with the next phase's."""
    text = body(text_of("rms_norm", 32 * passes, candidate(32, unroll=unroll)))
    assert text.count(f"for p in T.unroll({passes}, unroll_factor={factor}):") == 2


@pytest.mark.parametrize("cols", [65, 769, 2048])
@pytest.mark.parametrize("word", ["reload", "cache"])
def test_only_the_tail_is_guarded_and_every_load_and_store_of_it_is(cols: int, word: str) -> None:
    text = body(text_of("layer_norm", cols, candidate(64, 4, input=word)))
    full, left = divmod(cols, 64)
    reads = [line for line in text.splitlines() if re.search(r"= .*g_(x|weight|bias)\[", line)]
    guarded = [line for line in reads if f" < {cols}, g_" in line]
    # the tail reads what the full passes read
    assert len(guarded) == (len(reads) // 2 if full and left else len(reads) if left else 0)
    for line in guarded:
        assert "T.if_then_else(" in line
        assert line.endswith("T.float32(0))")


def test_several_rows_of_a_block_read_within_the_tensor_and_store_only_rows_that_are_there() -> None:
    text = body(text_of("softmax", 64, candidate(32, 4)))
    assert "row[0] = T.min(bx * 4 + tx // 32, d_rows - 1)" in text
    reads = [line for line in text.splitlines() if re.search(r"= .*g_x\[", line)]
    assert reads
    assert all("g_x[row[0], " in line for line in reads)
    stores = [at for at, line in enumerate(text.splitlines()) if line.strip().startswith("g_y[")]
    assert stores
    assert all(text.splitlines()[at - 1].strip() == "if live_row(bx * 4 + r, d_rows):" for at in stores)


def test_a_row_s_own_value_is_stored_by_one_lane() -> None:
    lines = body(text_of("row_max", 64, candidate(32, 2))).splitlines()
    at = next(at for at, line in enumerate(lines) if line.strip().startswith("g_y["))
    assert lines[at - 2].strip() == "if tx % 32 == 0:"
    assert lines[at - 1].strip() == "if live_row(bx * 2 + tx // 32, d_rows):"


def test_wide_lanes_stage_what_they_store_and_narrow_ones_store_it() -> None:
    wide = body(text_of("softmax", 512, candidate(32, vector=4)))
    assert "g_y[bx, p * 128 + k] = q_y[r, k]" in wide
    assert "q_y" not in body(text_of("softmax", 512, candidate(32)))


@pytest.mark.parametrize(("cols", "vector"), [(769, 2), (66, 4), (2044, 8)])
def test_a_vector_that_does_not_divide_the_row_is_refused_by_planning(cols: int, vector: int) -> None:
    made = build_schedule(
        resolve_case({"kernel": "softmax", "dims": {"rows": 9, "cols": cols}}), candidate(vector=vector)
    )
    assert isinstance(made, Rejected)
    assert (made.stage, made.reason) == ("constraints", "vector_not_divisor")
    assert made.detail["extent"] == cols
    assert max(made.detail["allowed"]) < vector


def test_a_cached_input_is_staged_where_it_is_kept_and_fused_it_is_read_by_the_first_reduction() -> None:
    separate = body(text_of("rms_norm", 512, candidate(32, input="cache")))
    fused = body(text_of("rms_norm", 512, candidate(32, input="cache", fusion="fused")))
    for text in (separate, fused):
        assert text.count("p_x_snapshot[r, k, p] = g_x[bx, p * 32 + k]") == 1
        assert "q_x" not in text
    assert separate.count("for p in T.unroll(16):") == 3
    assert fused.count("for p in T.unroll(16):") == 2


def test_min_blocks_is_told_to_tilelang_only_where_it_is_asked_for() -> None:
    assert "T.annotate_min_blocks_per_sm(4)" in text_of("softmax", 64, candidate(min_blocks=4))
    assert "min_blocks_per_sm" not in text_of("softmax", 64, candidate())


def test_narrow_elements_are_staged_as_they_are_stored_and_computed_in_float32() -> None:
    text = text_of("softmax", 256, candidate(32, vector=8), x="bfloat16")
    assert 'BF16 = "bfloat16"' in text
    assert "q_y = T.alloc_fragment((1, 256), BF16)" in text
    assert re.search(r"v_x_\d = T.cast\(q_x_\d\[r, k\], F32\)", text)
    assert re.search(r"q_y\[r, k\] = T.cast\(.*, BF16\)", text)


def test_buffers_that_may_be_shared_are_not_restricted_and_written_behind_a_barrier() -> None:
    document = {
        "name": "in_place",
        "dims": ["rows", "cols"],
        "axes": {"row": {"dim": "rows", "kind": "row"}, "col": {"dim": "cols", "kind": "column"}},
        "tensors": {
            "x": {"axes": ["row", "col"], "role": "input"},
            "y": {"axes": ["row", "col"], "role": "output", "aliases": "x"},
        },
        "body": [{"store": {"tensor": "y", "over": ["col"], "value": "2.0 * x"}}],
    }
    made = build_schedule(resolve_case({"program": document, "dims": {"rows": 3, "cols": 40}}), candidate())
    assert isinstance(made, Schedule)
    text = emit(made).tilelang_text
    assert "T.annotate_restrict_buffers(g_x, g_y)" in text
    assert text.index("T.sync_threads()") < text.index("g_y[bx, ")


@pytest.mark.parametrize("kernel", kernels())
@pytest.mark.parametrize(
    "made", [candidate(), candidate(16, 4, 2, vector=2, partials=2, unroll=3)], ids=["plain", "all"]
)
def test_every_kernel_of_the_library_is_emitted(kernel: str, made: Candidate) -> None:
    schedule = scheduled(kernel, 68, made)
    text = emit(schedule).tilelang_text
    compile(text, kernel, "exec")
    assert text == emit(schedule).tilelang_text
    assert describe_numerics(schedule)["accumulation"] == "float32"
