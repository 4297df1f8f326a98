"""The oracle against torch-free, loop-by-loop evaluations written here."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from search.program import reference
from search.program.case import Case
from search.program.document import parse_program
from search.program.reference import evaluate
from search.program.resolve import resolve_case
from search.program.verify import verify

AXES = {
    "row": {"dim": "rows", "kind": "row"},
    "head": {"dim": "heads", "kind": "column"},
    "col": {"dim": "cols", "kind": "column"},
}


def case(body: list[dict[str, Any]], *, tensors: dict[str, Any], dims: dict[str, int], **params: float) -> Case:
    used = {axis: spec for axis, spec in AXES.items() if spec["dim"] in dims}
    document = {"name": "probe", "params": params, "dims": list(dims), "axes": used, "tensors": tensors, "body": body}
    program = parse_program(document)
    assert verify(program) == ()
    dtypes = {tensor.name: tensor.dtype or "float32" for tensor in program.tensors}
    return Case(kernel="probe", program=program, params=params, dims=dims, dtypes=dtypes)


IN = {"axes": ["row", "col"], "role": "input"}
OUT = {"axes": ["row", "col"], "role": "output"}
PER_ROW = {"axes": ["row"], "role": "output"}


def rows_of(rows: int, cols: int, seed: int = 0) -> npt.NDArray[np.float32]:
    return np.random.default_rng(seed).normal(size=(rows, cols)).astype(np.float32)


@pytest.mark.parametrize("chunk_rows", [1, 2, 100])
def test_built_in_kernels(chunk_rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reference, "CHUNK_ELEMENTS", chunk_rows * 7)
    x, weight, bias = rows_of(5, 7), rows_of(1, 7, 1)[0], rows_of(1, 7, 2)[0]
    dims = {"rows": 5, "cols": 7}
    for name in ("softmax", "rms_norm", "layer_norm"):
        found = resolve_case({"kernel": name, "dims": dims})
        y = evaluate(found, {"x": x, "weight": weight, "bias": bias})["y"]
        for r in range(5):
            row = [float(v) for v in x[r]]
            if name == "softmax":
                total = math.fsum(math.exp(v - max(row)) for v in row)
                expected = [math.exp(v - max(row)) / total for v in row]
            elif name == "rms_norm":
                rstd = 1 / math.sqrt(math.fsum(v * v for v in row) / 7 + 1e-6)
                expected = [v * rstd * float(w) for v, w in zip(row, weight, strict=True)]
            else:
                mean = math.fsum(row) / 7
                rstd = 1 / math.sqrt(math.fsum((v - mean) ** 2 for v in row) / 7 + 1e-5)
                expected = [(v - mean) * rstd * float(w) + float(b) for v, w, b in zip(row, weight, bias, strict=True)]
            np.testing.assert_allclose(y[r], expected, rtol=1e-14, atol=1e-16)


def test_single_precision_is_really_single() -> None:
    found = resolve_case({"kernel": "softmax", "dims": {"rows": 3, "cols": 50}})
    x = rows_of(3, 50)
    double, single = evaluate(found, {"x": x})["y"], evaluate(found, {"x": x}, dtype=np.float32)["y"]
    assert single.dtype == np.float64
    assert np.array_equal(single, single.astype(np.float32))
    assert not np.array_equal(double, double.astype(np.float32))
    np.testing.assert_allclose(single, double, rtol=1e-6)


def test_several_axes_seeds_and_conditions() -> None:
    body = [
        {"reducer": {"name": "acc", "op": "sum", "seed": "bonus"}},
        {"update": {"reducer": "acc", "over": ["head", "col"], "value": "x * w", "where": "x > 0 and index(col) != 1"}},
        {"update": {"reducer": "acc", "over": ["col"], "value": "w"}},
        {"update": {"reducer": "acc", "over": [], "value": "rows"}},
        {"finalize": {"reducer": "acc", "into": "total"}},
        {"tile": {"name": "t", "over": ["col"], "value": "w - total"}},
        {"stage": {}},
        {"store": {"tensor": "y", "over": ["col", "head"], "value": "t / s * cast(index(row) + 1, float32)"}},
        {"store": {"tensor": "z", "over": [], "value": "total"}},
    ]
    tensors = {
        "x": {"axes": ["row", "head", "col"], "role": "input"},
        "w": {"axes": ["col"], "role": "input"},
        "s": {"axes": ["row"], "role": "input"},
        "y": {"axes": ["col", "row", "head"], "role": "output"},
        "z": PER_ROW,
    }
    found = case(body, tensors=tensors, dims={"rows": 3, "heads": 2, "cols": 4}, bonus=0.25)
    rng = np.random.default_rng(3)
    x, w, s = rng.normal(size=(3, 2, 4)), rng.normal(size=4), rng.normal(size=3)
    out = evaluate(found, {"x": x, "w": w, "s": s})
    for r in range(3):
        total = 0.25 + sum(w) + 3
        for h in range(2):
            for c in range(4):
                if x[r, h, c] > 0 and c != 1:
                    total += x[r, h, c] * w[c]
        assert out["z"][r] == pytest.approx(total, rel=1e-14)
        for h in range(2):
            for c in range(4):
                assert out["y"][c, r, h] == pytest.approx((w[c] - total) / s[r] * (r + 1), rel=1e-14)


def test_affine_subscripts() -> None:
    body = [{"store": {"tensor": "y", "over": ["col"], "value": "x[2*col + shift] - x[last - col] * x[0]"}}]
    tensors = {"x": {"axes": ["row", "wide"], "role": "input"}, "y": OUT}
    document = {
        "name": "probe",
        "params": {"shift": 1, "last": 7},
        "dims": ["rows", "cols", "wides"],
        "axes": {k: AXES[k] for k in ("row", "col")} | {"wide": {"dim": "wides", "kind": "column"}},
        "tensors": tensors,
        "body": body,
    }
    program = parse_program(document)
    found = Case(
        kernel="probe",
        program=program,
        params={"shift": 1, "last": 7},
        dims={"rows": 2, "cols": 4, "wides": 9},
        dtypes={"x": "float32", "y": "float32"},
    )
    x = rows_of(2, 9).astype(np.float64)
    y = evaluate(found, {"x": x})["y"]
    for r in range(2):
        for c in range(4):
            assert y[r, c] == x[r, 2 * c + 1] - x[r, 7 - c] * x[r, 0]


@pytest.mark.parametrize(("op", "nothing"), [("sum", 0.0), ("product", 1.0), ("max", -math.inf), ("min", math.inf)])
def test_a_reduction_of_nothing_is_its_identity_or_seed(op: str, nothing: float) -> None:
    update = {"update": {"reducer": "acc", "over": ["col"], "value": "x / 0.0", "where": "x > 9"}}
    close = [
        {"finalize": {"reducer": "acc", "into": "total"}},
        {"store": {"tensor": "z", "over": [], "value": "total"}},
    ]
    dims = {"rows": 2, "cols": 3}
    x = np.asarray([[1, 2, 3], [-1, 0, 9]], dtype=np.float32)
    plain = case([{"reducer": {"name": "acc", "op": op}}, update, *close], tensors={"x": IN, "z": PER_ROW}, dims=dims)
    assert evaluate(plain, {"x": x})["z"].tolist() == [nothing, nothing]
    opened = {"reducer": {"name": "acc", "op": op, "seed": "2.5"}}
    seeded = case([opened, update, *close], tensors={"x": IN, "z": PER_ROW}, dims=dims)
    assert evaluate(seeded, {"x": x})["z"].tolist() == [2.5, 2.5]


@pytest.mark.parametrize("op", ["max", "min", "sum"])
def test_nan_propagates(op: str) -> None:
    body = [
        {"reduce": {"into": "m", "op": op, "over": ["col"], "value": "x"}},
        {"store": {"tensor": "z", "over": [], "value": "m"}},
    ]
    found = case(body, tensors={"x": IN, "z": PER_ROW}, dims={"rows": 3, "cols": 3})
    nan, inf = math.nan, math.inf
    z = evaluate(found, {"x": np.asarray([[nan, 1, 2], [1, 2, nan], [-inf, 0, inf]])})["z"]
    assert np.isnan(z).tolist() == [True, True, op == "sum"]


@pytest.mark.parametrize(
    ("op", "fold"), [("and", lambda a, b: a & b), ("or", lambda a, b: a | b), ("xor", lambda a, b: a ^ b)]
)
def test_bitwise_reductions_of_integers(op: str, fold: Any) -> None:
    body = [
        {"reduce": {"into": "bits", "op": op, "over": ["col"], "value": "cast(x, int32) * 3 + index(col)"}},
        {"store": {"tensor": "z", "over": [], "value": "cast(bits, float32)"}},
    ]
    found = case(body, tensors={"x": IN, "z": PER_ROW}, dims={"rows": 2, "cols": 5})
    x = np.asarray([[7.9, -3.2, 8, 1, 2], [1, 1, 1, 1, 1]])
    for r, z in enumerate(evaluate(found, {"x": x})["z"]):
        values = [int(v) * 3 + c for c, v in enumerate(x[r])]
        expected = values[0]
        for value in values[1:]:
            expected = fold(expected, value)
        assert z == expected


def test_functions_and_operators() -> None:
    texts = {
        "exp(x)": math.exp,
        "log(abs(x))": lambda v: math.log(abs(v)),
        "sqrt(x * x)": abs,
        "rsqrt(x * x)": lambda v: 1 / abs(v),
        "tanh(x)": math.tanh,
        "erf(x)": math.erf,
        "sigmoid(x)": lambda v: 1 / (1 + math.exp(-v)),
        "min(x, 0.5) - max(x, -0.5)": lambda v: min(v, 0.5) - max(v, -0.5),
        "select(not (x < 0) or x == 1, x, -x / 3)": lambda v: v if v >= 0 else -v / 3,
        "cast(cast(x * 10, int32), float32)": lambda v: float(int(v * 10)),
        "cast(x, float16)": lambda v: float(np.float16(v)),
        "cast(x > 0 and x <= 1, float32)": lambda v: float(0 < v <= 1),
        "x * (cols / 2)": lambda v: v * 2.5,
        "select(x >= 0, 1, 2) * x": lambda v: v if v >= 0 else 2 * v,
    }
    x = rows_of(2, 5).astype(np.float64)
    for text, function in texts.items():
        body = [{"store": {"tensor": "y", "over": ["col"], "value": text}}]
        found = case(body, tensors={"x": IN, "y": OUT}, dims={"rows": 2, "cols": 5})
        expected = [[function(float(v)) for v in row] for row in x]
        np.testing.assert_allclose(evaluate(found, {"x": x})["y"], expected, rtol=1e-14, err_msg=text)


def test_bfloat16_rounds_to_nearest_even() -> None:
    body = [{"store": {"tensor": "y", "over": ["col"], "value": "cast(x, bfloat16)"}}]
    found = case(body, tensors={"x": IN, "y": OUT}, dims={"rows": 1, "cols": 5})
    x = np.asarray([[1 + 2**-8, 1 + 3 * 2**-8, 1 + 2**-8 + 2**-20, math.inf, -math.nan]])
    y = evaluate(found, {"x": x})["y"][0]
    assert y[:4].tolist() == [1.0, 1 + 2**-6, 1 + 2**-7, math.inf]
    assert math.isnan(y[4])


def test_a_strict_fold_goes_in_index_order() -> None:
    body = [
        {"reducer": {"name": "acc", "op": "sum", "order": "strict"}},
        {"update": {"reducer": "acc", "over": ["col"], "value": "x"}},
        {"finalize": {"reducer": "acc", "into": "total"}},
        {"store": {"tensor": "z", "over": [], "value": "total"}},
    ]
    found = case(body, tensors={"x": IN, "z": PER_ROW}, dims={"rows": 1, "cols": 40})
    x = np.full((1, 40), 2.0**-24, dtype=np.float32)
    x[0, 0] = 1
    # each small term is lost against 1; any other order keeps some
    assert evaluate(found, {"x": x}, dtype=np.float32)["z"].tolist() == [1.0]


def test_a_loop_repeats_its_updates() -> None:
    body = [
        {"reducer": {"name": "acc", "op": "sum"}},
        {"loop": {"count": "trips", "body": [{"update": {"reducer": "acc", "over": ["col"], "value": "x"}}]}},
        {"finalize": {"reducer": "acc", "into": "total"}},
        {"store": {"tensor": "z", "over": [], "value": "total"}},
    ]
    for trips in (0, 3):
        found = case(body, tensors={"x": IN, "z": PER_ROW}, dims={"rows": 1, "cols": 2}, trips=trips)
        assert evaluate(found, {"x": np.asarray([[1.0, 2.0]])})["z"].tolist() == [3.0 * trips]


def test_inputs_of_another_shape_are_refused() -> None:
    found = resolve_case({"kernel": "softmax", "dims": {"rows": 2, "cols": 3}})
    with pytest.raises(ValueError, match=r"x has shape \(3, 2\)"):
        evaluate(found, {"x": np.zeros((3, 2))})
