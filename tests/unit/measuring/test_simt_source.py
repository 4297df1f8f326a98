"""CUDA text → C++ text: what is changed, what is refused, how arguments are passed. No compiler."""

from __future__ import annotations

import pytest

from search.errors import ToolchainUnavailable
from search.lowering.contract import Argument, Launch
from search.measuring.simt.excerpts import cut, excerpts
from search.measuring.simt.memory import FlushBuffer
from search.measuring.simt.rows import simulated_rows, with_rows
from search.measuring.simt.source import NotSimulated, translate
from search.program.resolve import resolve_case

KERNEL = """\
#include <tl_templates/cuda/reduce.h>
#include <math_constants.h>
{before}
extern "C" __global__ void k(const float* __restrict__ x, int rows, float *y);
extern "C" __global__ void __launch_bounds__(64, 1) k(const float* __restrict__ x, int rows, float *y) {{
  extern __shared__ __align__(1024) uchar buf_dyn_shmem[];
  float acc[4];
  float4 packet;
  int i = 0;
{inside}
  y[i] = acc[0] + x[0];
}}
"""
ARGUMENTS = (
    Argument(name="x", kind="tensor"),
    Argument(name="rows", kind="dim"),
    Argument(name="y", kind="tensor"),
)


def kernel(inside: str = "", before: str = "") -> str:
    return KERNEL.format(inside=inside, before=before)


def test_the_text_stays_but_for_includes_shared_memory_and_poison() -> None:
    got = translate(kernel(before="struct Op {};"), "k", ARGUMENTS)
    assert got.preamble == "struct Op {};"
    assert "#include" not in got.text
    assert "uchar *buf_dyn_shmem = (uchar *)simt::dynamic_memory;" in got.text
    assert (
        "  alignas(16) float acc[4]; simt::poison(acc);\n  float4 packet; simt::poison(packet);\n  int i = 0;\n"
        in got.text
    )
    assert got.text.endswith("SIMT_KERNEL(k, (const float *)a[0], *(int *)a[1], (float *)a[2])\n")
    assert got.launch_bound == 64


def test_line_numbers_are_those_of_the_source() -> None:
    text = kernel(before="struct Op {};")
    got = translate(text, "k", ARGUMENTS).text.splitlines()
    assert got[0] == '#line 5 "k.cu"'
    assert got[1] == text.splitlines()[4]
    assert (
        got.index("  alignas(16) float acc[4]; simt::poison(acc);")
        == text.splitlines().index("  float acc[4];") - 4 + 1
    )


def test_shared_arrays_of_fixed_size_are_the_simulators_also_in_functions_before_the_kernel() -> None:
    before = "template <int threads, class T> T all(T value) {\n  __shared__ T workspace[threads];\n  return value;\n}"
    got = translate(kernel("  __shared__ __align__(16) float red_buf[128];", before), "k", ARGUMENTS)
    assert "static simt::StaticShared<T[threads]> workspace_shared; auto &workspace" in got.preamble
    assert "static simt::StaticShared<float[128]> red_buf_shared; auto &red_buf = red_buf_shared.memory;" in got.text


@pytest.mark.parametrize(
    ("inside", "construct"),
    [
        ('  asm volatile("bar.sync 1, 64;");', "inline_ptx"),
        ('  __asm__ __volatile__("");', "inline_ptx"),
        ("  atomicAdd(&y[0], 1.0f);", "atomics"),
        ("  AtomicAdd(&y[0], 1.0f);", "atomics"),
        ("  tl::cp_async_gs<16>(a, b);", "asynchronous_copies"),
        ("  tl::tma_load(a, b);", "asynchronous_copies"),
        ("  tl::gemm_ss<64, 64, 32>(a, b, c);", "tensor_cores"),
        ("  tl::cluster_sync();", "clusters"),
        ("  i = clock64();", "clocks"),
        ("  unsigned m = __activemask();", "active_mask"),
        ('#include "mine.h"', "unknown_include"),
        ("#include </etc/passwd>", "unknown_include"),
        ("  volatile __shared__ float odd;", "shared_memory"),
    ],
)
def test_what_has_no_simulation_is_refused_by_name(inside: str, construct: str) -> None:
    with pytest.raises(NotSimulated) as refused:
        translate(kernel(inside), "k", ARGUMENTS)
    assert refused.value.constructs == (construct,)


