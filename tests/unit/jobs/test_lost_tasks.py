"""What a task costs that lost its worker: nothing, if it had only been taken."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from search.lowering.artifact_cache import ArtifactCache
from tuner_service.db.engine import Database
from tuner_service.engine.queue import Fetched
from tuner_service.workers.scaleout import ScaleOutRuntime


class Reaper:
    """The test says what is lost."""

    def __init__(self, on_lost: Callable[[Fetched], None]) -> None:
        self.on_lost = on_lost

    def start(self) -> None: ...

    def close(self) -> None: ...


@pytest.fixture
def reaper(database: Database, service: Any, tmp_path: Path) -> Reaper:
    made: list[Reaper] = []

    def make(on_lost: Callable[[Fetched], None]) -> Reaper:
        made.append(Reaper(on_lost))
        return made[-1]

    ScaleOutRuntime(
        database=database,
        engine=service.engine,
        reaper=make,
        artifacts=ArtifactCache(tmp_path),
        data_dir=tmp_path,
        lost_seconds=30.0,
        advance_period_seconds=1.0,
        request_wait_seconds=1.0,
        stop_timeout_seconds=1.0,
    )
    return made[0]


@pytest.mark.parametrize("begun", [False, True])
def test_a_task_that_had_not_begun_charges_nobody(
    service: Any, submitted: str, database: Database, reaper: Reaper, begun: bool
) -> None:
    while "finals" not in next(iter(service.engine.tasks), ""):
        service.advancer.advance(submitted)
        if "finals" not in next(iter(service.engine.tasks)):
            service.run(next(iter(service.engine.tasks)))
    for _ in range(3):  # so often that a charged step fails its job
        (task,) = service.engine.tasks.values()
        assert task.gated
        reaper.on_lost(Fetched(id=1, task=task, begun=begun))
        service.engine.tasks.clear()
        service.advancer.advance(submitted)
    if begun:
        job = service.job(submitted)
        assert (job["state"], "the worker that performed it was lost" in job["error"]) == ("failed", True)
    else:
        assert service.finish(submitted)["state"] == "succeeded"


def test_of_trials_those_that_were_worked_on_are_charged(service: Any, submitted: str, reaper: Reaper) -> None:
    service.advancer.advance(submitted)
    (task,) = service.engine.tasks.values()
    reaper.on_lost(Fetched(id=1, task=task, begun=False))
    service.engine.tasks.clear()
    service.advancer.advance(submitted)
    (again,) = service.engine.tasks.values()
    assert set(again.payload["step"]["trials"]) == set(task.payload["step"]["trials"]), "together, as before"
    reaper.on_lost(Fetched(id=2, task=again))
    service.engine.tasks.clear()
    service.advancer.advance(submitted)
    assert all(len(one.payload["step"]["trials"]) == 1 for one in service.engine.tasks.values()), "each alone"
