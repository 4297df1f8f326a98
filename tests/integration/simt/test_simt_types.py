"""The types and functions that kernels are simulated with, value by value against numpy. One library for all."""

from __future__ import annotations

from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

from search.lowering.contract import Argument, Launch
from search.measuring.simt.build import build
from search.measuring.simt.native import Library
from search.measuring.simt.protocol import ORDERS
from search.measuring.simt.source import translate

THREADS = 64
LAUNCH = Launch(threads_per_block=THREADS, rows_per_block=1, dynamic_shared_bytes=0)
KERNEL = """
extern "C" __global__ void __launch_bounds__(64) {symbol}({parameters}) {{
{body}
}}
"""
KERNELS: dict[str, tuple[str, str]] = {
    "half_to_float": (
        "const half_t *h, float *f",
        "for (int i = threadIdx.x; i < 65536; i += 64) f[i] = float(h[i]);",
    ),
    "bfloat_to_float": (
        "const bfloat16_t *h, float *f",
        "for (int i = threadIdx.x; i < 65536; i += 64) f[i] = float(h[i]);",
    ),
    "float_to_both": (
        "const float *f, half_t *h, bfloat16_t *b",
        "for (int i = threadIdx.x; i < 65536; i += 64) { h[i] = half_t(f[i]); b[i] = bfloat16_t(f[i]); }",
    ),
    "native_to_both": (
        "const float *f, half_t *h, bfloat16_t *b",
        "for (int i = threadIdx.x; i < 65536; i += 64) {\n"
        "  __half n = __float2half_rn(f[i]); __nv_bfloat16 m = __float2bfloat16_rn(f[i]);\n"
        "  h[i] = half_t(n); b[i] = bfloat16_t(m);\n}",
    ),
    "limits": (
        "float *f",
        "if (threadIdx.x == 0) {\n"
        "  f[0] = float(std::numeric_limits<half_t>::infinity());\n"
        "  f[1] = float(std::numeric_limits<bfloat16_t>::infinity());\n"
        "  f[2] = float(std::numeric_limits<__half>::infinity());\n"
        "  f[3] = float(std::numeric_limits<__nv_bfloat16>::infinity());\n"
        "  f[4] = CUDART_INF_F; f[5] = float(CUDART_INF_FP16); f[6] = float(CUDART_INF_BF16);\n"
        "  f[7] = float(std::numeric_limits<half_t>::lowest());\n"
        "  f[8] = float(std::numeric_limits<bfloat16_t>::lowest());\n"
        "  f[9] = float(std::numeric_limits<__half>::lowest());\n"
        "  f[10] = float(std::numeric_limits<__nv_bfloat16>::lowest());\n"
        "}",
    ),
    "extremes": (
        "const float *f, float *g",
        "if (threadIdx.x == 0) {\n"
        "  g[0] = fmaxf(f[0], f[1]); g[1] = fminf(f[0], f[1]); g[2] = max(f[0], f[1]); g[3] = min(f[1], f[0]);\n"
        "  g[4] = tl::MaxOp()(f[0], f[1]); g[5] = tl::MinOp()(f[1], f[0]); g[6] = tl::MaxOpNan()(f[0], f[1]);\n"
        "  half_t nan = half_t(f[0]), one = half_t(f[1]);\n"
        "  g[7] = float(tl::MaxOp()(nan, one)); g[8] = float(tl::MaxOpNan()(nan, one));\n"
        "  bfloat16_t bnan = bfloat16_t(f[0]), bone = bfloat16_t(f[1]);\n"
        "  g[9] = float(tl::MinOp()(bone, bnan)); g[10] = float(tl::MinOpNan()(bone, bnan));\n"
        "}",
    ),
    "vectors": (
        "const float *f, float *g",
        "if (threadIdx.x == 0) {\n"
        "  float4 v = *(float4 *)(f + 4); *(float4 *)(g + 0) = make_float4(v.w, v.z, v.y, v.x);\n"
        "  uint1 packed = tl::pack_half2(half_t(f[1]), half_t(f[2]));\n"
        "  float2 both = __half22float2(tl::from_uint1<__half2>(packed)); g[4] = both.x; g[5] = both.y;\n"
        "  unsigned pair = __pack_half2(bfloat16_t(f[1]), bfloat16_t(f[2]));\n"
        "  float2 other = __bfloat1622float2(*(__nv_bfloat162 *)&pair); g[6] = other.x; g[7] = other.y;\n"
        "  float2 sum = tl::add2(make_float2(f[1], f[2]), make_float2(f[4], f[5])); g[8] = sum.x; g[9] = sum.y;\n"
        "  g[10] = sizeof(float4) + 100 * sizeof(half_t) + 1000 * alignof(float4); g[11] = sizeof(uint2);\n"
        "}",
    ),
    "shuffles": (
        "int *x",
        "int t = threadIdx.x, lane = t & 31;\n"
        "x[t] = __shfl_xor_sync(0xffffffffu, t, 5);\n"
        "x[64 + t] = __shfl_sync(0xffffffffu, t, 3, 8);\n"
        "x[128 + t] = __shfl_up_sync(0xffffffffu, t, 2, 16);\n"
        "x[192 + t] = __shfl_down_sync(0xffffffffu, t, 3);\n"
        "if (lane < 8) x[256 + t] = __shfl_xor_sync(0xffu, t, 1);\n"
        "else x[256 + t] = __shfl_xor_sync(0xffffff00u, t, 2);\n"
        "x[320 + t] = (int)__ballot_sync(0xffffffffu, lane % 3 == 0);\n"
        "x[384 + t] = __any_sync(0xffffffffu, t == 40) + 2 * __all_sync(0xffffffffu, t < 32);\n"
        "__syncwarp();\n"
        "double wide = __shfl_xor_sync(0xffffffffu, 1.5 * t, 31); x[448 + t] = (int)(2 * wide);\n"
        "half_t narrow = tl::shfl_xor_sync(0xffffffffu, half_t(t), 16); x[512 + t] = (int)float(narrow);",
    ),
    "indices": (
        "int *x",
        "x[blockIdx.x * blockDim.x + threadIdx.x] =\n"
        "1000 * gridDim.x + 100 * (threadIdx.y + threadIdx.z) + threadIdx.x;",
    ),
}


