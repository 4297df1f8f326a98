"""The functions of tuner.h against float64, over the whole range of float32 (compiled with the product's flags)."""

from __future__ import annotations

import ctypes
import math
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from search.lowering.cpu.toolchain import COMPILE_FLAGS, HEADER, LIBRARIES, LINK_FLAGS, compiler

pytestmark = pytest.mark.toolchain
UNARY: dict[str, tuple[Callable[[float], float], float]] = {
    # name → exact function, largest error in ulp (of results that are normal numbers)
    "exp": (math.exp, 1.5),
    "log": (math.log, 1.5),
    "tanh": (math.tanh, 2.5),
    "erf": (math.erf, 1.5),
    "sigmoid": (lambda x: 1 / (1 + math.exp(-x)) if x > -700 else 0.0, 3.0),
    "sqrt": (math.sqrt, 0.501),
    "rsqrt": (lambda x: 1 / math.sqrt(x), 1.51),
    "absolute": (abs, 0.0),
}
BINARY = ("maximum", "minimum")
NARROW: dict[str, Any] = {"float16": np.float16, "bfloat16": ml_dtypes.bfloat16}
CONVERSIONS = (
    "void widen_{0}(const uint16_t *x, float *y, int n) {{ for (int i = 0; i < n; ++i) y[i] = tuner_from_{0}(x[i]); }}",
    "void narrow_{0}(const float *x, uint16_t *y, int n) {{ for (int i = 0; i < n; ++i) y[i] = tuner_to_{0}(x[i]); }}",
    "void round_{0}(const float *x, float *y, int n) {{ for (int i = 0; i < n; ++i) y[i] = tuner_round_{0}(x[i]); }}",
)
BLOCKS = (
    "void widen_block(const uint16_t *x, float *y, int n) { tuner_load_float16(y, x, n); }",
    "void narrow_block(const float *x, uint16_t *y, int n) { tuner_store_float16(y, x, n); }",
)


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    folder = tmp_path_factory.mktemp("header")
    loops = [
        f"void t_{name}(const float *x, float *y, int n) {{ for (int i = 0; i < n; ++i) y[i] = tuner_{name}(x[i]); }}"
        for name in UNARY
    ] + [
        f"void t_{name}(const float *x, const float *z, float *y, int n) "
        f"{{ for (int i = 0; i < n; ++i) y[i] = tuner_{name}(x[i], z[i]); }}"
        for name in BINARY
    ]
    loops += [text.format(dtype) for dtype in NARROW for text in CONVERSIONS] + [*BLOCKS]
    loops.append(
        "int stream_u16(uint16_t *d, const uint16_t *s, int n) "
        "{ tuner_stream_u16(d, s, n); tuner_stream_fence(); return 0; }"
    )
    loops.append(
        "int stream(float *d, const float *s, int n) { tuner_stream(d, s, n); tuner_stream_fence(); return 0; }"
    )
    loops.append(
        "void t_truncate(const float *x, float *y, int n) "
        "{ for (int i = 0; i < n; ++i) y[i] = (float)(tuner_truncate(x[i]) | 0); }"
    )
    source = folder / "loops.c"
    source.write_text('#include "tuner.h"\n' + "\n".join(loops) + "\n")
    command = [compiler(), *COMPILE_FLAGS, "-Wall", "-Werror", "-I", str(HEADER.parent), *LINK_FLAGS, str(source)]
    subprocess.run([*command, "-o", str(folder / "loops.so"), *LIBRARIES], check=True)
    return ctypes.CDLL(str(Path(folder, "loops.so")))


def call(library: ctypes.CDLL, name: str, *inputs: np.ndarray) -> np.ndarray:
    out = np.full_like(inputs[0], 7.5)
    pointers = [ctypes.c_void_p(array.ctypes.data) for array in (*inputs, out)]
    getattr(library, f"t_{name}")(*pointers, ctypes.c_int(out.size))
    return out


def everything() -> np.ndarray:
    """Normal numbers over all exponents and both signs, and a fine grid where the functions live."""
    random = np.random.default_rng(1)
    bits = random.integers(0x00800000, 0x7F800000, 20_000, dtype=np.uint32)
    spread = np.concatenate([bits, bits | np.uint32(0x80000000)]).view(np.float32)
    return np.concatenate([spread, np.linspace(-110, 110, 20_001), np.linspace(-2, 2, 20_001)]).astype(np.float32)


