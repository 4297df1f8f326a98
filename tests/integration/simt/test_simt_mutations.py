"""Generated kernels agree with the oracle; each way of breaking one is caught, and named for what it is."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest

from search.measuring.protocol import MeasureResult
from search.measuring.simt.build import build
from search.measuring.simt.native import Library
from search.measuring.simt.protocol import ORDERS
from search.measuring.simt.run import Simulator
from search.measuring.simt.source import translate
from search.outcome import Rejected

sys.path.insert(0, str(Path(__file__).parent))
from conftest import case_of, cuda_text, item, launch

SOFTMAX = "softmax_769_w256_cache"
RMS_NORM = "rms_norm_192_w16_r4"
SHAPE = launch(256, shared=1024)

# A barrier that leaves out one of its two phases: what TileLang's collective would be without it.
PARTLY = """
template <int left_out> struct Without {
  template <int phase = 0> static TL_DEVICE void sync() { if (phase != left_out) __syncthreads(); }
};
"""
LOAD, STORE = "if ((((i * 256) + ((int)threadIdx.x)) < 769)) {", "if (((i_3 * 256) + ((int)threadIdx.x)) < 769) {"
AFTER_MAX, AFTER_SUM = "  m[0] = am[0];\n", "  s[0] = asum[0];\n"
SUM = "tl::AllReduce<tl::SumOp, 256, 1, 0, "
BARRIER = "tl::NamedBarrier<256>>"
FIRST_THREAD = "if (blockIdx.x == 0 && threadIdx.x == 0)"

MUTATIONS: dict[str, tuple[dict[str, str], str]] = {
    "no barrier between write and read": ({SUM + BARRIER: SUM + "Without<2>>"}, "depends_on_thread_order|wrong_values"),
    "no barrier between read and write": ({SUM + BARRIER: SUM + "Without<1>>"}, "depends_on_thread_order|wrong_values"),
    "a process started": ({AFTER_MAX: AFTER_MAX + f"  {FIRST_THREAD} fork();\n"}, "forked"),
    "half of the block at a barrier": (
        {AFTER_SUM: AFTER_SUM + "  if (threadIdx.x < 128) __syncthreads();\n"},
        "simulation_deadlock",
    ),
    "two barriers taken for one": (
        {
            AFTER_MAX: AFTER_MAX
            + "  if (threadIdx.x < 128) {\n    __syncthreads();\n  } else {\n    __syncthreads();\n  }\n"
        },
        "divergent_barrier",
    ),
    "a barrier for half a warp": ({SUM + BARRIER: SUM + "tl::NamedBarrier<48>>"}, "bad_barrier"),
    "half of a warp at a shuffle": (
        {AFTER_MAX: AFTER_MAX + "  if ((threadIdx.x & 31) < 16) m[0] = __shfl_xor_sync(0xffffffffu, m[0], 1);\n"},
        "simulation_deadlock",
    ),
    "a shuffle without its own lane": (
        {AFTER_MAX: AFTER_MAX + "  m[0] = __shfl_xor_sync(0x0000ffffu, m[0], 1);\n"},
        "bad_warp_mask",
    ),
    "half the width": ({SUM: "tl::AllReduce<tl::SumOp, 128, 1, 0, "}, "wrong_values|nan_mismatch"),
    "counted twice": ({"asum[0] = (asum[0] + expf": "asum[0] = (asum[0] + 2.0f * expf"}, "wrong_values"),
    "a tail that is not stored": ({STORE: STORE.replace("769", "768")}, "unwritten_elements"),
    "a sum without a start": (
        {"  asum[0] = 0x0p+0f/*0.000000e+00*/;\n": ""},
        "depends_on_thread_order|wrong_values|nan_mismatch",
    ),
    "a maximum without a start": ({"  am[0] = -CUDART_INF_F;\n": ""}, "depends_on_thread_order"),
    "shared memory read before it is written": (
        {
            AFTER_MAX: AFTER_MAX
            + "  m[0] = m[0] + 0.0f * ((float *)workspace)[255 - threadIdx.x];\n"
            + "  ((float *)workspace)[threadIdx.x] = 1e30f;\n"
        },
        "depends_on_thread_order|nan_mismatch|wrong_values",
    ),
    "a write just before a tensor": ({AFTER_MAX: AFTER_MAX + f"  {FIRST_THREAD} Y[-1] = 1.0f;\n"}, "guard_overwritten"),
    "the right text": ({}, ""),
}
FAULTS: dict[str, tuple[dict[str, str], dict[str, object]]] = {
    "a tail load without a guard": (
        {LOAD: "if (true) {"},
        {"fault": "memory_fault", "tensor": "x", "side": "after", "offset_bytes": 0},
    ),
    "a tail store without a guard": (
        {STORE: "if (true) {"},
        {"fault": "memory_fault", "tensor": "y", "side": "after", "offset_bytes": 0},
    ),
    "a load just before a tensor": (
        {AFTER_MAX: AFTER_MAX + f"  {FIRST_THREAD} if (X[-1] == 12345.0f) m[0] = 0.0f;\n"},
        {"fault": "memory_fault", "tensor": "x", "side": "before", "offset_bytes": -4, "order": "descending"},
    ),
    "an index past a local array": (
        {"(expf((x[i_3] - m[0]))": "(expf((x[i_3 + 1] - m[0]))"},
        {"fault": "index_out_of_bounds", "message": "index 4 of an array 'float [4]'"},
    ),
    "a constant index past a local array": (
        {AFTER_SUM: "  s[0] = asum[3];\n"},
        {"fault": "index_out_of_bounds", "message": "index 3 of an array 'float [1]'"},
    ),
    "a packet past a local array": (
        {AFTER_MAX: AFTER_MAX + "  if (((float4 *)(x + 4 * blockDim.x / 256))->x == 1.0f) m[0] = 0.0f;\n"},
        {"fault": "index_out_of_bounds"},
    ),
    "a misaligned packet": (
        {AFTER_MAX: AFTER_MAX + "  if (((float4 *)(X + 1))->x == 12345.0f) m[0] = 0.0f;\n"},
        {"fault": "misaligned_access"},
    ),
    "an integer division by zero": (
        {AFTER_MAX: AFTER_MAX + "  if (256 / (int)(threadIdx.x * gridDim.y - threadIdx.x) == 7) m[0] = 0.0f;\n"},
        {"fault": "trap"},
    ),
    "a trap": ({AFTER_MAX: AFTER_MAX + "  if (threadIdx.x == 77) __trap();\n"}, {"fault": "trap", "thread": 77}),
    "a process that ends": ({AFTER_MAX: AFTER_MAX + "  if (threadIdx.x == 77) abort();\n"}, {"signal": "SIGABRT"}),
}


def mutated(fixture: str, changes: Mapping[str, str]) -> str:
    """The text of a fixture with every change made; each must find its place exactly once."""
    text = cuda_text(fixture).replace("#endif\n\nextern", f"#endif\n{PARTLY}\nextern", 1)
    for old, new in changes.items():
        assert text.count(old) == 1, old
        text = text.replace(old, new)
    return text


def items_of(mutations: Mapping[str, tuple[dict[str, str], object]]):
    return [item(name, mutated(SOFTMAX, changes), "x y", SHAPE) for name, (changes, _) in mutations.items()]


@pytest.fixture(scope="module")
def results(simulator: Simulator) -> dict[str, MeasureResult]:
    """Every mutation of one kernel, a compiler call for each fifteen."""
    case = case_of("softmax", 1024, 769)
    items = items_of(MUTATIONS) + items_of(FAULTS)
    found = list(simulator.check(case, items))
    assert [one.id for one in found] == [one.id for one in items]
    return {one.id: one for one in found}


@pytest.mark.parametrize("name", MUTATIONS)
def test_a_broken_kernel_is_caught(name: str, results: Mapping[str, MeasureResult]) -> None:
    result, reasons = results[name], MUTATIONS[name][1]
    assert result.timing == {}
    if not reasons:
        assert result.rejection is None
        assert result.checks.passed
        assert result.checks.simulated_rows == 3
        assert all(one.elements_checked >= 3 * 769 and one.guard_elements_checked for one in result.checks.inputs)
        return
    assert result.rejection.stage == ("runtime" if reasons == "forked" else "correctness"), result.rejection
    assert result.rejection.reason in reasons.split("|"), result.rejection


@pytest.mark.parametrize("name", FAULTS)
def test_a_faulting_kernel_is_caught_where_it_faults(name: str, results: Mapping[str, MeasureResult]) -> None:
    rejection, expected = results[name].rejection, FAULTS[name][1]
    assert (rejection.stage, rejection.reason) == ("runtime", "simulation_crashed"), rejection
    assert expected.items() <= rejection.detail.items(), rejection.detail


def test_a_deadlock_says_who_waits(results: Mapping[str, MeasureResult]) -> None:
    detail = results["half of the block at a barrier"].rejection.detail
    assert detail["message"].startswith(
        "of 256 threads 128 wait at a barrier, 0 in an operation of their warp, and 128"
    )
    line = mutated(SOFTMAX, MUTATIONS["half of the block at a barrier"][0]).splitlines()[detail["line"] - 1]
    assert line == "  if (threadIdx.x < 128) __syncthreads();"
    two = results["two barriers taken for one"].rejection.detail
    assert two["order"] == "ascending"


GOOD = [
    ("softmax", 1024, 65, {}, "softmax_65_w32", "x y", launch(32)),
    ("softmax", 1024, 2048, {}, "softmax_2048_w128_v4", "x y", launch(128, shared=512)),
    ("rms_norm", 9, 192, {"params": {"eps": 1e-5}}, RMS_NORM, "weight x y", launch(64, 4)),
    ("layer_norm", 5, 769, {}, "layer_norm_769_w128_r2", "bias weight x y", launch(256, 2, 1024)),
    ("softmax", 4, 512, {"dtypes": {"x": "float16"}}, "softmax_512_w64_v8_float16", "x y", launch(64, shared=256)),
    (
        "layer_norm", 3, 264, {"dtypes": dict.fromkeys(("x", "weight", "bias"), "bfloat16")},
        "layer_norm_264_w64_v4_bfloat16", "bias weight x y", launch(64, shared=256),
    ),
]  # fmt: skip


@pytest.mark.parametrize(
    ("kernel", "rows", "cols", "more", "fixture", "tensors", "shape"), GOOD, ids=lambda v: str(v)[:30]
)
def test_generated_kernels_agree_with_the_oracle(kernel, rows, cols, more, fixture, tensors, shape, simulator) -> None:
    case = case_of(kernel, rows, cols, **more)
    (result,) = simulator.check(case, [item(fixture, cuda_text(fixture), tensors, shape)])
    assert result.rejection is None, result.rejection
    assert result.checks.passed
    assert result.checks.guards_intact
    assert result.checks.inputs_unchanged
    assert result.checks.simulated_rows == min(rows, max(3, 2 * shape.rows_per_block + 1))
    assert [one.name for one in result.checks.inputs] == ["normal", "large_offset", "edge_rows"]


def test_the_launch_is_checked(simulator: Simulator) -> None:
    case, text = case_of("softmax", 3, 769), cuda_text(SOFTMAX)
    shapes = {"too little shared memory": launch(256, shared=512), "too many threads": launch(512, shared=2048)}
    small, many = simulator.check(case, [item(name, text, "x y", shape) for name, shape in shapes.items()])
    assert small.rejection.detail["fault"] == "memory_fault"
    assert "past the end of dynamic shared memory" in small.rejection.detail["message"]
    assert many.rejection == Rejected(
        stage="runtime", reason="launch_bound_exceeded", detail={"threads_per_block": 512, "launch_bound": 256}
    )


def test_what_is_not_simulated_is_refused_and_spares_the_others(simulator: Simulator) -> None:
    case, text = case_of("softmax", 3, 769), cuda_text(SOFTMAX)
    texts = {
        "ptx": mutated(SOFTMAX, {AFTER_MAX: AFTER_MAX + '  asm volatile("bar.sync 3, 256;");\n'}),
        "unknown": mutated(SOFTMAX, {AFTER_MAX: AFTER_MAX + "  m[0] = __nv_something(m[0]);\n"}),
        "good": mutated(SOFTMAX, {}),
    }
    ptx, unknown, good = simulator.check(case, [item(name, text, "x y", SHAPE) for name, text in texts.items()])
    assert (ptx.rejection.stage, ptx.rejection.reason) == ("correctness", "not_simulated")
    assert ptx.rejection.detail["constructs"] == ["inline_ptx"]
    assert unknown.rejection.detail["constructs"] == ["unknown"]
    assert "__nv_something" in unknown.rejection.detail["message"]
    assert good.checks.passed
    assert text != texts["good"]


def test_a_kernel_that_does_not_end_is_killed(work_dir, monkeypatch) -> None:
    monkeypatch.setattr("search.measuring.simt.run.own_work_seconds", lambda case: 0.0)
    endless = mutated(SOFTMAX, {AFTER_MAX: AFTER_MAX + "  volatile int more = 1;\n  while (more) {}\n"})
    case = case_of("softmax", 3, 769)
    with Simulator(work_dir, child_timeout_seconds=1.0) as impatient:
        (result,) = impatient.check(case, [item("endless", endless, "x y", SHAPE)])
    assert (result.rejection.stage, result.rejection.reason) == ("timeout", "no_result")


def test_double_counting_gives_576_for_36(toolchain, tmp_path) -> None:
    """The RFC's example: 128 threads, 8 elements, each to be counted once."""
    right = cuda_text("rfc_sum_8_of_128")
    wrong = right.replace("if (((int)threadIdx.x) < 8) {", "{").replace(
        "X[((int)threadIdx.x)]", "X[(((int)threadIdx.x) & 7)]"
    )
    two = cuda_text("rfc_two_sites")
    items = [
        item("right", right, "x y", launch(128, shared=512)),
        item("wrong", wrong, "x y", launch(128, shared=512)),
        item("two", two, "x y z", launch(128, shared=512)),
    ]
    translations = [translate(one.cuda_text, one.symbol, one.arguments) for one in items]
    built = build(translations, toolchain, tmp_path, timeout_seconds=120, cancelled=lambda: False)
    x, z, y = np.arange(1, 9, dtype=np.float32), np.arange(1, 17, dtype=np.float32), np.zeros(1, np.float32)
    arrays = {"x": x, "y": y, "z": z}
    library = Library(built.libraries["k_right"])
    expected = {"right": 36, "wrong": 576, "two": 36 + 136}
    for one, order in itertools.product(items, ORDERS):
        values = [("tensor", arrays[argument.name].ctypes.data) for argument in one.arguments]
        launched = library.run(one.symbol, one.launch, order, blocks=1, values=values, seed=3)
        assert launched.kind == 0
        assert y[0] == expected[one.id], (one.id, order.name)
    library.close()