@pytest.fixture(scope="module")
def run(toolchain, tmp_path_factory):
    """Runs one of the kernels on arrays, in the order asked for."""
    translations = []
    for symbol, (parameters, body) in KERNELS.items():
        names = [word.replace("*", "").strip() for word in parameters.split("*")[1:]]
        arguments = [Argument(name=name.split(",")[0], kind="tensor") for name in names]
        text = KERNEL.format(symbol=symbol, parameters=parameters, body=body)
        translations.append(translate(text, symbol, arguments))
    built = build(
        translations, toolchain, Path(tmp_path_factory.mktemp("types")), timeout_seconds=120, cancelled=lambda: False
    )
    assert built.rejections == {}
    (path,) = set(built.libraries.values())
    library = Library(path)

    def one(symbol, *arrays, blocks=1, order=ORDERS[0]):
        values = [("tensor", array.ctypes.data) for array in arrays]
        launched = library.run(symbol, LAUNCH, order, blocks=blocks, values=values, seed=1)
        assert launched.kind == 0, launched.detail

    yield one
    library.close()


def aligned(count, dtype=np.float32):
    """Zeros at an address that vectors may be loaded from."""
    whole = np.zeros(count + 16, dtype=dtype)
    skip = (-whole.ctypes.data % 64) // whole.itemsize
    return whole[skip : skip + count]


EVERY_16_BITS = np.arange(65536, dtype=np.uint16)


@pytest.mark.parametrize(("symbol", "dtype"), [("half_to_float", np.float16), ("bfloat_to_float", ml_dtypes.bfloat16)])
def test_every_16_bit_number_widens_exactly(symbol, dtype, run) -> None:
    given, got = EVERY_16_BITS.view(dtype).copy(), np.zeros(65536, np.float32)
    run(symbol, given, got)
    np.testing.assert_array_equal(got, given.astype(np.float32))
    assert (np.signbit(got) == np.signbit(given.astype(np.float32)))[~np.isnan(got)].all()


