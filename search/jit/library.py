"""A compiled kernel as a native function of this process. A library is loaded once and never unloaded."""

from __future__ import annotations

import ctypes
import hashlib
import os
import threading
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

from search.jit.errors import LoadFailed
from search.lowering.contract import Artifact

Function = Callable[..., int]
"""Takes an address per tensor and an int32 per dim, in the artifact's order; the interpreter lock is not held."""

_TYPES: dict[str, type[Any]] = {"tensor": ctypes.c_void_p, "dim": ctypes.c_int32}
_loaded: dict[tuple[str, str], ctypes.CDLL] = {}
_loading = threading.Lock()


def load(artifact: Artifact, *, tensors: Collection[str], dims: Collection[str]) -> Function:
    """The artifact's function, after its library was verified. LoadFailed when the file, the symbol, or the arguments
    are not what the record says."""
    check_arguments(artifact, tensors=tensors, dims=dims)
    library = _library(artifact)
    try:
        function = library[artifact.symbol]  # a new object at each access, so its types are ours alone
    except AttributeError:
        raise LoadFailed(f"{artifact.library_path}: no symbol {artifact.symbol!r}") from None
    function.argtypes = [_TYPES[argument.kind] for argument in artifact.arguments]
    function.restype = ctypes.c_int32
    return function


def check_arguments(artifact: Artifact, *, tensors: Collection[str], dims: Collection[str]) -> None:
    """LoadFailed unless the arguments are these tensors, each once, and some of these dims."""
    given = [argument.name for argument in artifact.arguments if argument.kind == "tensor"]
    sized = [argument.name for argument in artifact.arguments if argument.kind == "dim"]
    if (
        sorted(given) != sorted(tensors)
        or not set(sized) <= set(dims)
        or len(given) + len(sized) != len(artifact.arguments)
    ):
        raise LoadFailed(
            f"{artifact.symbol}: its record has the arguments {[vars(argument) for argument in artifact.arguments]}, "
            f"and the program has the tensors {list(tensors)} and the dims {list(dims)}"
        )


def _library(artifact: Artifact) -> ctypes.CDLL:
    key = (artifact.library_path, artifact.library_sha256)
    with _loading:
        if key not in _loaded:
            try:
                found = hashlib.sha256(Path(artifact.library_path).read_bytes()).hexdigest()
                if found != artifact.library_sha256:
                    raise LoadFailed(
                        f"{artifact.library_path}: its sha256 is {found}, expected {artifact.library_sha256}: "
                        "it was damaged or edited"
                    )
                _loaded[key] = ctypes.CDLL(artifact.library_path, mode=os.RTLD_NOW | os.RTLD_LOCAL)
            except OSError as error:
                raise LoadFailed(f"{artifact.library_path}: cannot be loaded: {error}") from None
        return _loaded[key]
