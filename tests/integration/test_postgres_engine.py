"""The engine on PostgreSQL beyond the contract: many processes, lost workers, a database that goes away."""

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import psycopg
import pytest

from search.errors import LocksUnusable
from tuner_service.db.engine import Database
from tuner_service.db.queries.queues import tasks_by_worker
from tuner_service.engine import reaper as reaper_module
from tuner_service.engine.contract import Task, has_begun
from tuner_service.engine.postgres import PostgresEngine
from tuner_service.engine.queue import Fetched, PostgresQueue
from tuner_service.engine.quiet import ProcessQuietGate
from tuner_service.engine.reaper import Reaper
from tuner_service.errors import DatabaseUnavailable

PATIENCE_SECONDS = 60.0
TASK = Task(key="a", job_id="job_a", queue="device", device_id="dev", quiet=False, priority=0, payload={"n": [1, None]})


def eventually(condition: Callable[[], Any]) -> None:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


class Process:
    """What one process has: an engine, and what it did."""

    def __init__(self, url: str, **slots: Any) -> None:
        self.started: list[Task] = []
        self.after: list[str] = []
        self.saw_cancel = threading.Event()
        self.go = threading.Event()
        self.engine = PostgresEngine(
            database_url=url, handler=self.handle, after=self.after.append, on_failure=self.fail, **slots
        )
        self.failures: list[BaseException] = []

    def handle(self, task: Task, cancelled: Callable[[], bool]) -> None:
        self.started.append(task)
        while not self.go.wait(0.005):
            if cancelled():
                self.saw_cancel.set()
                return

    def fail(self, task: Task, error: BaseException) -> None:
        self.failures.append(error)


@pytest.fixture
def process(postgres_url: str) -> Iterator[Callable[..., Process]]:
    made: list[Process] = []

    def make(**slots: Any) -> Process:
        made.append(Process(postgres_url, **slots))
        made[-1].engine.start()
        return made[-1]

    yield make
    for one in made:
        one.go.set()
        one.engine.close(timeout_seconds=PATIENCE_SECONDS)


@pytest.fixture
def queue(postgres_url: str) -> Iterator[PostgresQueue]:
    queue = PostgresQueue(postgres_url)
    yield queue
    queue.close()


def rows(url: str, table: str) -> int:
    with psycopg.connect(url) as connection:
        found = connection.execute(f"SELECT count(*) FROM {table}").fetchone()  # type: ignore[call-overload]
        assert found is not None
        return int(found[0])


def test_one_process_asks_another_works_and_a_third_cancels(process: Any, postgres_url: str) -> None:
    api, worker, other = process(), process(devices=["dev"]), process()
    assert api.engine.submit(TASK)
    eventually(lambda: worker.started == [TASK])
    assert other.engine.in_flight("job_a") == {"a"}
    assert other.engine.running("dev") == TASK
    assert not other.engine.submit(replace(TASK, device_id="dev2")), "the key runs, wherever"
    other.engine.cancel("job_a")
    assert worker.saw_cancel.wait(PATIENCE_SECONDS)
    eventually(lambda: not api.engine.in_flight("job_a"))
    assert api.engine.running("dev") is None
    assert worker.after == ["job_a"]
    worker.engine.close(timeout_seconds=PATIENCE_SECONDS)
    tables = ("procrastinate_jobs", "procrastinate_events", "procrastinate_workers")
    assert [rows(postgres_url, table) for table in tables] == [0, 0, 0], "what is over leaves nothing"


def test_of_many_submissions_of_one_key_one_counts(postgres_url: str) -> None:
    queues = [PostgresQueue(postgres_url) for _ in range(3)]
    with ThreadPoolExecutor(12) as threads:
        taken = list(threads.map(lambda n: queues[n % 3].submit(replace(TASK, device_id=f"d{n}")), range(24)))
    assert taken.count(True) == 1
    for one in queues:
        one.close()


def test_compile_tasks_go_to_those_that_build_the_same(process: Any) -> None:
    api, here, there = process(), process(compile_slots=1, compile_queues=lambda: ["x"]), process(compile_slots=1)
    for slot in (here, there):
        slot.go.set()
    api.engine.submit(replace(TASK, key="1", queue="compile", compile_key="y"))
    api.engine.submit(replace(TASK, key="2", queue="compile", compile_key="x"))
    eventually(lambda: here.after)
    assert [task.key for task in here.started] == ["2"]
    assert there.started == []
    assert api.engine.in_flight("job_a") == {"1"}


