"""A job ledger with a device that exists only on paper: steps are acted out, the ledger and its rules are real."""

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psycopg
import pytest
from sqlalchemy import event as sqlalchemy_event
from sqlalchemy import func, select

from search.device.spec import DeviceSpec
from search.events import (
    BaselineMeasured,
    Built,
    DefaultRetimed,
    Event,
    FinalsMeasured,
    FreshBuilt,
    Revalidated,
    TrialChecked,
    TrialMeasured,
    TrialRejected,
)
from search.ledger import CaseState
from search.lowering.contract import Artifact, CodeFacts
from search.measuring.protocol import BaselineSamples, Checks, FinalsSamples, InputCheck, PhaseTiming
from search.outcome import Rejected
from search.program.case import Case
from search.steps import Baseline, Build, Check, Finals, FreshBuild, Measure, Revalidate, ShareCode, Step
from tuner_service.db.engine import Database
from tuner_service.db.json_text import parsed
from tuner_service.db.models import Case as CaseRow
from tuner_service.db.models import Trial
from tuner_service.db.queries.cases import COUNTED
from tuner_service.db.queries.jobs import get_job, job_case_document
from tuner_service.db.queries.trials import list_trials
from tuner_service.engine.contract import Task
from tuner_service.jobs.advance import Advancer
from tuner_service.jobs.ledger import Ledger
from tuner_service.jobs.recover import recover
from tuner_service.jobs.request import Limits, ResolvedRequest, resolve_request
from tuner_service.jobs.submit import submit
from tuner_service.workers.perform import Worker


def paper_device(**changes: Any) -> DeviceSpec:
    fields: dict[str, Any] = {
        "id": "cpu:000000000000",
        "kind": "cpu",
        "target": "cpu",
        "name": "a CPU on paper",
        "identity": {"model": "paper"},
        "identity_digest": "1" * 64,
        "toolchain": {"gcc": "0"},
        "toolchain_fingerprint": "2" * 64,
        "available": True,
    }
    return DeviceSpec(**(fields | changes))


def passed_checks() -> Checks:
    check = InputCheck(
        name="normal",
        elements_checked=264,
        guard_elements_checked=136,
        input_sha256="3" * 64,
        tolerance="2 ulp",
        max_abs_error=0.0,
        max_rel_error=0.0,
        max_ulp_error=0.0,
        max_tolerance=1e-6,
    )
    return Checks(passed=True, inputs=(check,), guards_intact=True, inputs_unchanged=True)


def phase(seconds: float) -> PhaseTiming:
    return PhaseTiming(samples_seconds=(seconds,) * 5, median_seconds=seconds, calls_per_sample=10)


@dataclass
class PaperTools:
    """Acts steps out. ``code`` gives a trial's machine code, ``seconds`` its time, ``fails`` what goes wrong."""

    code: Callable[[int], str] = lambda ordinal: f"{ordinal:064x}"
    seconds: Callable[[int], float] = lambda ordinal: 1e-6 * (100 - ordinal)
    rejects: Mapping[int, Rejected] = field(default_factory=dict)
    faults: Callable[[Step, CaseState], BaseException | None] = lambda step, state: None
    performed: list[tuple[str, Step]] = field(default_factory=list)

    def perform(
        self, step: Step, state: CaseState, case: Case, *, device_id: str, cancelled: Callable[[], bool]
    ) -> Iterator[Event]:
        self.performed.append((state.id, step))
        if (error := self.faults(step, state)) is not None:
            raise error
        ordinal = {trial.id: trial.ordinal for trial in state.trials}
        default = next(trial for trial in state.trials if trial.is_default)
        match step:
            case Build():
                for trial in step.trials:
                    yield Built(
                        trial=trial,
                        artifact=self.artifact(ordinal[trial]),
                        facts=self.facts(ordinal[trial]),
                        lower_seconds=0.01,
                        compile_seconds=0.02,
                    )
            case Measure():
                for trial in step.trials:
                    if ordinal[trial] in self.rejects:
                        yield TrialRejected(trial=trial, rejection=self.rejects[ordinal[trial]])
                    else:
                        timing = {"device_batch": phase(self.seconds(ordinal[trial]))}
                        yield TrialMeasured(trial=trial, timing=timing, checks=passed_checks(), overlapped=False)
                for number in range(step.retimes):
                    yield DefaultRetimed(
                        sequence=step.first_retime_sequence + number, timing=phase(self.seconds(default.ordinal))
                    )
            case Check():
                for trial in step.trials:
                    if ordinal[trial] in self.rejects:
                        yield TrialRejected(trial=trial, rejection=self.rejects[ordinal[trial]])
                    else:
                        yield TrialChecked(trial=trial, checks=passed_checks())
            case ShareCode() if state.untimed is not None:
                for trial, other in step.trials:
                    yield TrialChecked(trial=trial, checks=passed_checks(), same_code_as=other)
            case ShareCode():
                for trial, other in step.trials:
                    yield TrialMeasured(
                        trial=trial,
                        timing=state.trial(other).timing,
                        checks=passed_checks(),
                        overlapped=False,
                        same_code_as=other,
                    )
            case Finals():
                four = ("device_batch", "device_single", "e2e_batch", "e2e_single")
                yield FinalsMeasured(
                    samples=FinalsSamples(
                        order=step.trials,
                        protocol="finals",
                        samples_seconds={t: (self.seconds(ordinal[t]),) * 15 for t in step.trials},
                        extra_phases={t: dict.fromkeys(four, phase(self.seconds(ordinal[t]))) for t in step.all_phases},
                    ),
                    phases_only=not step.trials,
                )
            case Baseline():
                yield BaselineMeasured(
                    samples=BaselineSamples(
                        name=step.name,
                        implementation="torch.softmax",
                        allocation="preallocated (out=)",
                        versions={"torch": "0"},
                        timing={"device_batch": phase(1e-3)},
                        checks=passed_checks(),
                        kernel_id=step.against,
                        kernel_seconds=(1e-4,) * 5 if step.against else (),
                    )
                )
            case FreshBuild():
                for trial in step.trials:
                    yield FreshBuilt(
                        trial=trial,
                        artifact=self.artifact(ordinal[trial]),
                        plan=state.trial(trial).plan,
                        rejection=None,
                    )
            case Revalidate():
                for trial in step.trials:
                    yield Revalidated(
                        trial=trial, same_source=True, same_machine_code=True, same_plan=True, checks=passed_checks()
                    )

    def artifact(self, ordinal: int) -> Artifact:
        return Artifact(
            source_sha256=f"{ordinal:064x}",
            artifact_sha256=self.code(ordinal),
            library_path="/nowhere.so",
            library_sha256="4" * 64,
            symbol=f"k{ordinal}",
            arguments=(),
        )

    def facts(self, ordinal: int) -> CodeFacts:
        return CodeFacts(
            source_sha256=f"{ordinal:064x}",
            artifact_sha256=self.code(ordinal),
            static_instructions=100,
            static_branches=3,
            stack_bytes=64,
            widest_vector_bits=256,
            code_bytes=400,
        )

    def rest(self) -> None: ...

    def close(self) -> None: ...


