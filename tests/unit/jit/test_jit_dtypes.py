"""Calls with 16-bit and integer tensors: which arrays are taken, and what is said of the others."""

from __future__ import annotations

import sys
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import torch

from search.errors import InvalidInput
from search.jit.kernel import Built, Kernel
from search.lowering.contract import Argument, Artifact
from search.planning.default import default_candidate
from search.program.resolve import resolve_case

NUMPY: dict[str, Any] = {"bfloat16": ml_dtypes.bfloat16, "float16": np.float16}


class Recorder:
    def __init__(self) -> None:
        self.calls: list[tuple[int, ...]] = []

    def __call__(self, *arguments: int) -> int:
        self.calls.append(arguments)
        return 0


def softmax(function: Recorder, dtype: str) -> Kernel:
    case = resolve_case({"kernel": "softmax", "dims": {"rows": 4, "cols": 6}, "dtypes": {"x": dtype}})
    artifact = Artifact(
        source_sha256="0" * 64,
        artifact_sha256="1" * 64,
        library_path="",
        library_sha256="2" * 64,
        symbol="k",
        arguments=tuple(Argument(name=name, kind="dim" if name == "rows" else "tensor") for name in ("x", "y", "rows")),
    )
    built = Built(case=case, candidate=default_candidate(case, "cpu"), artifact=artifact, origin="cached", entry=None)
    return Kernel(built, function, any_rows=False)


@pytest.mark.parametrize("dtype", NUMPY)
def test_both_libraries_tensors_of_16_bits_are_taken(dtype: str) -> None:
    native = Recorder()
    kernel = softmax(native, dtype)
    x = torch.zeros((4, 6), dtype=getattr(torch, dtype))
    y = kernel(x)
    assert y.dtype == x.dtype
    array = np.zeros((4, 6), dtype=NUMPY[dtype])
    out = kernel(array)
    assert (out.dtype, out.shape) == (array.dtype, (4, 6))
    assert kernel(array, out=out) is out
    assert native.calls == [
        (x.data_ptr(), y.data_ptr(), 4),
        (array.ctypes.data, out.ctypes.data, 4),
        (array.ctypes.data, out.ctypes.data, 4),
    ]
    assert kernel(x[:0]).shape == (0, 6)
    assert kernel(array[:0]).dtype == array.dtype
    assert len(native.calls) == 3, "no rows are no work"


@pytest.mark.parametrize("dtype", NUMPY)
def test_two_bytes_are_the_alignment_of_two_byte_elements(dtype: str) -> None:
    native = Recorder()
    kernel = softmax(native, dtype)
    raw = np.zeros(60, dtype=np.uint8)
    kernel(raw[2:50].view(NUMPY[dtype]).reshape(4, 6))
    with pytest.raises(InvalidInput) as caught:
        kernel(raw[1:49].view(NUMPY[dtype]).reshape(4, 6))
    assert [problem.field for problem in caught.value.problems] == ["/x/alignment"]
    assert len(native.calls) == 1


def test_what_has_16_bits_of_another_kind_is_refused_and_numpy_s_lack_is_named() -> None:
    kernel = softmax(Recorder(), "bfloat16")
    for wrong in (np.zeros((4, 6), np.float16), np.zeros((4, 6), np.uint16), torch.zeros((4, 6), dtype=torch.float16)):
        with pytest.raises(InvalidInput) as caught:
            kernel(wrong)
        (problem,) = caught.value.problems
        assert (problem.field, problem.allowed) == ("/x/dtype", "bfloat16")
        assert ("ml_dtypes.bfloat16" in problem.message) == isinstance(wrong, np.ndarray)


def test_without_ml_dtypes_numpy_arrays_are_refused_and_torch_tensors_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ml_dtypes", None)
    native = Recorder()
    kernel = softmax(native, "bfloat16")
    for wrong in (np.zeros((4, 6), np.float32), np.zeros((4, 6), np.float64)):
        with pytest.raises(InvalidInput) as caught:
            kernel(wrong)
        assert "numpy has no bfloat16" in caught.value.problems[0].message
    kernel(torch.zeros((4, 6), dtype=torch.bfloat16))
    assert len(native.calls) == 1