def _hard_to_round() -> np.ndarray:
    """Every 16-bit number of both kinds, their midpoints, the floats beside those, and the ends of the ranges."""
    with np.errstate(invalid="ignore"):
        half = EVERY_16_BITS[::7].view(np.float16).astype(np.float32)
    bits = (EVERY_16_BITS[::11].astype(np.uint32) << 16) | 0x8000
    middle = half.view(np.uint32) | 0x1000
    parts = [half.view(np.uint32), middle, middle + 1, middle - 1, bits, bits + 1, bits - 1]
    special = np.array(
        [65504, 65519.996, 65520, 1e9, 3.4e38, -3.4e38, 1e-45, 6e-8, 2.9e-8, np.inf, -np.inf, np.nan], "f4"
    )
    found = np.concatenate([*parts, special.view(np.uint32)]).astype(np.uint32).view(np.float32)
    return np.resize(found, 65536)


@pytest.mark.parametrize("symbol", ["float_to_both", "native_to_both"])
def test_float32_rounds_to_nearest_even(symbol, run) -> None:
    given = _hard_to_round()
    half, bfloat = np.zeros(65536, np.float16), np.zeros(65536, ml_dtypes.bfloat16)
    run(symbol, given, half, bfloat)
    with np.errstate(over="ignore", invalid="ignore"):
        np.testing.assert_array_equal(half, given.astype(np.float16))
        np.testing.assert_array_equal(bfloat.astype(np.float32), given.astype(ml_dtypes.bfloat16).astype(np.float32))


def test_limits_are_specialised(run) -> None:
    got = np.zeros(11, np.float32)
    run("limits", got)
    assert (got[:7] == np.inf).all()
    assert got[7] == got[9] == -65504
    largest = -float(ml_dtypes.finfo(ml_dtypes.bfloat16).max)
    assert got[8] == got[10] == largest


def test_maximum_drops_nan_as_cudas_does_and_keeps_it_where_tilelang_says_so(run) -> None:
    got = np.zeros(11, np.float32)
    run("extremes", np.array([np.nan, 1], np.float32), got)
    assert (got[:6] == 1).all()
    assert got[6] == 1, "TileLang's MaxOpNan drops NaN of float32: a GPU gives that too"
    assert got[7] == 1
    assert np.isnan(got[8])
    assert got[9] == 1
    assert np.isnan(got[10])


def test_vectors_and_packed_pairs(run) -> None:
    given, got = aligned(8), aligned(12)
    given[:] = [0, 1.5, -2.25, 0, 4, 5, 6, 7]
    run("vectors", given, got)
    assert list(got) == [7, 6, 5, 4, 1.5, -2.25, 1.5, -2.25, 5.5, 2.75, 16 + 200 + 16000, 8]


@pytest.mark.parametrize("order", ORDERS, ids=lambda order: order.name)
def test_warp_operations_in_every_order(order, run) -> None:
    got = np.zeros(576, np.int32)
    run("shuffles", got, order=order)
    t = np.arange(64)
    lane, first = t & 31, t & ~31
    expected = [
        t ^ 5,
        first + (lane & ~7) + 3,
        np.where((lane & 15) >= 2, t - 2, t),
        np.where(lane + 3 < 32, t + 3, t),
        np.where(lane < 8, t ^ 1, t ^ 2),
        np.full(64, sum(1 << n for n in range(0, 32, 3)), np.int64).astype(np.uint32).view(np.int32),
        np.where(t < 32, 2, 1),
        3 * (t ^ 31),
        t ^ 16,
    ]
    for place, one in enumerate(expected):
        np.testing.assert_array_equal(got[64 * place : 64 * (place + 1)], one, err_msg=f"operation {place}")


def test_thread_and_block_indices(run) -> None:
    got = np.zeros(192, np.int32)
    run("indices", got, blocks=3)
    np.testing.assert_array_equal(got, 3000 + np.tile(np.arange(64), 3))
