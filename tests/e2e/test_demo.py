"""The demo's small variant, as a user runs it; with the full tests twice on one data directory."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from catalogs.audit import audit
from tuner_service.cli import demo_job
from tuner_service.cli.commands import demo as demo_command
from tuner_service.cli.demo_catalog import Catalogued
from tuner_service.cli.main import run

TWO_KERNELS = """
from tuner_service.cli import demo_job
demo_job.KERNELS = ("softmax", "layer_norm")
from tuner_service.cli.main import main
main()
"""
"""The command, with one kernel of the three left away: a third of its time, and nothing that is told of the others."""
pytestmark = [pytest.mark.toolchain, pytest.mark.alone]


def test_the_small_demo_tells_its_whole_story(tmp_path: Path) -> None:
    run_small_demo(tmp_path / "demo")


def run_small_demo(data: Path) -> str:
    """Runs it as a command, and looks at what it says and leaves; what it says."""
    command = [sys.executable, "-c", TWO_KERNELS, "demo", "--small", "--data-dir", str(data)]
    first = subprocess.run(command, capture_output=True, text=True, timeout=600)
    assert first.returncode == 0, first.stderr
    for words in ("softmax 8×33", "layer_norm 8×33", "winner / torch_eager", "GET /v1/winners"):
        assert words in first.stdout
    for words in ("miss: ", "catalogs.open(", "passed"):
        assert words in first.stdout
    assert audit((data / "evidence.json").read_bytes()).findings == ()
    promoted = "PUT /v1/aliases/prod → " in first.stderr
    assert promoted or "NOT PROMOTED" in first.stderr  # a busy machine: the gate keeps shut, and says why
    assert not (data / "service.json").exists()
    return first.stdout


@pytest.mark.full
def test_it_runs_again_on_the_same_data(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    data = tmp_path / "demo"
    first = run_small_demo(data)
    # As JSON, with one kernel and no acceptance: what a second run meets does not depend on how many kernels there
    # are, and a replay takes half a minute.
    monkeypatch.setattr(demo_job, "KERNELS", ("softmax",))
    monkeypatch.setattr(demo_command, "catalog_winners", lambda *_, **__: Catalogued())
    status = run(["demo", "--small", "--json", "--data-dir", str(data)])
    second = capsys.readouterr()
    assert status == 0, second.err
    assert "1 earlier job in" in second.err
    assert "measured anew" in second.err
    found: dict[str, Any] = json.loads(second.out)
    assert found["state"] == "succeeded"
    (case,) = found["cases"]
    assert case["kernel"] == "softmax"
    assert case["enumerated"] == case["measured"] + case["rejected"]
    assert case["winner"] is not None
    assert case["ratio"]["min"] <= case["ratio"]["median"] <= case["ratio"]["max"]
    assert len(found["lookups"]) == 1
    assert "dims.rows" in found["miss"]["misses"][0]["differs"]
    assert found["job"] not in first