def hurried(database: Database) -> Database:
    """The database, not yet connected to; SQLite waits for no disk: here no power is cut."""
    if database.is_sqlite:

        @sqlalchemy_event.listens_for(database.engine, "connect")
        def _hurry(connection: Any, _record: object) -> None:
            connection.execute("PRAGMA synchronous=OFF")

    return database


@dataclass
class PlayedLedgers:
    """Ledgers as they are after some play, which takes a second: each is played once on a kind, and then copied."""

    played: dict[tuple[str, str], tuple[bytes, Any]] = field(default_factory=dict)
    """Name and kind → a SQLite file, or a PostgreSQL database's name; and what the play told."""

    def put(self, name: str, play: Callable[[Database], Any], url: str) -> Any:
        """Have the ledger of this name in an empty database that nobody has open; what ``play`` answered."""
        kind = url.partition(":")[0]
        if (name, kind) in self.played:
            whole, told = self.played[name, kind]
            if kind == "sqlite":
                Path(url.removeprefix("sqlite:///")).write_bytes(whole)
            else:
                self._copy(url, of=whole.decode(), to=url.rpartition("/")[2])
            return told
        database = hurried(Database(url))
        told = play(database)
        database.close()  # the last connection moves SQLite's log into the file
        if kind == "sqlite":
            whole = Path(url.removeprefix("sqlite:///")).read_bytes()
        else:
            whole = f"played_{len(self.played)}".encode()
            self._copy(url, of=url.rpartition("/")[2], to=whole.decode())
        self.played[name, kind] = (whole, told)
        return told

    @staticmethod
    def _copy(url: str, *, of: str, to: str) -> None:
        with psycopg.connect(f"{url.rpartition('/')[0]}/postgres", autocommit=True) as connection:
            connection.execute(f"DROP DATABASE IF EXISTS {to} WITH (FORCE)")
            connection.execute(f"CREATE DATABASE {to} TEMPLATE {of} STRATEGY file_copy")


@pytest.fixture(scope="session")
def played_ledgers() -> PlayedLedgers:
    return PlayedLedgers()


@pytest.fixture
def database(open_database: Callable[..., Database]) -> Database:
    return hurried(open_database())


@pytest.fixture
def hurry() -> Callable[[Database], Database]:
    return hurried


@pytest.fixture
def device() -> DeviceSpec:
    return paper_device()


@pytest.fixture
def make_device() -> Callable[..., DeviceSpec]:
    return paper_device


@pytest.fixture
def tools() -> PaperTools:
    return PaperTools()


@pytest.fixture
def resolve(device: DeviceSpec) -> Callable[..., ResolvedRequest]:
    def resolve(body: Any, **limits: Any) -> ResolvedRequest:
        return resolve_request(body, devices={device.id: device}, limits=Limits(**limits))

    return resolve


