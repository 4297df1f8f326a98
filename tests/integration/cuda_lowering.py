"""Schedules → CUDA kernels for tests: lowered by TileLang together, in one process of their own."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from search.lowering.contract import Argument, Launch
from search.lowering.cuda.emit import emit
from search.planning.schedule import Schedule

_LOWER = """
import json, sys, traceback
from search.lowering.cuda import preamble
from search.lowering.cuda.dialect import lower_text
from search.lowering.modules import execute, load
from search.lowering.torch_left_out import leave_torch_out
leave_torch_out()
load()
given = json.load(open(sys.argv[1]))
from tilelang import tvm
from tilelang.engine import lower
plain = dict(preamble.PASS_CONFIG)
made = []
for text, config in zip(given["texts"], given["configs"]):
    preamble.PASS_CONFIG.clear()
    preamble.PASS_CONFIG.update(plain | config)
    try:
        kernel = lower_text(text, given["architecture"])
    except Exception:
        made.append({"error": traceback.format_exc()[-3000:]})
        continue
    made.append({
        "text": kernel.cuda_text,
        "body": kernel.body,
        "arguments": [vars(argument) for argument in kernel.arguments],
        "launch": vars(kernel.launch),
    })
spoken = []
for text in given["raw"]:
    target = tvm.target.Target({"kind": "cuda", "arch": given["architecture"]})
    try:
        with tvm.transform.PassContext(opt_level=3), target:
            lower(execute(text)["kernel"], target=target)
        spoken.append(None)
    except Exception as error:
        spoken.append(f"{type(error).__name__}: {error}"[-1000:])
json.dump({"made": made, "spoken": spoken}, open(sys.argv[2], "w"))
"""


@dataclass(frozen=True, kw_only=True)
class LoweredKernel:
    """What TileLang made of one schedule."""

    cuda_text: str
    body: str
    """The kernel alone."""
    arguments: tuple[Argument, ...]
    launch: Launch

    def renamed(self, symbol: str) -> str:
        """The complete text with the kernel under another name."""
        return self.cuda_text.replace(self.body, re.sub(r"\bkernel\(", f"{symbol}(", self.body))


def lower_schedules(
    schedules: Sequence[Schedule],
    folder: Path,
    *,
    architecture: str = "sm_90",
    configs: Sequence[Mapping[str, object]] | None = None,
) -> list[LoweredKernel]:
    """Every schedule's kernel, in order; ``configs``: further pass settings of TileLang's, for each. Fails on the first
    error."""
    return lower_beside(schedules, (), folder, architecture=architecture, configs=configs)[0]


def lower_beside(
    schedules: Sequence[Schedule],
    raw: Sequence[str],
    folder: Path,
    *,
    architecture: str = "sm_90",
    configs: Sequence[Mapping[str, object]] | None = None,
) -> tuple[list[LoweredKernel], list[str | None]]:
    """The same, and what TileLang says of modules of anybody's that define ``kernel``: None where it says nothing."""
    given, made = folder / "texts.json", folder / "lowered.json"
    texts = [emit(schedule).tilelang_text for schedule in schedules]
    each = [dict(config) for config in configs or [{}] * len(texts)]
    given.write_text(json.dumps({"texts": texts, "architecture": architecture, "configs": each, "raw": list(raw)}))
    done = subprocess.run(
        [sys.executable, "-c", _LOWER, str(given), str(made)], capture_output=True, text=True, timeout=600, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    out, answers = [], json.loads(made.read_text())
    for schedule, fields in zip(schedules, answers["made"], strict=True):
        described = f"{schedule.case.kernel} {dict(schedule.case.dims)} {schedule.candidate.document()}"
        assert "error" not in fields, f"{described}\n{fields['error']}"
        out.append(
            LoweredKernel(
                cuda_text=fields["text"],
                body=fields["body"],
                arguments=tuple(Argument(**argument) for argument in fields["arguments"]),
                launch=Launch(**fields["launch"]),
            )
        )
    return out, answers["spoken"]
