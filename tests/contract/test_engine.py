"""What every engine keeps to. Each adapter runs this whole suite."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest

from tuner_service.engine.contract import Engine, Task
from tuner_service.engine.local import LocalEngine
from tuner_service.engine.postgres import PostgresEngine
from tuner_service.engine.quiet import ProcessQuietGate

PATIENCE_SECONDS = 20.0
"""Upper bound of a wait in a test; nothing is concluded from how long anything took."""

Adapter = Callable[..., Engine]
ADAPTERS: dict[str, Adapter] = {"local": LocalEngine, "postgres": PostgresEngine}


def task(key: str, queue: Any = "compile", *, job: str = "job_a", device: str = "dev", **more: Any) -> Task:
    fields = {"quiet": False, "priority": 0, "payload": {}} | more
    return Task(key=key, job_id=job, queue=queue, device_id=device, **fields)


@dataclass
class Workshop:
    """A handler whose tasks wait until the test lets them go, and the record of what ran."""

    started: list[str] = field(default_factory=list)
    running: set[str] = field(default_factory=set)
    most_at_once: dict[str, int] = field(default_factory=dict)
    overlaps: list[tuple[str, str]] = field(default_factory=list)
    after: list[str] = field(default_factory=list)
    failures: list[tuple[str, str]] = field(default_factory=list)
    cancelled: list[str] = field(default_factory=list)
    gates: dict[str, threading.Event] = field(default_factory=dict)
    held: bool = True
    changed: threading.Condition = field(default_factory=threading.Condition)
    quiet_asked: threading.Event = field(default_factory=threading.Event)
    """A quiet task waits for its turn, as far as one can know."""
    tasks: dict[str, Task] = field(default_factory=dict)

    def handle(self, task: Task, cancelled: Callable[[], bool]) -> None:
        with self.changed:
            self.started.append(task.key)
            self.tasks[task.key] = task
            for other in self.running:
                for quiet, loud in ((task, self.tasks[other]), (self.tasks[other], task)):
                    if quiet.quiet and (loud.queue == "compile" or loud.builds):
                        self.overlaps.append((quiet.key, loud.key))
            self.running.add(task.key)
            slot = task.queue if task.queue == "compile" else task.device_id
            same = sum(
                (t.queue if t.queue == "compile" else t.device_id) == slot for k in self.running if (t := self.tasks[k])
            )
            self.most_at_once[slot] = max(same, self.most_at_once.get(slot, 0))
            self.changed.notify_all()
            gate = self.gates.setdefault(task.key, threading.Event())
        while self.held and not gate.wait(0.005):
            if cancelled():
                self.cancelled.append(task.key)
                break
        with self.changed:
            self.running.discard(task.key)
            self.changed.notify_all()
        if task.payload.get("raise"):
            raise RuntimeError(task.payload["raise"])

    def let_go(self, key: str) -> None:
        with self.changed:
            self.gates.setdefault(key, threading.Event()).set()

    def let_all_go(self) -> None:
        self.held = False

    def wait(self, condition: Callable[[], bool]) -> None:
        with self.changed:
            assert self.changed.wait_for(condition, PATIENCE_SECONDS), self

    def on_after(self, job_id: str) -> None:
        with self.changed:
            self.after.append(job_id)
            self.changed.notify_all()

    def on_failure(self, task: Task, error: BaseException) -> None:
        with self.changed:
            self.failures.append((task.key, str(error)))


class WatchedGate(ProcessQuietGate):
    """Says when a quiet task asks to be let in, and no idle compile slot looks for a task any more: one that looked
    already may find another and do it first."""

    def __init__(self, workshop: Workshop) -> None:
        super().__init__()
        self.workshop = workshop

    @contextmanager
    def quietly(self, *, stopping: Callable[[], bool]) -> Iterator[bool]:
        def asked() -> bool:
            if self._compiling <= len(self.workshop.running):
                self.workshop.quiet_asked.set()
            return stopping()

        with super().quietly(stopping=asked) as granted:
            yield granted


@pytest.fixture
def workshop() -> Workshop:
    return Workshop()


@pytest.fixture(params=ADAPTERS)
def make_engine(request: pytest.FixtureRequest, workshop: Workshop) -> Iterator[Callable[..., Engine]]:
    made: list[Engine] = []
    url = request.getfixturevalue("postgres_url") if request.param == "postgres" else None

    def make(**options: Any) -> Engine:
        options = {"compile_slots": 2, "devices": ["dev", "dev2"]} | options
        if url is not None:
            options |= {"database_url": url, "quiet": WatchedGate(workshop)}
        else:
            workshop.quiet_asked.set()  # a submitted task is known at once where all is in one process
        engine = ADAPTERS[request.param](
            handler=workshop.handle, after=workshop.on_after, on_failure=workshop.on_failure, **options
        )
        made.append(engine)
        return engine

    yield make
    workshop.let_all_go()
    for engine in made:
        engine.close(timeout_seconds=PATIENCE_SECONDS)


def test_nothing_runs_before_start_and_everything_after(make_engine: Any, workshop: Workshop) -> None:
    engine = make_engine()
    workshop.let_all_go()
    assert engine.submit(task("one"))
    assert engine.submit(task("two", "device"))
    assert workshop.started == []
    assert engine.in_flight("job_a") == {"one", "two"}
    engine.start()
    workshop.wait(lambda: workshop.after == ["job_a", "job_a"])
    assert sorted(workshop.started) == ["one", "two"]
    assert engine.in_flight("job_a") == frozenset()


def test_a_key_in_flight_is_refused_and_free_again_afterwards(make_engine: Any, workshop: Workshop) -> None:
    engine = make_engine()
    engine.start()
    assert engine.submit(task("one"))
    workshop.wait(lambda: workshop.running == {"one"})
    assert not engine.submit(task("one"))
    assert not engine.submit(task("one", "device"))
    workshop.let_go("one")
    workshop.wait(lambda: workshop.after == ["job_a"])
    assert engine.submit(task("one"))
    workshop.wait(lambda: workshop.started == ["one", "one"])


def test_in_flight_is_by_job(make_engine: Any) -> None:
    engine = make_engine()
    engine.submit(task("one"))
    engine.submit(task("two", job="job_b"))
    assert engine.in_flight("job_a") == {"one"}
    assert engine.in_flight("job_b") == {"two"}
    assert engine.in_flight("job_c") == frozenset()


def test_one_task_at_a_time_per_device_and_as_many_compiles_as_slots(make_engine: Any, workshop: Workshop) -> None:
    engine = make_engine(compile_slots=3)
    for number in range(6):
        engine.submit(task(f"c{number}"))
        engine.submit(task(f"d{number}", "device"))
        engine.submit(task(f"e{number}", "device", device="dev2"))
    engine.start()
    workshop.wait(lambda: len(workshop.running) == 5)
    workshop.let_all_go()
    workshop.wait(lambda: len(workshop.after) == 18)
    assert workshop.most_at_once == {"compile": 3, "dev": 1, "dev2": 1}
    assert sorted(workshop.started) == sorted(f"{slot}{number}" for slot in "cde" for number in range(6))


def test_smaller_priority_first_then_order_of_submission(make_engine: Any, workshop: Workshop) -> None:
    engine = make_engine()
    for key, priority in (("late", 5), ("b", 1), ("c", 1), ("first", 0), ("d", 1)):
        engine.submit(task(key, "device", priority=priority))
    workshop.let_all_go()
    engine.start()
    workshop.wait(lambda: len(workshop.after) == 5)
    assert workshop.started == ["first", "b", "c", "d", "late"]


def test_a_quiet_task_waits_for_compiles_and_holds_new_ones_back(make_engine: Any, workshop: Workshop) -> None:
    engine = make_engine()
    engine.start()
    engine.submit(task("c0"))
    workshop.wait(lambda: workshop.running == {"c0"})
    engine.submit(task("quiet", "device", quiet=True))
    assert workshop.quiet_asked.wait(PATIENCE_SECONDS)
    engine.submit(task("c1"))  # a slot is free, but the quiet task comes first
    engine.submit(task("loud", "device", device="dev2"))
    workshop.wait(lambda: "loud" in workshop.running)
    assert workshop.started == ["c0", "loud"]
    workshop.let_go("c0")
    workshop.wait(lambda: "quiet" in workshop.running)
    assert "c1" not in workshop.started
    workshop.let_go("quiet")
    workshop.wait(lambda: "c1" in workshop.running)
    assert workshop.overlaps == []


def test_quiet_never_overlaps_compiling_in_a_mixed_crowd(make_engine: Any, workshop: Workshop) -> None:
    engine = make_engine(compile_slots=3)
    workshop.let_all_go()
    engine.start()
    for number in range(40):
        engine.submit(task(f"c{number}"))
        engine.submit(task(f"d{number}", "device", quiet=number % 3 == 0, device=("dev", "dev2")[number % 2]))
    workshop.wait(lambda: len(workshop.after) == 80)
    assert workshop.overlaps == []


def test_builds_in_a_devices_slot_never_overlap_a_quiet_task(make_engine: Any, workshop: Workshop) -> None:
    engine = make_engine(compile_slots=2, devices=["dev", "dev2", "dev3"])
    workshop.let_all_go()
    engine.start()
    for number in range(10):
        engine.submit(task(f"c{number}"))
        engine.submit(task(f"b{number}", "device", builds=True))
        engine.submit(task(f"q{number}", "device", quiet=True, device="dev2"))
        engine.submit(task(f"r{number}", "device", quiet=True, device="dev3"))
    workshop.wait(lambda: len(workshop.after) == 40)
    assert workshop.overlaps == []


def test_cancel_withdraws_what_waits_and_tells_what_runs(make_engine: Any, workshop: Workshop) -> None:
    engine = make_engine(compile_slots=1)
    engine.start()
    engine.submit(task("runs"))
    engine.submit(task("waits"))
    engine.submit(task("other", job="job_b"))
    workshop.wait(lambda: workshop.running == {"runs"})
    engine.cancel("job_a")
    workshop.wait(lambda: workshop.cancelled == ["runs"])
    workshop.wait(lambda: workshop.running == {"other"})
    assert workshop.started == ["runs", "other"]
    assert engine.in_flight("job_a") == frozenset()
    engine.cancel("job_nowhere")


def test_withdraw_takes_back_what_waits_and_lets_run_what_runs(make_engine: Any, workshop: Workshop) -> None:
    engine = make_engine(compile_slots=1)
    engine.start()
    engine.submit(task("runs"))
    engine.submit(task("waits"))
    engine.submit(task("other", job="job_b"))
    workshop.wait(lambda: workshop.running == {"runs"})
    engine.withdraw("job_a")
    assert engine.in_flight("job_a") == {"runs"}
    workshop.let_go("runs")
    workshop.wait(lambda: workshop.running == {"other"})
    assert workshop.cancelled == []
    engine.withdraw("job_nowhere")


def test_cancelling_a_waiting_quiet_task_frees_the_compile_pool(make_engine: Any, workshop: Workshop) -> None:
    engine = make_engine(compile_slots=2)
    engine.start()
    engine.submit(task("c0", job="job_b"))
    workshop.wait(lambda: workshop.running == {"c0"})
    engine.submit(task("quiet", "device", quiet=True))
    engine.submit(task("c1", job="job_b"))
    engine.cancel("job_a")
    workshop.wait(lambda: workshop.running == {"c0", "c1"})
    assert "quiet" not in workshop.started


def test_a_handler_that_raises_is_reported_and_its_slot_lives_on(make_engine: Any, workshop: Workshop) -> None:
    engine = make_engine(compile_slots=1)
    workshop.let_all_go()
    engine.start()
    engine.submit(task("bad", payload={"raise": "a bug of ours"}))
    engine.submit(task("good"))
    workshop.wait(lambda: len(workshop.after) == 2)
    assert workshop.failures == [("bad", "a bug of ours")]
    assert workshop.started == ["bad", "good"]
    assert engine.in_flight("job_a") == frozenset()


def test_close_withdraws_cancels_waits_and_refuses(make_engine: Any, workshop: Workshop) -> None:
    engine = make_engine(compile_slots=1)
    engine.start()
    engine.submit(task("runs"))
    engine.submit(task("waits"))
    workshop.wait(lambda: workshop.running == {"runs"})
    engine.close(timeout_seconds=PATIENCE_SECONDS)
    assert workshop.cancelled == ["runs"]
    assert workshop.running == set()
    assert workshop.started == ["runs"]
    assert not engine.submit(task("late"))


class TestLocal:
    """What the embedded adapter offers beside the contract."""

    @pytest.fixture
    def engine(self, workshop: Workshop) -> Iterator[LocalEngine]:
        engine = LocalEngine(
            handler=workshop.handle,
            after=workshop.on_after,
            on_failure=workshop.on_failure,
            compile_slots=2,
            devices=["dev"],
        )
        yield engine
        workshop.let_all_go()
        engine.close(timeout_seconds=PATIENCE_SECONDS)

    def test_a_device_that_is_attached_later_gets_its_slot(self, engine: LocalEngine, workshop: Workshop) -> None:
        engine.start()
        engine.attach("gpu")
        engine.attach("gpu")
        for number in range(2):
            engine.submit(task(f"gpu{number}", "device", device="gpu"))
        workshop.wait(lambda: workshop.running == {"gpu0"})
        workshop.let_all_go()
        workshop.wait(lambda: len(workshop.after) == 2)
        assert workshop.most_at_once == {"gpu": 1}

    def test_what_would_disturb_waits_for_quiet_tasks_and_they_for_it(
        self, engine: LocalEngine, workshop: Workshop
    ) -> None:
        engine.attach("dev2")
        engine.start()
        engine.submit(task("quiet", "device", quiet=True))
        workshop.wait(lambda: workshop.running == {"quiet"})
        with engine.undisturbed() as free:
            assert not free
        workshop.let_go("quiet")
        workshop.wait(lambda: workshop.after == ["job_a"])
        with engine.undisturbed() as free:
            assert free
            engine.submit(task("later", "device", quiet=True))
            engine.submit(task("loud", "device", device="dev2"))
            workshop.wait(lambda: workshop.running == {"loud"})
            assert "later" not in workshop.started
        workshop.wait(lambda: workshop.running == {"loud", "later"})

    def test_a_task_for_a_device_without_a_slot_is_a_mistake(self, engine: LocalEngine) -> None:
        with pytest.raises(ValueError, match="dev9"):
            engine.submit(task("one", "device", device="dev9"))

    def test_running_names_the_holder_of_a_device(self, engine: LocalEngine, workshop: Workshop) -> None:
        engine.start()
        assert engine.running("dev") is None
        engine.submit(task("one", "device"))
        engine.submit(task("two", "device"))
        workshop.wait(lambda: workshop.running == {"one"})
        held = engine.running("dev")
        assert held is not None
        assert held.key == "one"
        assert engine.counts("job_a") == {"device": 2}

    def test_overlap_watch_sees_compiles_that_came_and_went(self, engine: LocalEngine, workshop: Workshop) -> None:
        engine.start()
        overlapped = engine.overlap_watch()
        assert not overlapped()
        engine.submit(task("c0"))
        workshop.wait(lambda: workshop.running == {"c0"})
        workshop.let_go("c0")
        workshop.wait(lambda: workshop.after == ["job_a"])
        assert overlapped()  # over by now, but it ran since the last question
        assert not overlapped()
        engine.submit(task("c1"))
        workshop.wait(lambda: workshop.running == {"c1"})
        assert overlapped()
        assert overlapped()  # still running
        workshop.let_go("c1")
        workshop.wait(lambda: len(workshop.after) == 2)
        assert overlapped()  # ran until after the last question
        assert not overlapped()
