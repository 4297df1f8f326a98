"""Torch's side of a GPU in its own process, on the CPU: what it rotates through, and what it says when it fails."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[3]
SCRIPT = """
import json, sys
from dataclasses import replace
from search.measuring.gpu.driver import DriverFault
from search.measuring.gpu.rehearsal import RehearsalCard, Script
from search.measuring.gpu.torch_clock import HostClock
from search.measuring.gpu_torch_child import GpuTorchChild
from search.measuring.protocol import OTHER_PHASES

class Clock(HostClock):
    broken = None
    def capture(self, calls):
        self.refused = "it waits" if refusing else None
        return super().capture(calls)
    def synchronize(self):
        if self.broken:
            raise DriverFault(self.broken, "lost" if "DEVICE" in self.broken else "poisoned")

class Child(GpuTorchChild):
    def _prepare(self, bench, name, calls):
        if failing:
            self._clock.broken = failing
            raise RuntimeError("CUDA error: an illegal memory access was encountered")
        prepared = super()._prepare(bench, name, calls)
        over = prepared.over
        def noted(tensors):
            call = over(tensors)
            def once():
                found = call()
                used.append((tensors[0].data_ptr(), found["y"].data_ptr()))
                return found
            return once
        return replace(prepared, over=noted, call=noted(prepared.tensors))

def made(context):
    clock = lambda: Clock(last_level_cache_bytes=3000)
    child = Child(open_card=lambda: RehearsalCard(Script()), clock=clock, place="cpu", cache_context=context)
    handlers = child.handlers()
    handlers["case"](document={"kernel": "softmax", "dims": {"rows": 4, "cols": 64}}, work_dir=sys.argv[1])
    return child, handlers

short = {"name": "test", "warmup_seconds": 1e-4, "samples": 3, "batch_seconds": 1e-4}
said, used, failing, refusing = {}, [], None, False
import torch
torch.set_num_interop_threads = lambda count: None  # once a process
for context in ("warm", "cold"):
    child, handlers = made(context)
    for name in ("torch_eager",):
        answer = handlers["baseline"](name=name, protocol=short)
        assert answer["error"] is None, answer["error"]
        used.clear()
        handlers["pair_sample"]()
        timing = handlers["phases"](protocol=short)["timing"]
        assert all(timing[phase]["samples_seconds"] for phase in OTHER_PHASES)
        said[f"{context} {name}"] = used[:]
refusing = True
answers = [handlers["baseline"](name="torch_eager", protocol=short)]
refusing, failing = False, "CUDA_ERROR_ILLEGAL_ADDRESS"
answers.append(handlers["baseline"](name="torch_eager", protocol=short))
failing = child._clock.broken = None
answers.append(handlers["baseline"](name="torch_eager", protocol=short))
failing = "CUDA_ERROR_NO_DEVICE"
answers.append(handlers["baseline"](name="torch_eager", protocol=short))
print(json.dumps({"used": said, "answers": answers}))
"""


@pytest.fixture(scope="module")
def said(tmp_path_factory: pytest.TempPathFactory) -> Any:
    words = [sys.executable, "-c", SCRIPT, str(tmp_path_factory.mktemp("oracle"))]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def test_torch_rotates_through_as_many_copies_as_kernels_do(said: Any) -> None:
    warm, cold = said["used"]["warm torch_eager"], said["used"]["cold torch_eager"]
    assert {len({given for given, _ in warm}), len({written for _, written in warm})} == {1}
    copies = 1 + -(-2 * 3000 // (2 * 4 * 64 * 4))
    order = [given for given, _ in cold]
    assert len(set(order)) == copies > 2
    assert order[copies:] == order[:-copies], "each copy comes back only after all others"
    assert len({written for _, written in cold}) >= copies, "what it allocates rotates as well"


def test_what_failed_is_not_said_of_the_next_baseline(said: Any) -> None:
    refused, failed, again, lost = said["answers"]
    assert refused["implementation"].endswith("(not captured in a graph, dispatch included: it waits)")
    assert "implementation" not in failed
    assert "illegal memory access" in failed["error"]
    assert failed["tainted"]
    assert again["error"] is None
    assert "captured" not in again["implementation"]
    assert lost == {"event": "unavailable", "reason": "CUDA_ERROR_NO_DEVICE"}