SMALL = {
    "cases": [{"kernel": "softmax", "dims": {"rows": 8, "cols": 33}}],
    "space": {
        "width": [8, 16],
        "input": ["reload", "cache"],
        "materialize": ["private"],
        "simd_scope": ["none"],
        "nontemporal": [False],
    },
    "private_budget_scalars": 8,
}
"""Four candidates in the space, one of them over budget, and a default beside them."""


@pytest.fixture
def small() -> dict[str, Any]:
    return {**SMALL, "cases": [dict(case) for case in SMALL["cases"]], "space": dict(SMALL["space"])}


@pytest.fixture
def submitted(database: Database, resolve: Callable[..., ResolvedRequest], small: dict[str, Any]) -> str:
    return submit(database, resolve(small), idempotency_key=None, body_sha256="5" * 64)


class InlineEngine:
    """An engine without threads: the test says which task runs when, and which is lost."""

    def __init__(self) -> None:
        self.tasks: dict[str, Task] = {}
        self.cancelled: list[str] = []

    def start(self) -> None: ...

    def submit(self, task: Task) -> bool:
        if task.key in self.tasks:
            return False
        self.tasks[task.key] = task
        return True

    def in_flight(self, job_id: str) -> frozenset[str]:
        return frozenset(key for key, task in self.tasks.items() if task.job_id == job_id)

    def withdraw(self, job_id: str) -> None:
        for key in self.in_flight(job_id):
            del self.tasks[key]

    def cancel(self, job_id: str) -> None:
        self.cancelled.append(job_id)
        for key in self.in_flight(job_id):
            del self.tasks[key]

    def close(self, *, timeout_seconds: float) -> None: ...


class Service:
    """Ledger, advance and worker around an inline engine. ``die`` is SIGKILL: memory is gone, the database stays."""

    def __init__(self, database: Database, tools: PaperTools, device: DeviceSpec) -> None:
        self.database, self.tools = database, tools
        self.devices = {device.id: device}
        self.clock: Callable[[], float] = time.monotonic
        self.die()

    def die(self) -> None:
        self.engine, self.ledger = InlineEngine(), Ledger()
        self.worker = Worker(
            database=self.database,
            ledger=self.ledger,
            tools=self.tools,
            cancel_tasks=lambda job_id: self.engine.cancel(job_id),
            clock=lambda: self.clock(),
        )
        self.advancer = Advancer(
            database=self.database,
            ledger=self.ledger,
            engine=self.engine,
            devices=lambda: self.devices,
            compile_slots=1,
        )
        self.unfinished = recover(self.database)

    def run(self, key: str, *, cancelled: bool = False) -> None:
        task = self.engine.tasks[key]
        try:
            self.worker.handle(task, lambda: cancelled)
        except Exception as error:
            self.worker.on_failure(task, error)
        finally:
            self.engine.tasks.pop(key, None)

    def finish(self, job_id: str, *, limit: int = 500) -> dict[str, Any]:
        """Advances and runs tasks until nothing is left; the job's JSON."""
        for _ in range(limit):
            self.advancer.advance(job_id)
            if not self.engine.tasks:
                break
            self.run(next(iter(self.engine.tasks)))
        else:
            raise AssertionError("the job does not end")
        return self.job(job_id)

    def job(self, job_id: str) -> dict[str, Any]:
        check_counts(self.database)
        with self.database.read() as session:
            return get_job(session, job_id)

    def case(self, job_id: str, case_index: int) -> dict[str, Any]:
        with self.database.read() as session:
            document: dict[str, Any] = parsed(job_case_document(session, job_id, case_index))
            return document

    def trials(self, job_id: str, **filters: Any) -> list[dict[str, Any]]:
        with self.database.read() as session:
            return list_trials(session, job_id, limit=1000, **filters)["items"]


@pytest.fixture
def service(database: Database, tools: PaperTools, device: DeviceSpec) -> Service:
    return Service(database, tools, device)


def check_counts(database: Database) -> None:
    """What every case counts is what a count of its trials says."""
    by_outcome = (
        select(Trial.case_id, Trial.outcome, func.count()).where(Trial.in_space).group_by(Trial.case_id, Trial.outcome)
    )
    with database.read() as session:
        found = {(case_id, outcome): number for case_id, outcome, number in session.execute(by_outcome)}
        for case in session.scalars(select(CaseRow)):
            for outcome in COUNTED:
                assert getattr(case, outcome) == found.get((case.id, outcome), 0), (case.id, outcome)


def adds_up(document: Mapping[str, Any]) -> bool:
    """enumerated = measured + checked + rejected + pending + not_run, for the job and for each case."""
    parts = ("measured", "checked", "rejected", "pending", "not_run")
    levels = [document["progress"], *(case["progress"] for case in document["cases"])]
    return all(p["enumerated"] == sum(p[part] for part in parts) and min(p.values()) >= 0 for p in levels)


@pytest.fixture
def check_sum() -> Callable[[Mapping[str, Any]], bool]:
    return adds_up


@pytest.fixture
def make_service() -> Callable[..., Service]:
    return Service
