"""``gpu_child`` with nothing behind it: ``python -m search.measuring.gpu.rehearsal_child ENTRY SCRIPT warm|cold``.

Where a GPU would run a kernel, the float64 evaluation of the case is filled in. Times are the script's.
"""

from __future__ import annotations

import ctypes
import json
import sys
from collections.abc import Mapping
from typing import Any

import numpy as np

from search.children.entry import enter
from search.measuring.gpu.rehearsal import RehearsalCard, RehearsalDriver, Script
from search.measuring.gpu_child import GpuChild
from search.measuring.inputs import NUMPY_DTYPES
from search.measuring.serving import serve
from search.program.case import Case
from search.program.reference import evaluate


def play_case(case: Case, tensors: Mapping[str, int], *, beyond: bool) -> None:
    """Write what the case's program gives for the inputs at these addresses; ``beyond``: and one element more."""
    arrays = {tensor.name: _array(case, tensor.name, tensors[tensor.name]) for tensor in case.program.tensors}
    given = {tensor.name: arrays[tensor.name].copy() for tensor in case.program.tensors if tensor.role == "input"}
    with np.errstate(all="ignore"):
        for name, values in evaluate(case, given, dtype=np.float64).items():
            arrays[name][...] = values.astype(arrays[name].dtype)
            if beyond:
                ctypes.memset(tensors[name] + arrays[name].nbytes, 0, arrays[name].itemsize)


def _array(case: Case, name: str, address: int) -> Any:
    shape, dtype = case.shape(case.program.tensor(name)), NUMPY_DTYPES[case.dtypes[name]]
    size = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
    memory = memoryview((ctypes.c_ubyte * size).from_address(address))
    return np.frombuffer(memory, dtype=dtype).reshape(shape)


def main() -> None:
    """Enter, then serve."""
    channel = enter(sys.argv[1])
    script = Script.from_document(json.loads(sys.argv[2]))

    def play(symbol: str, tensors: Mapping[str, int], dims: Mapping[str, int]) -> None:
        assert child.bench is not None
        play_case(child.bench.case, tensors, beyond=symbol in script.scribbles)

    child = GpuChild(
        channel,
        open_card=lambda: RehearsalCard(script),
        open_driver=lambda: RehearsalDriver(script, play),
        cache_context="cold" if sys.argv[3] == "cold" else "warm",
    )
    serve(channel, child.handlers())


if __name__ == "__main__":
    main()