@pytest.mark.parametrize("name", UNARY)
def test_error_over_the_whole_range(library: ctypes.CDLL, name: str) -> None:
    function, ulps = UNARY[name]
    x = everything()
    if name in ("log", "sqrt", "rsqrt"):
        x = np.abs(x)
    if name in ("log", "rsqrt"):
        x = x[x > 0]

    def exact_of(value: float) -> float:
        try:
            return function(value)
        except OverflowError:
            return math.inf

    exact = np.array([exact_of(float(value)) for value in x])
    got = call(library, name, x)
    with np.errstate(over="ignore"):
        rounded = exact.astype(np.float32)
    infinite = np.isinf(rounded)
    np.testing.assert_array_equal(got[infinite], rounded[infinite])
    tiny = np.abs(exact) < np.finfo(np.float32).tiny
    assert np.abs(got[tiny]).max(initial=0.0) <= np.finfo(np.float32).tiny * 1.001
    rest = ~infinite & ~tiny
    error = np.abs(got[rest] - exact[rest]) / np.spacing(np.abs(rounded[rest])).astype(np.float64)
    worst = int(error.argmax())
    assert error[worst] <= ulps, f"{name}({x[rest][worst]!r}) is off by {error[worst]:.2f} ulp"


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        # at          -inf     -0    +0    +inf    NaN
        ("exp", (0.0, 1.0, 1.0, math.inf, math.nan)),
        ("log", (math.nan, -math.inf, -math.inf, math.inf, math.nan)),
        ("tanh", (-1.0, 0.0, 0.0, 1.0, math.nan)),
        ("erf", (-1.0, 0.0, 0.0, 1.0, math.nan)),
        ("sigmoid", (0.0, 0.5, 0.5, 1.0, math.nan)),
        ("sqrt", (math.nan, 0.0, 0.0, math.inf, math.nan)),
        ("rsqrt", (math.nan, -math.inf, math.inf, 0.0, math.nan)),
        ("absolute", (math.inf, 0.0, 0.0, math.inf, math.nan)),
    ],
)
def test_special_values(library: ctypes.CDLL, name: str, expected: tuple[float, ...]) -> None:
    x = np.tile(np.array([-np.inf, -0.0, 0.0, np.inf, np.nan], np.float32), 7)
    np.testing.assert_array_equal(call(library, name, x), np.tile(np.array(expected, np.float32), 7))


def test_a_nan_stays_one_whatever_its_payload(library: ctypes.CDLL) -> None:
    payloads = np.array([0x7FC00000, 0x7FC00001, 0x7FFFFFFF, 0xFFC12345, 0x7F800001], np.uint32).view(np.float32)
    for name in UNARY:
        assert np.isnan(call(library, name, np.tile(payloads, 5))).all(), name


def test_the_edge_of_overflow_is_float32_s_own(library: ctypes.CDLL) -> None:
    """exp(88.72283) is the last that float32 holds."""
    bits = np.arange(0x42B17200, 0x42B17230, dtype=np.uint32)
    x = bits.view(np.float32)
    with np.errstate(over="ignore"):
        exact = np.exp(x.astype(np.float64)).astype(np.float32)
    assert 0 < np.isinf(exact).sum() < x.size
    got = call(library, "exp", x)
    np.testing.assert_array_equal(np.isinf(got), np.isinf(exact))
    finite = np.isfinite(exact)
    np.testing.assert_allclose(got[finite], exact[finite], rtol=2e-7)


def test_denormal_arguments_of_log(library: ctypes.CDLL) -> None:
    x = np.array([1e-45, 1e-40, 1.1754942e-38], np.float32)
    exact = np.array([math.log(float(value)) for value in x])
    assert np.abs(call(library, "log", x) - exact).max() <= 1.5 * np.spacing(np.float32(103))


def test_a_cast_to_int32_is_defined_everywhere(library: ctypes.CDLL) -> None:
    """Towards zero; the smallest int32 where C promises nothing, also when the result is a float again at once."""
    x = [0.0, -0.0, 2.9, -2.9, 2147483520.0, -2147483648.0, 2147483648.0, -2147483904.0, 1e30, np.inf, -np.inf, np.nan]
    exact = [0, 0, 2, -2, 2147483520, -(2**31), -(2**31), -(2**31), -(2**31), -(2**31), -(2**31), -(2**31)]
    got = call(library, "truncate", np.tile(np.array(x, np.float32), 5))
    np.testing.assert_array_equal(got, np.tile(np.array(exact, np.float32), 5))


