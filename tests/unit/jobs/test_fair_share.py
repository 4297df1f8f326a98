"""Jobs beside each other: a huge one keeps no small one waiting, and priority goes first. True of any engine that runs
waiting tasks by priority, then in order of submission: the conformance suite holds every engine to that."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from search import steps
from tuner_service.db.engine import Database
from tuner_service.db.queries.jobs import job_row
from tuner_service.engine.contract import Task
from tuner_service.jobs import opening
from tuner_service.jobs.advance import DEVICE_TASKS, Advancer
from tuner_service.jobs.submit import submit

COMPILE_SLOTS = 1
MOST_BEFORE = {"compile": COMPILE_SLOTS + 1, "device": DEVICE_TASKS}
"""Tasks that one job may have waiting before another one's: those that it may have in flight."""


class Floor:
    """Runs an inline engine's tasks as a real one would, one compile and one device slot in turn."""

    def __init__(self, service: Any, *job_ids: str) -> None:
        self.service, self.job_ids = service, job_ids
        self.ran: list[Task] = []

    def waiting(self, queue: str) -> list[Task]:
        """In the order in which they will run: the inline engine keeps that of submission."""
        tasks = [task for task in self.service.engine.tasks.values() if task.queue == queue]
        return sorted(tasks, key=lambda task: task.priority)

    def step(self) -> None:
        """Every job is advanced, and each slot does one task."""
        for job_id in self.job_ids:
            self.service.advancer.advance(job_id)
        for queue in MOST_BEFORE:
            for task in self.waiting(queue)[:1]:
                self.ran.append(task)
                self.service.run(task.key)

    def runs(self, job_id: str) -> bool:
        with self.service.database.read() as session:
            return job_row(session, job_id)["state"] in ("queued", "running")


@pytest.fixture
def huge(small: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """With tasks of one trial each, so that it has many."""
    monkeypatch.setattr(steps, "BUILD_BATCH", 3)
    monkeypatch.setattr(steps, "MEASURE_CHUNK", 1)
    space = {**small["space"], "width": [8, 16, 32, 64], "vector": [1, 2, 4], "unroll": [1, 2]}
    return {**small, "space": space, "private_budget_scalars": None}


@pytest.fixture
def enter(database: Database, resolve: Callable[..., Any]) -> Callable[[dict[str, Any]], str]:
    return lambda body: submit(database, resolve(body), idempotency_key=None, body_sha256="5" * 64)


def test_a_small_job_takes_turns_with_a_huge_one(service: Any, enter: Any, huge: Any, small: Any) -> None:
    first = enter(huge)
    for _ in range(3):
        Floor(service, first).step()
    cases = [{"kernel": name, "dims": {"rows": 8, "cols": 33}} for name in ("softmax", "rms_norm")]
    late = enter(
        {**small, "cases": cases, "baselines": []}
    )  # its second case must not stand behind the first case of others
    floor = Floor(service, first, late)
    while floor.runs(late):
        floor.step()
        for queue, most in MOST_BEFORE.items():
            order = [task.job_id for task in floor.waiting(queue)]
            if late in order:
                assert order.index(late) <= most, "what waits before it is bounded, however large the other job is"
    assert service.job(late)["cases"][0]["winner"]
    assert service.job(first)["progress"]["pending"] > 0
    assert sum(task.job_id == first for task in floor.ran) > 0, "nor does the small one keep the huge one waiting"


def test_priority_goes_first_on_devices_and_in_compiling(service: Any, enter: Any, huge: Any, small: Any) -> None:
    first = enter(huge)
    for _ in range(3):
        Floor(service, first).step()
    urgent, idle = enter({**small, "priority": 5, "baselines": []}), enter({**small, "priority": -5})
    floor = Floor(service, first, idle, urgent)
    while floor.runs(urgent):
        floor.step()
        for queue in MOST_BEFORE:
            order = [task.job_id for task in floor.waiting(queue)]
            ranks = [(urgent, first, idle).index(job_id) for job_id in order]
            assert ranks == sorted(ranks)
    assert service.job(idle)["progress"]["measured"] == 0


def test_the_rows_of_a_huge_space_are_written_in_slices(
    service: Any, enter: Any, huge: Any, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(opening, "CHUNK_TRIALS", 10)
    again: list[str] = []
    sliced = Advancer(
        database=database,
        ledger=service.ledger,
        engine=service.engine,
        devices=lambda: service.devices,
        compile_slots=COMPILE_SLOTS,
        opening_seconds=0.0,
        again=again.append,
    )
    job_id, whole = enter(huge), enter(huge)
    size = service.job(job_id)["progress"]["enumerated"]
    for calls in range(1, size):
        sliced.advance(job_id)
        written = len(service.trials(job_id))
        assert written == min(10 * calls, size + 1)
        if service.job(job_id)["cases"][0]["state"] == "running":
            break
        assert again == [job_id] * calls
        assert not service.engine.tasks
    service.advancer.advance(whole)
    rows = [
        [(trial["ordinal"], trial["candidate"], trial["plan"]) for trial in service.trials(j)] for j in (job_id, whole)
    ]
    assert rows[0] == rows[1]
    assert service.engine.tasks
