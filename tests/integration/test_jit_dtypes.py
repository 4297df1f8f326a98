"""A kernel of 16-bit and integer tensors, built for real, called with torch and numpy, and found in a catalog."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import torch

sys.path.append(str(Path(__file__).parent))

import jit_catalog as made

import catalogs
from catalogs import ANY_TOOLCHAIN, Hit, Miss, this_device
from search import jit

pytestmark = pytest.mark.toolchain
PICKED: dict[str, Any] = {
    "name": "picked",
    "dims": ["rows", "cols"],
    "axes": {"row": {"dim": "rows", "kind": "row"}, "col": {"dim": "cols", "kind": "column"}},
    "tensors": {
        "x": {"axes": ["row", "col"], "role": "input", "dtype": "bfloat16"},
        "scale": {"axes": ["col"], "role": "input", "dtype": "float16"},
        "label": {"axes": ["row"], "role": "input", "dtype": "int32"},
        "y": {"axes": ["row", "col"], "role": "output", "like": "x"},
        "bits": {"axes": ["row"], "role": "output", "dtype": "int32"},
    },
    "body": [
        {"reduce": {"into": "total", "op": "sum", "over": ["col"], "value": "select(index(col) == label, x, 0.0)"}},
        {"reduce": {"into": "all", "op": "xor", "over": ["col"], "value": "index(col) * label"}},
        {"store": {"tensor": "y", "over": ["col"], "value": "x * scale + total"}},
        {"store": {"tensor": "bits", "over": [], "value": "all"}},
    ],
}


def test_torch_and_numpy_calls_of_a_mixed_kernel(tmp_path: Path) -> None:
    rows, cols = 5, 70
    kernel = jit.build(PICKED, dims={"rows": rows, "cols": cols}, candidate={"width": 16}, store_dir=tmp_path)
    generator = torch.Generator().manual_seed(1)
    x = torch.randn((rows, cols), generator=generator).bfloat16()
    scale = torch.rand(cols, generator=generator).half()
    label = torch.tensor([0, 69, 3, -1, 2**31 - 1], dtype=torch.int32)

    picked = torch.tensor([x[0, 0], x[1, 69], x[2, 3], 0.0, 0.0])
    want = (x.double() * scale.double() + picked[:, None].double()).bfloat16()
    products = np.arange(cols, dtype=np.int64) * label.numpy().astype(np.int64)[:, None]
    bits = np.bitwise_xor.reduce(products.astype(np.int32), axis=1)

    y, found = kernel(x, scale, label)
    assert (y.dtype, found.dtype) == (torch.bfloat16, torch.int32)
    torch.testing.assert_close(y, want, rtol=2**-7, atol=1e-6)
    assert found.tolist() == bits.tolist()
    compiled = torch.compile(lambda *tensors: kernel(*tensors), backend="eager", fullgraph=True)
    assert torch.equal(compiled(x, scale, label)[0], y)

    arrays = (x.view(torch.int16).numpy().view(ml_dtypes.bfloat16), scale.numpy(), label.numpy())
    again, again_bits = kernel(*arrays)
    assert again.dtype == ml_dtypes.bfloat16
    assert again.view(np.int16).tolist() == y.view(torch.int16).tolist()
    assert again_bits.tolist() == bits.tolist()
    assert kernel(x[:0], scale, label[:0])[0].shape == (0, cols)

    opened = catalogs.open(made.catalog_of(kernel))
    asked: dict[str, Any] = {
        "kernel": "picked", "dims": {"rows": rows, "cols": cols}, "device": this_device(), "toolchain": ANY_TOOLCHAIN
    }  # fmt: skip
    assert isinstance(opened.lookup(**asked), Hit)
    assert isinstance(opened.lookup(**asked, dtypes={"x": "bfloat16"}), Hit)
    missed = opened.lookup(**asked, dtypes={"x": "float16"})
    assert isinstance(missed, Miss)
    assert set(missed.nearest[0].differs) == {"dtypes.x", "dtypes.y"}
    del asked["dims"]
    assert isinstance(opened.bind(**asked, dtypes={"x": "bfloat16"})(rows, cols), Hit)
