"""The lowering child has no torch, and lowers what a process with torch lowers."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from search.lowering import torch_left_out

EXPECTED = Path(__file__).parents[1] / "golden"
_LOWER = """
import json, sys
from search.lowering.modules import load
from search.lowering.torch_left_out import leave_torch_out
given = json.load(open(sys.argv[1]))
if given["left_out"]:
    leave_torch_out()
load()
from search.lowering.cpu import dialect as cpu
from search.lowering.cuda import dialect as cuda
print(json.dumps({
    "torch": "torch.nn" in sys.modules,
    "c": [cpu.lower_text(text).c_text for text in given["cpu"]],
    "cuda": [cuda.lower_text(text, "sm_90").cuda_text for text in given["cuda"]],
}))
"""


def lowered(texts: dict[str, list[str]], folder: Path, *, left_out: bool) -> dict[str, object]:
    """What a process of its own makes of TileLang texts."""
    asked = folder / "texts.json"
    asked.write_text(json.dumps({**texts, "left_out": left_out}))
    done = subprocess.run([sys.executable, "-c", _LOWER, str(asked)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    made: dict[str, object] = json.loads(done.stdout.splitlines()[-1])
    return made


@pytest.mark.toolchain
def test_the_code_is_the_same_with_and_without(tmp_path: Path) -> None:
    folders = {"cpu": "expected", "cuda": "expected_cuda"}
    texts = {
        target: [path.read_text() for path in sorted((EXPECTED / folder).iterdir())]
        for target, folder in folders.items()
    }
    with_torch, without = (lowered(texts, tmp_path, left_out=left_out) for left_out in (False, True))
    assert (with_torch.pop("torch"), without.pop("torch")) == (True, False)
    assert all(texts.values())
    assert without == with_torch


def test_a_tilelang_that_was_not_tried_gets_its_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch_left_out, "TRIED", "0")
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    torch_left_out.leave_torch_out()
    assert "torch" not in sys.modules
