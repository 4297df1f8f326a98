"""A worker process whose device, compilers and measurements exist on paper: all the rest of it is real.

``python paper_worker.py CONFIG`` with a JSON object: ``folder``, ``device`` (id), ``began`` (monotonic seconds), and
optionally ``changes`` (of the device), ``forget`` (a step that its version does not know), ``stuck`` (a step in which
its child outlives SIGKILL), ``version``, ``skew_seconds`` (by which its clock is ahead). While a file ``hold-STEP`` is
in the folder, that step waits, and says so in ``held-STEP``; with ``hold-Recording`` a measured trial waits to be
recorded, with ``hold-Timed-2-C`` arm C of an acceptance's round 2.
"""

from __future__ import annotations

import gc
import importlib.util
import json
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta, tzinfo
from pathlib import Path
from typing import Any

from search.children.child import ChildSurvived
from search.errors import Cancelled
from search.events import Event, TrialMeasured
from search.ledger import CaseState
from search.program.case import Case
from search.replay.records import ReplayRecord, ReplayState, ReplayStep, RoundBuilt
from search.step import STEPS
from search.steps import Step
from tuner_service.db import clock
from tuner_service.db.engine import Database
from tuner_service.settings import load_settings
from tuner_service.telemetry import configure_logging
from tuner_service.workers.datadir import DataDir
from tuner_service.workers.main import free_data_dir
from tuner_service.workers.process import WorkerOptions, WorkerProcess

POLL_SECONDS = 0.02


def _paper(file_name: str) -> Any:
    """Tools on paper of the unit tests, by the file that they are in."""
    path = Path(__file__).parents[2] / "unit" / "jobs" / file_name
    name = f"paper_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


class HeldTools:
    """Tools on paper that wait where they are told to."""

    def __init__(self, paper: Any, folder: Path, stuck: str | None, began: float) -> None:
        self._tools, self._folder, self._stuck = paper.PaperTools(), folder, stuck
        self._began = began
        self._replays: Any = None

    def perform(
        self, step: Step, state: CaseState, case: Case, *, device_id: str, cancelled: Callable[[], bool]
    ) -> Iterator[Event]:
        """As the tools on paper do it."""
        name = type(step).__name__
        if name == self._stuck and not (self._folder / "unstuck").exists():
            raise ChildSurvived("child 7 survived SIGKILL for 10 s")
        self._wait(name, cancelled)
        for event in self._tools.perform(step, state, case, device_id=device_id, cancelled=cancelled):
            if isinstance(event, TrialMeasured):
                self._wait("Recording", cancelled)
            yield event

    def replay(
        self, step: ReplayStep, state: ReplayState, *, device_id: str, cancelled: Callable[[], bool]
    ) -> Iterator[ReplayRecord]:
        """As the replays on paper do it, by a clock that outlives a worker, and is always in the past."""
        if self._replays is None:
            paper = _paper("test_acceptance.py")
            yesterday = datetime.now(UTC) - datetime.fromisoformat(paper.stamp(0.0)) - timedelta(days=1)
            fast_seconds = 100 * (time.monotonic() - self._began)
            self._replays = paper.PaperReplays(clock_seconds=yesterday.total_seconds() + fast_seconds)
        for one in self._replays.replay(step, state, device_id=device_id, cancelled=cancelled):
            if isinstance(one, RoundBuilt):
                yield replace(one, process=f"{os.getpid()} {one.process}")
                continue
            self._wait(f"Timed-{one.round}-{one.arm}", cancelled)
            yield one

    def _wait(self, name: str, cancelled: Callable[[], bool]) -> None:
        held = self._folder / f"held-{name}"
        while (self._folder / f"hold-{name}").exists():
            held.write_text(str(os.getpid()))
            if cancelled():
                raise Cancelled("told to stop")
            time.sleep(POLL_SECONDS)
        held.unlink(missing_ok=True)

    def rest(self) -> None:
        """Nothing to end."""

    def close(self) -> None:
        """Nothing to end."""


def _set_clock(ahead_seconds: float) -> None:
    """This process's wall clock differs by so much; what counts seconds (monotonic) does not."""
    right, right_ns = time.time, time.time_ns
    time.time = lambda: right() + ahead_seconds
    time.time_ns = lambda: right_ns() + int(ahead_seconds * 1e9)
    clock.datetime = _Skewed(ahead_seconds)  # type: ignore[attr-defined]


class _Skewed:
    """``datetime`` as far as ``db.clock`` uses it."""

    def __init__(self, ahead_seconds: float) -> None:
        self._ahead = timedelta(seconds=ahead_seconds)

    def now(self, zone: tzinfo) -> datetime:
        return datetime.now(zone) + self._ahead


def main(config: dict[str, Any]) -> None:
    """Works until SIGTERM."""
    paper, folder = _paper("conftest.py"), Path(config["folder"])
    gc.freeze()  # what was imported stays, and taking it apart at the end takes a third of what importing it took
    _set_clock(config.get("skew_seconds", 0.0))
    settings = load_settings()
    configure_logging("INFO")
    if "forget" in config:
        STEPS.pop(config["forget"])  # type: ignore[attr-defined]
    device = replace(paper.paper_device(), id=config["device"], **config.get("changes", {}))
    database = Database(settings.resolved_database_url)
    place: DataDir = free_data_dir(settings.data_dir)
    process = WorkerProcess(
        database=database,
        data_dir=place,
        options=WorkerOptions(
            version=config.get("version", "test"),
            drain_seconds=settings.drain_seconds,
            lost_seconds=settings.worker_lost_seconds,
            compile_slots=config.get("compile_slots", 1),
        ),
        probe=lambda *_: [device],
        look=lambda names: [],
        tools=lambda _: HeldTools(paper, folder, config.get("stuck"), config["began"]),
    )
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: process.stop())
    process.run(lambda line: print(line, flush=True))
    database.close()


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
