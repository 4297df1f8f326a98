"""What a call of a built kernel costs beside the kernel: checks, dispatch, allocation. One tiny shape, one thread.

    python bench/jit_call.py            print the table
    python bench/jit_call.py --json     the same as JSON

The work of the kernel is next to nothing (2 x 16 elements), so the medians are the price of each way to call it. Every
row is sampled in turn, round after round, so that a change of the machine's mood meets all of them.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

import torch

from search import jit

ROWS, COLS, EPS = 2, 16, 1e-6
ROUNDS, CALLS = 41, 400


def ways(kernel: jit.Kernel) -> dict[str, Callable[[], Any]]:
    """Name → one call, the cheapest first."""
    x, weight, y = torch.randn(ROWS, COLS), torch.randn(COLS), torch.empty(ROWS, COLS)
    ax, aweight, ay = x.numpy(), weight.numpy(), y.numpy()
    addresses = {"x": x.data_ptr(), "weight": weight.data_ptr(), "y": y.data_ptr(), "rows": ROWS}
    words = [addresses[argument.name] for argument in kernel.built.artifact.arguments]
    native, ops = kernel._function, kernel.torch_ops()
    return {
        "bare ctypes call, nothing checked": lambda: native(*words),
        "kernel(x, weight, y), numpy": lambda: kernel(ax, aweight, ay),
        "kernel(x, weight, y), torch": lambda: kernel(x, weight, y),
        "kernel(x, weight, out=y), torch": lambda: kernel(x, weight, out=y),
        "kernel(x, weight), torch": lambda: kernel(x, weight),
        "operator, mutating": lambda: ops.mutating(x, weight, y),
        "operator, functional": lambda: ops.functional(x, weight),
        "torch.nn.functional.rms_norm": lambda: torch.nn.functional.rms_norm(x, (COLS,), weight, EPS),
    }


def measured(calls: dict[str, Callable[[], Any]]) -> dict[str, float]:
    """Median seconds of CPU time per call."""
    samples: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(ROUNDS):
        for name, call in calls.items():
            call()
            began = time.process_time()
            for _ in range(CALLS):
                call()
            samples[name].append((time.process_time() - began) / CALLS)
    return {name: statistics.median(taken) for name, taken in samples.items()}


def main() -> None:
    """Print what each way costs."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--json", action="store_true")
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        kernel = jit.build("rms_norm", dims={"rows": ROWS, "cols": COLS}, params={"eps": EPS}, store_dir=folder)
        with torch.inference_mode():
            found = measured(ways(kernel))
    if chosen.json:
        print(json.dumps({"rows": ROWS, "cols": COLS, "median_seconds": found}, indent=2))
        return
    print(f"rms_norm {ROWS}x{COLS} float32, median CPU time per call ({ROUNDS} rounds of {CALLS} calls, in turn)")
    for name, seconds in found.items():
        print(f"  {name:36} {seconds * 1e6:8.2f} us")


if __name__ == "__main__":
    main()
