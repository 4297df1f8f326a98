"""The tolerance tells algorithms apart: any order of a two-pass layer_norm passes, a one-pass variance does not."""

from __future__ import annotations

import pytest

from search.lowering.contract import Argument
from search.program.resolve import resolve_case

SIGNATURE = "const float *x, const float *weight, const float *bias, float *y, int32_t rows"
ARGUMENTS = tuple(
    Argument(name=name, kind="dim" if name == "rows" else "tensor") for name in ("x", "weight", "bias", "y", "rows")
)

BODY = """
for (int r = 0; r < rows; r++, x += COLS, y += COLS) {{
    float lane[LANES] = {{0}}, total = 0, squares = 0, mean, rstd;
    for (int c = 0; c < COLS; c++) lane[c % LANES] += x[c];
    for (int l = 0; l < LANES; l++) {{ total += lane[l]; lane[l] = 0; }}
    mean = total / COLS;
    {variance}
    rstd = 1 / sqrtf(squares + 1e-5f);
    for (int c = 0; c < COLS; c++) y[c] = (x[c] - mean) * rstd * weight[c] + bias[c];
}}
return 0;
"""
TWO_PASS = """
for (int c = 0; c < COLS; c++) { float d = x[c] - mean; lane[c % LANES] += d * d; }
for (int l = 0; l < LANES; l++) squares += lane[l];
squares /= COLS;
"""
ONE_PASS = """
for (int c = 0; c < COLS; c++) lane[c % LANES] += x[c] * x[c];
for (int l = 0; l < LANES; l++) squares += lane[l];
squares = squares / COLS - mean * mean;
"""


@pytest.mark.parametrize("shape", [(3, 3), (5, 65), (64, 1024)])
@pytest.mark.parametrize("lanes", [1, 2, 8, 32])
def test_every_order_of_two_passes_is_accepted(lanes, shape, measurer, build) -> None:
    rows, cols = shape
    case = resolve_case({"kernel": "layer_norm", "dims": {"rows": rows, "cols": cols}})
    item = build(
        "two-pass",
        BODY.format(variance=TWO_PASS),
        cols=cols,
        outside=f"#define LANES {lanes}",
        signature=SIGNATURE,
        arguments=ARGUMENTS,
    )
    (result,) = measurer.check(case, [item])
    assert result.rejection is None, result.rejection


@pytest.mark.parametrize("shape", [(5, 65), (64, 1024)])
@pytest.mark.parametrize("lanes", [1, 32])
def test_a_one_pass_variance_is_refused_at_a_large_offset(lanes, shape, measurer, build) -> None:
    rows, cols = shape
    case = resolve_case({"kernel": "layer_norm", "dims": {"rows": rows, "cols": cols}})
    item = build(
        "one-pass",
        BODY.format(variance=ONE_PASS),
        cols=cols,
        outside=f"#define LANES {lanes}",
        signature=SIGNATURE,
        arguments=ARGUMENTS,
    )
    (result,) = measurer.check(case, [item])
    assert (result.rejection.stage, result.rejection.detail["input_set"]) == ("correctness", "large_offset")
    assert result.checks.inputs[0].failures == 0
