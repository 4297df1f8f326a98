"""What the bench of scaling out makes of figures that are known; and, in full, its whole way with a tiny job."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

SCRIPT = Path(__file__).parents[3] / "bench" / "scaleout.py"
BURN = "import sys, time\nwhile time.process_time() < 0.2: pass\nprint(flush=True)\nsys.stdin.read()"
PARENT = f"import subprocess, sys\nsubprocess.run([sys.executable, '-c', {BURN!r}])"


@pytest.fixture(scope="module")
def bench() -> Iterator[Any]:
    spec = importlib.util.spec_from_file_location("bench_scaleout", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    path = list(sys.path)
    module: ModuleType = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    yield module
    del sys.modules[spec.name]
    sys.path[:] = path


def job(rate: float, cpu: float) -> dict[str, Any]:
    parts = {"service": cpu, "workers": cpu, "database": cpu, "children": 0.2}
    rates = {"trials_per_core_second": rate, "search_trials_per_core_second": 2 * rate}
    return {**rates, "job_seconds": 1 / rate, "cpu_seconds_per_trial": parts, "overhead_cpu_seconds": 3 * cpu}


def found(rates: list[float], cpu: float, paper: float, starts: list[float]) -> dict[str, Any]:
    tries = [{"post_seconds": 0.01, "start_seconds": start, "built_seconds": 1.0} for start in starts]
    return {"jobs": [job(r, cpu) for r in rates], "paper": [{"trials": 10, "seconds": paper}], "starts": tries}


def test_ratios_are_of_neighbours_and_every_missed_number_is_named(bench: Any) -> None:
    embedded = found([2.0, 4.0], 0.001, 0.1, [0.1])
    held = bench.summed_up({"embedded": embedded, "postgres": found([1.9, 3.8], 0.009, 0.2, [0.1, 1.9])})
    assert held["ratios"]["trials_per_core_second"] == [0.95, 0.95]
    assert held["lines"]["overhead_seconds"]["postgres"] == [0.02]
    assert held["missed"] == []
    slow = found([1.7, 3.4], 0.009, 0.4, [0.1, 2.1])
    assert bench.summed_up({"embedded": embedded, "postgres": slow})["missed"] == list(bench.LIMITS)


def test_cpu_time_is_counted_with_all_that_is_below_a_process(bench: Any) -> None:
    processes = sys.modules["bench.service_processes"]
    with subprocess.Popen([sys.executable, "-c", PARENT], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as parent:
        assert parent.stdout is not None
        parent.stdout.readline()  # the child has burned its share, and lives
        whole, own = processes.tree_seconds(parent.pid), processes.own_seconds(parent.pid)
        parent.communicate()
    assert whole - own >= 0.15, "of 0.2 s, counted in hundredths"


@pytest.mark.full
@pytest.mark.toolchain
def test_its_whole_way_with_a_tiny_job(bench: Any) -> None:
    space = {**bench.ONE, "width": [8, 16]}
    measured: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder:  # where a PostgreSQL of another user reaches it
        Path(folder).chmod(0o755)
        bench.measure(1, 2, space, Path(folder), measured)
    summary = bench.summed_up(measured)
    assert {name: len(of["embedded"]) for name, of in summary["lines"].items()} == {
        name: len(of["postgres"]) for name, of in summary["lines"].items()
    }
    assert all(job["trials"] >= 2 for engine in measured.values() for job in engine["jobs"])
    assert all(job["cpu_seconds_per_trial"]["children"] > 0 for engine in measured.values() for job in engine["jobs"])
    assert all(start["start_seconds"] > 0 for engine in measured.values() for start in engine["starts"])
