"""The demo's small variant, as a user runs it, twice on one data directory."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tuner_service.cli import demo_job
from tuner_service.cli.main import run

pytestmark = [pytest.mark.toolchain, pytest.mark.alone]


def demo(data_dir: Path, *options: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "tuner_service.cli", "demo", "--small", "--data-dir", str(data_dir), *options]
    return subprocess.run(command, capture_output=True, text=True, timeout=600)


def test_the_small_demo_runs_twice_and_tells_the_same_story(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    first = demo(tmp_path / "demo", "--json")
    assert first.returncode == 0, first.stderr
    found: dict[str, Any] = json.loads(first.stdout)
    assert found["state"] == "succeeded"
    assert {case["kernel"] for case in found["cases"]} == {"softmax", "rms_norm", "layer_norm"}
    for case in found["cases"]:
        assert case["enumerated"] == case["measured"] + case["rejected"]
        assert case["winner"] is not None
        assert case["ratio"]["min"] <= case["ratio"]["median"] <= case["ratio"]["max"]
    assert len(found["lookups"]) == len(found["cases"])
    assert "dims.rows" in found["miss"]["misses"][0]["differs"]
    catalog = found["catalog"]
    assert catalog["audit"] == "passed"
    if catalog["acceptances"][-1]["verdict"] == "accepted":
        assert catalog["promoted"] == catalog["candidate"]
    else:  # a busy machine: the gate keeps shut, and says why
        assert catalog["promoted"] is None
        assert "NOT PROMOTED" in first.stderr
        assert all("softmax" in reason for reason in catalog["acceptances"][-1]["reasons"])
    assert [one["kernel"] for one in catalog["found"]] == ["softmax"]
    assert not (tmp_path / "demo" / "service.json").exists()

    # Again, from the same command, with one kernel: what a second run meets does not depend on how many there are.
    monkeypatch.setattr(demo_job, "KERNELS", ("softmax",))
    status = run(["demo", "--small", "--data-dir", str(tmp_path / "demo")])
    second = capsys.readouterr()
    assert status == 0, second.err
    assert "1 earlier job in" in second.err
    assert "measured anew" in second.err
    for words in ("softmax 8×33", "winner / torch_eager", "GET /v1/winners", "miss: ", "catalogs.open(", "passed"):
        assert words in second.out
    assert found["job"] not in second.out
