"""TileLang's C → canonical C. The samples are shaped as TileLang 0.1.15 prints them; no TileLang is needed."""

from __future__ import annotations

import pytest

from search.lowering.contract import Argument
from search.lowering.cpu.dialect import canonical

SAMPLE = """// tilelang target: c
#include <tl_templates/cpp/common.h>

int32_t kernel_kernel(float* g_x, float* g_y, int32_t d_rows);
float tuner_exp(float);
int32_t kernel_kernel(float* g_x, float* g_y, int32_t d_rows) {
  for (int32_t bx = 0; bx < d_rows; ++bx) {
    TUNER_UNROLL(4);
    for (int32_t p = 0; p < 4; ++p) {
      TUNER_SIMD();
      for (int32_t q = 0; q < 16; ++q) {
        g_y[q] = tuner_exp(g_x[q]);
      }
    }
%s  }
  return 0;
}


"""


def test_only_the_function_stays_with_restrict_and_pragmas() -> None:
    kernel = canonical(SAMPLE % "")
    assert kernel.c_text.startswith(
        "int32_t kernel(float* __restrict__ g_x, float* __restrict__ g_y, int32_t d_rows) {\n"
    )
    assert "#pragma GCC unroll 4\n    for (int32_t p" in kernel.c_text
    assert "#pragma omp simd\n      for (int32_t q" in kernel.c_text
    assert "TUNER_" not in kernel.c_text
    assert "common.h" not in kernel.c_text
    assert kernel.arguments == (
        Argument(name="x", kind="tensor"),
        Argument(name="y", kind="tensor"),
        Argument(name="rows", kind="dim"),
    )


def test_renaming_touches_the_definition_only() -> None:
    kernel = canonical(SAMPLE % "")
    assert kernel.renamed("k_1") == kernel.c_text.replace("int32_t kernel(", "int32_t k_1(")


def test_a_mark_whose_loop_is_gone_vanishes() -> None:
    text = canonical(SAMPLE % "    TUNER_UNROLL(2);\n    TUNER_SIMD();\n    g_y[0] = g_x[0];\n").c_text
    assert text.count("#pragma") == 2
    assert "TUNER_" not in text


def test_streaming_kernels_end_with_a_fence() -> None:
    assert "fence" not in canonical(SAMPLE % "").c_text
    text = canonical(SAMPLE % "    tuner_stream((&(g_y[0])), (&(b_y[0])), 16);\n").c_text
    assert text.endswith("  tuner_stream_fence();\n  return 0;\n}\n")


def test_text_of_another_form_is_refused() -> None:
    with pytest.raises(ValueError, match="no kernel function"):
        canonical("int main(void) { return 0; }")


def test_arguments_that_share_a_buffer_have_no_restrict() -> None:
    text = canonical(SAMPLE % "", shared=("g_x", "g_y")).c_text
    assert text.startswith("int32_t kernel(float* g_x, float* g_y, int32_t d_rows) {\n")
    assert "float* __restrict__ g_x, float* g_y" in canonical(SAMPLE % "", shared=("g_y",)).c_text


def test_a_kernel_without_contraction_is_wrapped_in_the_option() -> None:
    text = canonical(SAMPLE % "", contraction=False).c_text
    assert text.index("push_options") < text.index('optimize ("fp-contract=off")') < text.index("int32_t kernel(")
    assert "d_rows) {\n#pragma STDC FP_CONTRACT OFF\n" in text
    assert text.endswith("}\n#pragma GCC pop_options\n")
