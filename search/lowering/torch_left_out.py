"""TileLang without torch: what a lowering asks of torch is names, and an import of torch takes most of TileLang's.

TileLang imports torch for what runs kernels: tensors, devices, timing. Lowering a text needs none of it, but for dtypes
as keys of tables and the answer that there is no device, for every build here names its target. Only a lowering child
may leave torch out; a process that computes with torch needs the real one.
"""

from __future__ import annotations

import importlib.metadata
import sys
from collections.abc import Mapping
from types import ModuleType
from typing import Any

TRIED = "0.1.15"
"""The TileLang whose text was found to be the same with and without torch."""
_ALIASES = {
    "half": "float16",
    "float": "float32",
    "double": "float64",
    "short": "int16",
    "int": "int32",
    "long": "int64",
}
_DTYPES = (
    *("bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"),
    *("float16", "bfloat16", "float32", "float64", "float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2"),
    *("float8_e5m2fnuz", "float8_e8m0fnu", "float4_e2m1fn_x2"),
)


class Tensor:
    """What nothing is an instance of."""

    __dlpack_c_exchange_api__ = None
    """Present, so that nobody compiles an extension that would add it."""


class Device:
    """As :class:`Tensor`."""


class Dtype:
    """One of torch's dtypes: a key."""


def leave_torch_out() -> None:
    """From now on ``import torch`` gives names without abilities; nothing is changed for a TileLang that was not tried,
    nor where torch is here already."""
    try:
        tried = importlib.metadata.version("tilelang") == TRIED
    except importlib.metadata.PackageNotFoundError:
        return
    if not tried or "torch" in sys.modules:
        return
    dtypes = {name: Dtype() for name in _DTYPES}
    dtypes |= {alias: dtypes[name] for alias, name in _ALIASES.items()}
    _module("torch", {"Tensor": Tensor, "device": Device, "dtype": Dtype, **dtypes})
    _module("torch.version", {"cuda": None, "hip": None})
    _module("torch.cuda", {"is_available": lambda: False, "_CudaDeviceProperties": Device})
    _module("torch.utils", {})
    _module("torch.utils.dlpack", {"to_dlpack": None})
    _module("torch.backends", {})
    _module("torch.backends.mps", {"is_available": lambda: False})


def _module(name: str, members: Mapping[str, Any]) -> None:
    """A package of this name, in its parent."""
    made = ModuleType(name, "Left out: see search.lowering.torch_left_out.")
    made.__path__ = []
    vars(made).update(members)
    sys.modules[name] = made
    parent, _, last = name.rpartition(".")
    if parent:
        setattr(sys.modules[parent], last, made)