@pytest.mark.parametrize("name", BINARY)
def test_extremes_propagate_nan_from_either_side(library: ctypes.CDLL, name: str) -> None:
    values = np.array([np.nan, -np.inf, -1.0, 0.0, 2.5, np.inf], np.float32)
    a, b = (array.ravel().copy() for array in np.meshgrid(values, values))
    np.testing.assert_array_equal(call(library, name, a, b), getattr(np, name)(a, b))


@pytest.mark.parametrize("offset", [0, 1, 4, 15])
def test_streamed_packets_arrive_at_any_alignment(library: ctypes.CDLL, offset: int) -> None:
    source = np.arange(64, dtype=np.float32)
    whole = np.full(64 + 96, -1.0, np.float32)
    aligned = (-(whole.ctypes.data // 4)) % 16
    target = whole[aligned + offset : aligned + offset + 64]
    library.stream(ctypes.c_void_p(target.ctypes.data), ctypes.c_void_p(source.ctypes.data), 64)
    np.testing.assert_array_equal(target, source)
    assert (whole[: aligned + offset] == -1).all()
    assert (whole[aligned + offset + 64 :] == -1).all()


def convert(library: ctypes.CDLL, name: str, values: np.ndarray, dtype: Any) -> np.ndarray:
    out = np.full(values.size, 0x7777, dtype=np.uint16).astype(dtype)
    getattr(library, name)(ctypes.c_void_p(values.ctypes.data), ctypes.c_void_p(out.ctypes.data), values.size)
    return out


def same_bits(got: np.ndarray, want: np.ndarray, unsigned: Any) -> bool:
    """Equal bit for bit, NaNs by being NaNs."""
    nan = np.isnan(want)
    return bool((np.isnan(got) == nan).all() and (got.view(unsigned)[~nan] == want.view(unsigned)[~nan]).all())


@pytest.mark.parametrize(("name", "dtype"), [*((name, name) for name in NARROW), ("block", "float16")])
def test_every_16_bit_pattern_is_widened_exactly(library: ctypes.CDLL, name: str, dtype: str) -> None:
    bits = np.arange(1 << 16, dtype=np.uint16)
    with np.errstate(invalid="ignore"):  # signalling NaNs are among them
        want = bits.view(NARROW[dtype]).astype(np.float32)
    assert same_bits(convert(library, f"widen_{name}", bits, np.float32), want, np.uint32)


@pytest.mark.parametrize(("name", "dtype"), [*((name, name) for name in NARROW), ("block", "float16")])
def test_narrowing_rounds_to_nearest_even(library: ctypes.CDLL, name: str, dtype: str) -> None:
    """Every value of the dtype, every tie between two of them and its neighbours, what overflows, and any float32."""
    with np.errstate(all="ignore"):
        held = np.arange(1 << 16, dtype=np.uint16).view(NARROW[dtype]).astype(np.float32)
        finite = np.sort(held[np.isfinite(held)])
        ties = finite[1:] / 2 + finite[:-1] / 2
        largest = finite[-1] + (finite[-1] - finite[-2]) / 2
        random = np.random.default_rng(3).integers(0, 1 << 32, 300_000, dtype=np.uint64).astype(np.uint32)
        near = [np.nextafter(ties, np.float32(sign * np.inf)) for sign in (1, -1)]
        beyond = np.array([largest, -largest, np.nextafter(largest, np.float32(0)), np.inf, -np.inf], np.float32)
        x = np.concatenate([held, ties, *near, beyond, random.view(np.float32)]).astype(np.float32)
        want = x.astype(NARROW[dtype])
    got = convert(library, f"narrow_{name}", x, np.uint16).view(NARROW[dtype])
    assert same_bits(got, want, np.uint16)
    if name != "block":
        with np.errstate(invalid="ignore"):
            assert same_bits(convert(library, f"round_{name}", x, np.float32), want.astype(np.float32), np.uint32)


@pytest.mark.parametrize("shift", [0, 1, 16])
def test_two_byte_packets_stream_whole_lines_or_not_at_all(library: ctypes.CDLL, shift: int) -> None:
    source = np.arange(96, dtype=np.uint16)
    space = np.zeros(256, dtype=np.uint16)
    start = -(space.ctypes.data // 2) % 32 + shift
    library.stream_u16(ctypes.c_void_p(space[start:].ctypes.data), ctypes.c_void_p(source.ctypes.data), 96)
    assert (space[start : start + 96] == source).all()
    assert not space[:start].any()
    assert not space[start + 96 :].any()
