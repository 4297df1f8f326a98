"""Several processes at one ledger at once: each has a pool and a memory of its own, the database alone decides."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from search.steps import missing
from tuner_service.db.clock import new_id
from tuner_service.db.engine import Database
from tuner_service.db.queries import acceptances, cases, catalogs, devices, jobs, trials
from tuner_service.db.queries.job_lists import list_jobs
from tuner_service.errors import Conflict, IdempotencyMismatch
from tuner_service.jobs.acceptance import AcceptRequest, accept
from tuner_service.jobs.acceptance_ledger import end_acceptance
from tuner_service.jobs.claiming import claim, release
from tuner_service.jobs.ending import end_job
from tuner_service.jobs.freeze_catalog import FreezeRequest, freeze_jobs
from tuner_service.jobs.ledger import Ledger
from tuner_service.jobs.opening import open_case
from tuner_service.jobs.promote import manifest_of, promote, rollback
from tuner_service.jobs.submit import submit

pytestmark = pytest.mark.databases("sqlite", "postgresql")

PATIENCE_SECONDS = 60.0
Processes = Sequence[Database]


@pytest.fixture
def processes(open_database: Callable[..., Database]) -> Processes:
    """The database as four processes have it."""
    return [open_database(connections=8) for _ in range(4)]


def at_once(*actions: Callable[[], Any]) -> list[Any]:
    """What each action answers or raises; all begin at the same moment."""
    gate = threading.Barrier(len(actions))

    def run(action: Callable[[], Any]) -> Any:
        gate.wait(PATIENCE_SECONDS)
        try:
            return action()
        except Exception as error:
            return error

    with ThreadPoolExecutor(len(actions)) as pool:
        return list(pool.map(run, actions))


def test_one_key_from_fifty_clients_makes_one_job(processes: Processes, resolve: Any, small: Any) -> None:
    request = resolve(small)

    def post(number: int) -> str:
        return submit(processes[number % len(processes)], request, idempotency_key="k", body_sha256="a")

    made = at_once(*(lambda number=number: post(number) for number in range(50)))
    with processes[0].read() as session:
        page = list_jobs(session)
        events = jobs.list_job_events(session, made[0])
    assert [job["id"] for job in page["items"]] == list(set(made))
    assert [event["data"] for event in events] == [{"state": "queued"}]


def test_one_key_with_different_bodies_goes_to_the_first(processes: Processes, resolve: Any, small: Any) -> None:
    request = resolve(small)
    came = at_once(
        *(
            lambda process=process, body=body: submit(process, request, idempotency_key="k", body_sha256=body)
            for body, process in zip("abcd", processes, strict=True)
        )
    )
    (job_id,) = (answer for answer in came if isinstance(answer, str))
    refused = [answer for answer in came if not isinstance(answer, str)]
    assert all(isinstance(answer, IdempotencyMismatch) and answer.made_id == job_id for answer in refused)
    with processes[0].read() as session:
        assert [job["id"] for job in list_jobs(session)["items"]] == [job_id]


def test_a_device_that_all_see_at_once_is_one(processes: Processes) -> None:
    def see(process: Database) -> None:
        with process.write() as session:
            devices.seen_device(session, {"id": "one", "kind": "cpu"})

    assert at_once(*(lambda process=process: see(process) for process in processes)) == [None] * len(processes)
    with processes[0].read() as session:
        assert [device["id"] for device in devices.list_devices(session)] == ["one"]


def test_a_case_that_all_open_has_each_candidate_once(processes: Processes, resolve: Any, small: Any) -> None:
    job_id = submit(processes[0], resolve(small), idempotency_key=None, body_sha256="a")
    with processes[0].read() as session:
        (case,) = cases.case_rows(session, job_id)
    opened = at_once(*(lambda process=process: open_case(process, job_id, case["id"]) for process in processes))
    assert set(opened) <= {True, False}
    assert open_case(processes[0], job_id, case["id"])
    with processes[0].read() as session:
        listed = trials.list_trials(session, job_id)["items"]
        events = [event["data"].get("event") for event in jobs.list_job_events(session, job_id)]
    assert [trial["ordinal"] for trial in listed] == [0, 1, 2, 3, 4]
    assert events.count("opened") == 1


def test_a_step_is_claimed_by_one_and_released_once(processes: Processes, service: Any, submitted: str) -> None:
    service.advancer.advance(submitted)
    (task,) = service.engine.tasks.values()
    assert release(processes[0], service.ledger, task.key, fault=None, stopped=True)
    with processes[0].read() as session:
        (case,) = cases.case_rows(session, submitted)
        step = missing(service.ledger.load(session, case["id"]), [])[0]
    claimed = at_once(*(lambda process=process: claim(process, submitted, case["id"], step) for process in processes))
    (one,) = (answer for answer in claimed if answer is not None)
    released = at_once(
        *(lambda process=process: release(process, Ledger(), one.key, fault="lost") for process in processes)
    )
    assert sorted(released) == [False, True, True, True], "the loss counts once"
    with processes[0].read() as session:
        assert set(trials.losses(session, case["id"]).values()) == {1}


def test_what_ends_a_job_ends_it_once_and_nothing_comes_after(
    processes: Processes, service: Any, submitted: str, check_sum: Callable[..., bool]
) -> None:
    """Work goes on in one process while the others end the job; the feed is read all the time."""
    service.advancer.advance(submitted)
    seen: list[int] = []
    over = threading.Event()

    def follow() -> None:
        while not over.is_set():
            with processes[3].read() as session:
                news = jobs.list_job_events(session, submitted, after=seen[-1] if seen else 0)
            seen.extend(event["sequence"] for event in news)

    def end(process: Database, state: Any) -> bool:
        return end_job(process, submitted, state, error=None)

    def work() -> None:
        for key in list(service.engine.tasks):
            service.run(key)

    reader = threading.Thread(target=follow)
    reader.start()
    try:
        _, *ended = at_once(
            work,
            lambda: end(processes[0], "cancelled"),
            lambda: end(processes[1], "failed"),
            lambda: end(processes[2], "cancelled"),
        )
    finally:
        over.set()
        reader.join(PATIENCE_SECONDS)
    assert sorted(ended) == [False, False, True]
    follow_up = service.job(submitted)
    assert check_sum(follow_up)
    assert follow_up["progress"]["pending"] == 0
    with processes[0].read() as session:
        every = jobs.list_job_events(session, submitted)
    assert every[-1]["data"]["state"] in ("cancelled", "failed")
    assert seen == [event["sequence"] for event in every][: len(seen)], "a reader never misses what comes late"


@pytest.fixture
def candidates(processes: Processes, service: Any, resolve: Any, small: Any) -> list[str]:
    """Digests of two candidate catalogs, each frozen by every process at once, accepted against nothing."""
    found = []
    for kernel in ("softmax", "rms_norm"):
        body = {**small, "cases": [{"kernel": kernel, "dims": {"rows": 8, "cols": 33}}]}
        job_id = submit(processes[0], resolve(body), idempotency_key=None, body_sha256="a")
        assert service.finish(job_id)["state"] == "succeeded"
        request = FreezeRequest(jobs=(job_id,))
        frozen = at_once(*(lambda process=process: freeze_jobs(process, request) for process in processes))  # noqa: B023
        assert all(one == frozen[0] for one in frozen), frozen
        found.append(frozen[0]["candidate"]["digest"])
    with processes[0].read() as session:
        assert catalogs.list_catalogs(session)["total"] == 4
    return found


def accepted(database: Database, digest: str, *, incumbent: str | None = None) -> None:
    row = {
        "id": new_id("acc"),
        "state": "succeeded",
        "catalog": digest,
        "reference": "0" * 64,
        "incumbent": incumbent,
        "alias": "prod",
        "rounds": 4,
        "device_id": "cpu:0",
        "device": {},
        "replay": {},
        "attempt": 0,
        "failures": 0,
        "verdict": "accepted",
        "created_at": "2026-01-01T00:00:00Z",
    }
    with database.write() as session:
        acceptances.insert_acceptance(session, row)


def test_an_alias_moves_one_step_at_a_time(processes: Processes, candidates: list[str]) -> None:
    one, other = candidates
    accepted(processes[0], one)
    accepted(processes[0], other)
    came = at_once(
        *(
            lambda process=process, digest=digest: promote(process, "prod", digest)
            for process, digest in zip(processes, (one, other, one, other), strict=True)
        )
    )
    assert {type(answer) for answer in came} == {type(None), Conflict}, "the later ones were not run against the first"
    with processes[0].read() as session:
        manifest = manifest_of(session, "prod").document()
    first = manifest["entries"][0]["digest"]
    assert manifest["history"] == [], "promoting what stands there adds nothing"

    later = other if first == one else one
    accepted(processes[0], later, incumbent=first)
    assert at_once(*(lambda process=process: promote(process, "prod", later) for process in processes)) == [None] * 4
    back = at_once(*(lambda process=process: rollback(process, "prod") for process in processes))
    assert sorted(type(answer).__name__ for answer in back) == ["Conflict"] * 3 + ["NoneType"]
    with processes[0].read() as session:
        manifest = manifest_of(session, "prod").document()
    assert [entry["digest"] for entry in manifest["entries"]] == [first]
    assert [state["action"] for state in manifest["history"]] == ["promote", "promote"]


def test_an_acceptance_is_asked_for_once_and_ends_once(
    processes: Processes, service: Any, candidates: list[str]
) -> None:
    def ask(process: Database) -> str:
        devices = service.devices
        return accept(process, candidates[0], AcceptRequest(), devices=devices, idempotency_key="k", request_sha256="a")

    (acceptance_id,) = set(at_once(*(lambda process=process: ask(process) for process in processes)))
    ended = at_once(
        *(
            lambda process=process, state=state: end_acceptance(process, acceptance_id, state, error=state)
            for process, state in zip(processes, ("failed", "cancelled", "failed", "cancelled"), strict=True)
        )
    )
    assert sorted(ended) == [False, False, False, True]
    with processes[0].read() as session:
        row = acceptances.acceptance_row(session, acceptance_id)
        assert acceptances.list_acceptances(session)["total"] == 1
    assert row["error"] == row["state"], "what the one wrote that ended it"


def test_a_rollback_that_is_asked_for_again_goes_back_once(processes: Processes, candidates: list[str]) -> None:
    one, other = candidates
    accepted(processes[0], one)
    promote(processes[0], "prod", one)
    accepted(processes[0], other, incumbent=one)
    promote(processes[0], "prod", other)
    accepted(processes[0], one, incumbent=other)
    promote(processes[0], "prod", one)
    again = at_once(
        *(
            lambda process=process: rollback(process, "prod", idempotency_key="k", request_sha256="a")
            for process in processes
        )
    )
    assert again == [None] * 4
    with processes[0].read() as session:
        assert [entry.digest for entry in manifest_of(session, "prod").entries] == [other]