def test_who_cannot_compile_yet_takes_compile_tasks_once_it_can(process: Any) -> None:
    keys: list[str] = []
    late = process(compile_slots=1, compile_queues=lambda: keys, devices=["dev"])
    late.go.set()
    late.engine.submit(replace(TASK, key="1", queue="compile", compile_key="x"))
    late.engine.submit(TASK)
    eventually(lambda: late.after)
    assert [task.key for task in late.started] == ["a"]
    keys.append("x")
    eventually(lambda: [task.key for task in late.started] == ["a", "1"])


def test_a_drained_process_ends_what_it_runs_and_takes_nothing_more(process: Any) -> None:
    worker = process(devices=["dev"])
    worker.engine.submit(TASK)
    eventually(lambda: worker.started)
    worker.engine.submit(replace(TASK, key="b"))
    assert not worker.engine.drain(timeout_seconds=0.0)
    worker.go.set()
    assert worker.engine.drain(timeout_seconds=PATIENCE_SECONDS)
    assert [task.key for task in worker.started] == ["a"]
    assert worker.engine.in_flight("job_a") == {"b"}, "others may take it"


class TestReaper:
    def test_gives_up_what_a_silent_worker_holds_and_nothing_else(
        self, queue: PostgresQueue, postgres_url: str
    ) -> None:
        silent, alive = queue.register(), queue.register()
        for key, quiet in (("lost", False), ("gated", True), ("let in", True), ("held", False), ("waits", False)):
            queue.submit(replace(TASK, key=key, quiet=quiet))
        _, gated, let_in = [queue.fetch(silent, ["device:dev"]) for _ in range(3)]
        assert gated is not None
        assert let_in is not None
        assert queue.begin(let_in.id)
        held = queue.fetch(alive, ["device:dev"])
        assert held is not None
        database = Database(postgres_url)
        with database.read() as session:
            taken = tasks_by_worker(session)
        database.close()
        assert {worker: [(task["key"], has_begun(task)) for task in tasks] for worker, tasks in taken.items()} == {
            silent: [("lost", True), ("gated", False), ("let in", True)],
            alive: [("held", True)],
        }
        lost: dict[str, list[bool]] = {}
        still_in_flight: list[bool] = []
        problems = iter([DatabaseUnavailable("the ledger cannot be written now")])

        def on_lost(one: Fetched) -> None:
            for problem in problems:
                raise problem
            still_in_flight.append(one.task.key in queue.in_flight("job_a"))
            lost.setdefault(one.task.key, []).append(one.begun)

        age = {"lost_seconds": 1.0, "period_seconds": 0.05}
        reapers = [Reaper(database_url=postgres_url, on_lost=on_lost, **age) for _ in range(2)]
        for reaper in reapers:
            reaper.start()

        def given_up() -> bool:
            assert queue.beat(alive)
            return queue.in_flight("job_a") == {"held", "waits"}

        eventually(given_up)
        for reaper in reapers:
            reaper.close()
        assert lost == {"lost": [True], "gated": [False], "let in": [True]}, "once each, though two looked"
        assert all(still_in_flight), "the same step must not be asked for before its loss is counted"
        assert not queue.begin(gated.id), "it is another's by now"
        queue.finish(held.id)
        queue.finish(held.id)  # gone is no fault

    def test_after_an_outage_everyone_has_the_time_to_give_a_sign_of_life(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        lost: list[str] = []
        reaper = Reaper(database_url="postgresql://nowhere/x", on_lost=lambda one: lost.append(one.task.key))
        seconds, away = [100.0], [False]

        def silent(self: PostgresQueue, seconds: float) -> list[Fetched]:
            if away[0]:
                raise DatabaseUnavailable("away")
            return [Fetched(id=1, task=TASK)]

        def give_up(self: PostgresQueue, row_id: int, seconds: float, then: Callable[[], None]) -> bool:
            then()
            return True

        monkeypatch.setattr(PostgresQueue, "lost", silent)
        monkeypatch.setattr(PostgresQueue, "give_up", give_up)
        monkeypatch.setattr(PostgresQueue, "forget_workers", lambda self, seconds: None)
        monkeypatch.setattr(reaper_module.time, "monotonic", lambda: seconds[0])

        def after(passed: float) -> list[str]:
            seconds[0] += passed
            reaper.look()
            return lost

        assert after(0.0) == [], "it may have begun as the database came back"
        assert after(29.0) == []
        away[0] = True
        assert after(0.5) == []
        away[0] = False
        assert after(60.0) == [], "nobody could give a sign of life until now"
        assert after(29.0) == []
        assert after(1.0) == ["a"]
        reaper.close()

    def test_a_worker_that_was_given_up_stops_the_task(self, process: Any, postgres_url: str) -> None:
        worker = process(devices=["dev"])
        worker.engine.submit(TASK)
        eventually(lambda: worker.started)
        with psycopg.connect(postgres_url) as connection:
            connection.execute("DELETE FROM procrastinate_jobs")
        assert worker.saw_cancel.wait(PATIENCE_SECONDS)
        worker.go.set()
        worker.engine.submit(TASK)
        eventually(lambda: len(worker.after) == 2)

    def test_a_task_that_waits_for_quiet_says_when_it_begins(self, process: Any, postgres_url: str) -> None:
        gate = ProcessQuietGate()
        worker = process(devices=["dev"], quiet=gate)
        begun = "SELECT args ? 'begun' FROM procrastinate_jobs WHERE status = 'doing'"

        def says() -> list[Any]:
            with psycopg.connect(postgres_url) as connection:
                return connection.execute(begun).fetchall()

        with gate.compiling(stopping=lambda: False):
            worker.engine.submit(replace(TASK, quiet=True))
            eventually(says)
            assert (says(), worker.started) == ([(False,)], [])
        eventually(lambda: worker.started)
        assert says() == [(True,)]

    def test_a_task_that_just_ended_was_not_given_up(
        self, process: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        finish, worker = PostgresQueue.finish, process(devices=["dev"])
        looked = []

        def finished_and_looked_after(self: PostgresQueue, row_id: int) -> None:
            finish(self, row_id)
            worker.engine._look_after()
            looked.append(row_id)

        monkeypatch.setattr(PostgresQueue, "finish", finished_and_looked_after)
        worker.go.set()
        worker.engine.submit(TASK)
        eventually(lambda: worker.after)
        assert looked
        assert "given up" not in caplog.text


class TestOutage:
    def test_a_running_task_outlives_a_crash_of_the_database(self, process: Any, postgres: Any) -> None:
        worker, api = process(devices=["dev"], compile_slots=1), process()
        worker.engine.submit(TASK)
        eventually(lambda: worker.started)
        postgres.stop("immediate")
        try:
            with pytest.raises(DatabaseUnavailable, match="the queue in postgresql"):
                api.engine.submit(replace(TASK, key="b"))
            worker.go.set()
        finally:
            postgres.start()
        eventually(lambda: worker.after == ["job_a"])
        assert not worker.saw_cancel.is_set()

        def submitted() -> bool:
            try:
                return bool(api.engine.submit(replace(TASK, key="b")))
            except DatabaseUnavailable:
                return False

        eventually(submitted)
        eventually(lambda: [task.key for task in worker.started] == ["a", "b"])
        eventually(lambda: not api.engine.in_flight("job_a"))

    def test_a_task_whose_taking_was_never_answered_is_handed_back(
        self, process: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        fetch = PostgresQueue.fetch
        cut = threading.Event()

        def taken_in_vain(self: PostgresQueue, *question: Any) -> Any:
            found = fetch(self, *question)
            if found is not None and not cut.is_set():
                cut.set()
                raise DatabaseUnavailable("cut after the question")
            return found

        monkeypatch.setattr(PostgresQueue, "fetch", taken_in_vain)
        worker = process(devices=["dev"])
        worker.go.set()
        worker.engine.submit(TASK)
        eventually(lambda: worker.after == ["job_a"])
        assert worker.started == []
        assert worker.engine.in_flight("job_a") == frozenset(), "the ledger asks for it again"

    def test_a_worker_that_was_forgotten_comes_back(self, process: Any, postgres_url: str) -> None:
        worker = process(devices=["dev"])
        worker.go.set()
        eventually(lambda: rows(postgres_url, "procrastinate_workers") == 1)
        with psycopg.connect(postgres_url) as connection:
            connection.execute("DELETE FROM procrastinate_workers")
        worker.engine.submit(TASK)
        eventually(lambda: worker.after == ["job_a"])
        assert rows(postgres_url, "procrastinate_workers") == 1


def test_lost_notices_keep_no_task_waiting(process: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(PostgresQueue, "listen", lambda self, queues, **heard: None)
    worker = process(compile_slots=3)
    api = process()
    for number in range(3):
        api.engine.submit(replace(TASK, key=f"c{number}", queue="compile"))
    eventually(lambda: len(worker.started) == 3)
    assert not worker.after, "all three run at once, though one slot looks for all"


def test_a_gate_that_cannot_be_asked_keeps_no_task(process: Any) -> None:
    """What was taken before the gate broke is reported and taken off the queue; the slot goes on."""

    class Broken(ProcessQuietGate):
        def quietly(self, *, stopping: Callable[[], bool]) -> Any:
            raise LocksUnusable("the lock folder cannot be used")

    worker = process(devices=["dev"], quiet=Broken())
    worker.go.set()
    assert worker.engine.submit(replace(TASK, quiet=True))
    eventually(lambda: not worker.engine.in_flight("job_a"))
    assert [type(error) for error in worker.failures] == [LocksUnusable]
    assert worker.engine.submit(TASK)
    eventually(lambda: worker.started == [TASK])
