"""TileLang's CUDA text in canonical form, and what is refused of it."""

from __future__ import annotations

import re

import pytest

from search.lowering.contract import Launch
from search.lowering.cuda.dialect import CudaKernel, canonical, header_text, launch_of
from search.lowering.cuda.mapping import MappingError, check_mapping
from search.planning.build import build_schedule
from search.planning.schedule import Schedule
from search.program.resolve import resolve_case
from search.space.candidate import Candidate, CudaMapping

LAUNCH = Launch(threads_per_block=128, rows_per_block=2, dynamic_shared_bytes=0)
SAMPLE = """\
#include "tuner.cuh"
#include <tl_templates/cuda/reduce.h>

extern "C" __global__ void kernel_kernel(const float* __restrict__ g_x, float* __restrict__ g_y, int d_rows);
extern "C" __global__ void __launch_bounds__(128, 1) kernel_kernel(\
const float* __restrict__ g_x, float* __restrict__ g_y, int d_rows) {
  g_y[0] = tl::AllReduce<tl::SumOp, LANES, 1, 0, tl::NamedBarrier<128>>::run(g_x[0]);
}
"""


def kernel(lanes: int = 64) -> CudaKernel:
    return canonical(SAMPLE.replace("LANES", str(lanes)), LAUNCH)


def schedule(width: int, rows_per_block: int) -> Schedule:
    candidate = Candidate(
        width=width,
        input="reload",
        fusion="separate",
        materialize="private",
        vector=1,
        unroll=1,
        partials=1,
        mapping=CudaMapping(rows_per_block=rows_per_block),
    )
    made = build_schedule(resolve_case({"kernel": "softmax", "dims": {"rows": 3, "cols": 200}}), candidate)
    assert isinstance(made, Schedule)
    return made


def test_arguments_keep_their_order_and_lose_their_prefix() -> None:
    assert [(one.name, one.kind) for one in kernel().arguments] == [("x", "tensor"), ("y", "tensor"), ("rows", "dim")]


def test_the_complete_text_has_our_header_inside_and_tilelang_s_in_front() -> None:
    text = kernel().renamed("k_1")
    assert re.findall(r"\b(\w+)\(const float\*", text) == ["k_1", "k_1"]
    assert '#include "' not in text
    assert text.index("#include <tl_templates/cuda/reduce.h>") < text.index("tuner_exp(float a)") < text.index("k_1(")
    assert text.count("#include <") == 1
    assert '#include "tuner.cuh"' in kernel().exported


def test_texts_of_different_kernels_are_equal_up_to_the_kernel() -> None:
    one, other = kernel(64).cuda_text, kernel(32).cuda_text
    start = one.index('extern "C"')
    assert one[:start] == other[:start]


def test_the_header_has_every_structured_monoid() -> None:
    for name in ("OnlineSoftmax", "Welford", "Argmax"):
        assert f"struct {name}Op" in header_text()


@pytest.mark.parametrize(
    "text", ["", SAMPLE.replace('#include "tuner.cuh"', ""), SAMPLE.replace("kernel_kernel", "other")]
)
def test_text_of_another_form_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="expected form"):
        canonical(text, LAUNCH)


def test_launch_comes_from_the_attributes_of_the_function() -> None:
    attributes = {"thread_extent": {"blockIdx.x": "rows", "threadIdx.x": 256}, "dyn_shared_memory_buf": 1024}
    wanted = Launch(threads_per_block=256, rows_per_block=4, dynamic_shared_bytes=1024)
    assert launch_of(attributes, rows_per_block=4) == wanted


def test_a_collective_over_other_lanes_than_the_row_s_is_refused() -> None:
    check_mapping(kernel(64), schedule(64, 2))
    with pytest.raises(MappingError, match="not over 64 consecutive lanes"):
        check_mapping(kernel(128), schedule(64, 2))
    with pytest.raises(MappingError, match="not 64"):
        check_mapping(kernel(64), schedule(64, 1))