def test_comments_and_strings_refuse_nothing() -> None:
    translate(
        kernel('  // asm and atomicAdd(x) and __shared__ here\n  const char *s = "asm atomicAdd( tma_load";'),
        "k",
        ARGUMENTS,
    )


@pytest.mark.parametrize(
    ("symbol", "arguments", "construct"),
    [
        ("other", ARGUMENTS, "no_kernel"),
        ("k", ARGUMENTS[:2], "arguments"),
        ("k", (ARGUMENTS[1], ARGUMENTS[0], ARGUMENTS[2]), "arguments"),
    ],
)
def test_a_kernel_that_is_not_the_one_meant(symbol: str, arguments: tuple[Argument, ...], construct: str) -> None:
    with pytest.raises(NotSimulated) as refused:
        translate(kernel(), symbol, arguments)
    assert refused.value.constructs == (construct,)


def test_excerpts_take_whole_definitions() -> None:
    text = (
        "template <class A, int n = 0,\n          class B = X<int>>\nstruct Pair {\n"
        "  // } not the end\n  int f() { return '}'; }\n};\n"
        "TL_DEVICE int twice(int a) { return 2 * a; }\ntemplate <> TL_DEVICE float twice(float a) { return 2 * a; }\n"
        "TL_DEVICE int other(int a) { return twice(a); }\n"
    )
    (pair,) = cut(text, "Pair")
    assert pair.startswith("template <class A, int n = 0,")
    assert pair.endswith("'}'; }\n};")
    assert cut(text, "twice") == [
        "TL_DEVICE int twice(int a) { return 2 * a; }",
        "template <> TL_DEVICE float twice(float a) { return 2 * a; }",
    ]
    assert cut(text, "absent") == []


def test_a_tilelang_without_the_collective_is_a_toolchain_that_does_not_work() -> None:
    with pytest.raises(ToolchainUnavailable, match=r"common\.h has no fast_max"):
        excerpts("struct SumOp {};", "")


@pytest.mark.parametrize(
    ("rows", "per_block", "simulated"), [(1, 1, 1), (1024, 1, 3), (1024, 4, 9), (7, 8, 7), (64, 32, 64)]
)
def test_as_many_rows_as_the_blocks_need(rows: int, per_block: int, simulated: int) -> None:
    case = resolve_case({"kernel": "softmax", "dims": {"rows": rows, "cols": 65}})
    launch = Launch(threads_per_block=32 * per_block, rows_per_block=per_block, dynamic_shared_bytes=0)
    assert simulated_rows(case, launch) == simulated
    assert with_rows(case, simulated).rows == simulated
    assert with_rows(case, simulated).dims["cols"] == 65


def test_all_rows_where_their_number_means_something() -> None:
    program = {
        "name": "by_rows",
        "dims": ["rows", "cols"],
        "axes": {"row": {"dim": "rows", "kind": "row"}, "col": {"dim": "cols", "kind": "column"}},
        "tensors": {"x": {"axes": ["row", "col"], "role": "input"}, "y": {"axes": ["row", "col"], "role": "output"}},
        "body": [{"store": {"tensor": "y", "over": ["col"], "value": "x / rows"}}],
    }
    case = resolve_case({"program": program, "dims": {"rows": 100, "cols": 8}})
    assert simulated_rows(case, Launch(threads_per_block=32, rows_per_block=1, dynamic_shared_bytes=0)) == 100


@pytest.mark.parametrize(("shape", "dtype"), [((3, 65), "float32"), ((5,), "float16"), ((1024, 2), "int32")])
def test_a_tensor_lies_flush_against_either_end(shape: tuple[int, ...], dtype: str) -> None:
    buffer = FlushBuffer(shape, dtype)
    values = buffer.taken()
    values[:] = range(values.size) if values.size < 256 else 7
    buffer.put(values)
    page = 4096
    assert (buffer.address + buffer.array.nbytes) % page == 0
    buffer.place("head")
    buffer.put(values)
    assert buffer.address % page == 0
    assert buffer.damaged_guards() == 0
    assert (buffer.taken() == values).all()
    assert buffer.guard_elements >= 68
    size = buffer.array.nbytes
    assert buffer.locate(buffer.address - 4) == {"side": "before", "offset_bytes": -4}
    assert buffer.locate(buffer.address + 1) == {"side": "inside", "offset_bytes": 1}
    assert buffer.locate(buffer.address + size) == {"side": "after", "offset_bytes": 0}
    assert buffer.locate(1) is None
