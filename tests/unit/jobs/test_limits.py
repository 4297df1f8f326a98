"""What a job may use: at a limit nothing more is handed out, and every candidate is accounted for."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from catalogs.audit import audit_search
from search.errors import ChildFailed, InvalidInput
from tuner_service.db.engine import Database
from tuner_service.db.queries.jobs import list_job_events, use_device
from tuner_service.jobs.acceptance_advance import search_of
from tuner_service.jobs.freeze_catalog import FreezeRequest, freeze_jobs
from tuner_service.jobs.submit import submit
from tuner_service.workers.held import Held

QUICK_SEEDS = (3,)


@pytest.fixture
def limited(
    database: Database, resolve: Callable[..., Any], small: dict[str, Any], make_service: Any, tools: Any, device: Any
) -> Callable[..., tuple[Any, str]]:
    """A service whose every event takes a second of the device, and a job with limits in it."""

    def make(**limits: float) -> tuple[Any, str]:
        service = make_service(database, tools, device)
        perform, clock = tools.perform, [0.0]

        def timed(*words: Any, **more: Any) -> Iterator[Any]:
            for event in perform(*words, **more):
                clock[0] += 1.0
                yield event

        tools.perform = timed
        service.clock = lambda: clock[0]
        service.die()
        body = {**small, "limits": limits}
        return service, submit(database, resolve(body), idempotency_key=None, body_sha256="5" * 64)

    return make


def test_a_job_within_its_limits_ends_as_ever(limited: Any) -> None:
    service, job_id = limited(device_seconds=1000, wall_seconds=1000)
    job = service.finish(job_id)
    assert job["state"] == "succeeded"
    assert job["stopped_by"] is None
    assert job["limits"] == {"device_seconds": 1000, "wall_seconds": 1000}
    assert job["cases"][0]["winner"]
    assert 10 <= job["device_seconds"] < 30, "four trials, five re-timings, finals, a baseline, a validation"


def test_seconds_are_counted_of_tasks_that_hold_the_device_even_if_they_break_off(limited: Any, tools: Any) -> None:
    service, job_id = limited()
    service.advancer.advance(job_id)
    (build,) = service.engine.tasks
    service.run(build)
    assert service.job(job_id)["device_seconds"] == 0, "a build holds none"
    service.advancer.advance(job_id)
    timed = tools.perform

    def breaks_off(*words: Any, **more: Any) -> Iterator[Any]:
        events = timed(*words, **more)
        yield next(events)
        next(events)
        raise ChildFailed("the child broke off")

    tools.perform = breaks_off
    service.run(next(iter(service.engine.tasks)))
    assert service.job(job_id)["device_seconds"] == 2


def test_the_time_of_a_task_that_is_killed_counts_up_to_the_last_sign_of_life(limited: Any, tools: Any) -> None:
    service, job_id = limited()
    service.advancer.advance(job_id)
    service.run(next(iter(service.engine.tasks)))
    service.advancer.advance(job_id)
    timed, seconds = tools.perform, []

    def beats(*words: Any, **more: Any) -> Iterator[Any]:
        events = timed(*words, **more)
        yield next(events)
        next(events)
        for _ in range(2):
            service.worker.count_held()
            seconds.append(service.job(job_id)["device_seconds"])
        raise KeyboardInterrupt  # in the place of SIGKILL

    tools.perform = beats
    with pytest.raises(KeyboardInterrupt):
        service.worker.handle(next(iter(service.engine.tasks.values())), lambda: False)
    assert seconds == [2, 2], "what was counted is not counted again"
    service.worker.count_held()
    assert service.job(job_id)["device_seconds"] == 2, "nothing runs any more"


def test_time_that_could_not_be_counted_is_counted_later() -> None:
    now = [0.0]
    held = Held(lambda: now[0])
    now[0] = 3.0
    held.owe(held.so_far())
    now[0] = 4.0
    assert (held.lap(), held.lap()) == (4.0, 0.0)
    now[0] = 9.0
    assert held.so_far() == 0.0, "recording does not count"
    held.go_on()
    now[0] = 10.0
    assert held.lap() == 1.0


def test_at_the_limit_what_is_left_is_not_run_and_says_why(limited: Any, database: Database, check_sum: Any) -> None:
    service, job_id = limited(device_seconds=3)
    job = service.finish(job_id)
    assert (job["state"], job["stopped_by"], job["error"]) == ("succeeded", "device_seconds", None)
    case = job["cases"][0]
    assert case["winner"] is None
    assert case["error"] == "the job's limit of 3 device_seconds was reached when 2 of 4 candidates had been tried"
    assert case["best"], "what was measured is there"
    left = service.trials(job_id, outcome="not_run")
    assert left
    assert {(trial["reason"], trial["stage"]) for trial in left} == {("device_seconds", None)}
    assert job["progress"] == {"enumerated": 4, "rejected": 1, "measured": 1, "checked": 0, "pending": 0, "not_run": 2}
    assert check_sum(job)
    with database.read() as session:
        last = list_job_events(session, job_id)[-1]
    assert last["data"] == {"state": "succeeded", "error": None, "stopped_by": "device_seconds"}
    service.advancer.advance(job_id)
    assert service.job(job_id) == job


def test_a_task_that_waits_as_the_limit_is_reached_does_not_begin(limited: Any, tools: Any, database: Database) -> None:
    service, job_id = limited(device_seconds=5)
    service.advancer.advance(job_id)
    service.run(next(iter(service.engine.tasks)))
    service.advancer.advance(job_id)
    waits = list(service.engine.tasks)
    assert waits
    with database.write() as session:
        use_device(session, job_id, 5.0)
    performed = len(tools.performed)
    for key in waits:
        service.run(key)
    assert len(tools.performed) == performed
    assert service.job(job_id)["state"] == "running"
    service.advancer.advance(job_id)
    assert service.job(job_id)["stopped_by"] == "device_seconds"


def test_wall_seconds_count_from_the_beginning_also_while_nothing_ran(limited: Any, monkeypatch: Any) -> None:
    service, job_id = limited(wall_seconds=60)
    service.advancer.advance(job_id)
    service.die()
    monkeypatch.setattr("tuner_service.jobs.limits.seconds_between", lambda first, second: 61.0)
    job = service.finish(job_id)
    assert (job["state"], job["stopped_by"]) == ("succeeded", "wall_seconds")
    assert {trial["reason"] for trial in service.trials(job_id, outcome="not_run")} == {"wall_seconds"}


@pytest.mark.parametrize(
    "seed", [pytest.param(seed, marks=[] if seed in QUICK_SEEDS else pytest.mark.full) for seed in range(12)]
)
def test_any_limit_at_any_moment_leaves_every_candidate_accounted_for(
    seed: int, limited: Any, tools: Any, small: dict[str, Any], check_sum: Any
) -> None:
    chance = random.Random(seed)
    small["cases"] = [{"kernel": name, "dims": {"rows": 8, "cols": 33}} for name in ("softmax", "rms_norm")]
    limit = chance.uniform(0.5, 40)
    service, job_id = limited(device_seconds=limit)
    for _ in range(300):
        used = service.job(job_id)["device_seconds"]
        known = set(service.engine.tasks)
        service.advancer.advance(job_id)
        if used >= limit:
            assert set(service.engine.tasks) <= known, "nothing is handed out any more"
        if not service.engine.tasks:
            break
        if chance.random() < 0.2:
            service.die()
            continue
        service.run(chance.choice(sorted(service.engine.tasks)))
        if chance.random() < 0.2:
            assert check_sum(service.job(job_id))
    job = service.job(job_id)
    assert job["state"] == "succeeded"
    assert check_sum(job)
    assert job["progress"]["pending"] == 0
    for case in job["cases"]:
        assert (case["winner"] is None) == (case["error"] is not None)
        assert case["winner"] is None or case["progress"]["not_run"] == 0
    complete = all(case["winner"] for case in job["cases"])
    assert complete == (job["stopped_by"] is None)


@pytest.mark.parametrize(
    ("given", "pointer"),
    [
        ({"limits": {"device_seconds": 0}}, "/limits/device_seconds"),
        ({"limits": {"wall_seconds": True}}, "/limits/wall_seconds"),
        ({"limits": {"wall_seconds": "60"}}, "/limits/wall_seconds"),
        ({"limits": {"wall_seconds": 1e12}}, "/limits/wall_seconds"),
        ({"limits": {"seconds": 3}}, "/limits/seconds"),
        ({"limits": [3]}, "/limits"),
        ({"priority": 101}, "/priority"),
        ({"priority": 1.0}, "/priority"),
        ({"priority": True}, "/priority"),
        ({"priority": None}, "/priority"),
    ],
)
def test_wrong_limits_and_priorities_are_named(
    resolve: Any, small: dict[str, Any], given: dict[str, Any], pointer: str
) -> None:
    with pytest.raises(InvalidInput) as caught:
        resolve({**small, **given})
    (problem,) = caught.value.problems
    assert problem.field == pointer
    assert problem.allowed


def test_what_is_the_default_is_not_said(resolve: Any, small: dict[str, Any]) -> None:
    plain = resolve(small).document
    assert resolve({**small, "priority": 0, "limits": {"wall_seconds": None}}).document == plain
    said = resolve({**small, "priority": -3, "limits": {"wall_seconds": 1.5}})
    assert (said.document["priority"], said.document["limits"], said.priority) == (-3, {"wall_seconds": 1.5}, -3)


def test_a_limit_ends_a_job_whose_device_is_away(limited: Any, tools: Any) -> None:
    service, job_id = limited(device_seconds=50)
    for _ in range(2):
        service.advancer.advance(job_id)
        service.run(next(iter(service.engine.tasks)))
    service.advancer.advance(job_id)
    assert service.engine.tasks, "they wait for the device, and would for ever"
    with service.database.write() as session:
        use_device(session, job_id, 50.0)
    service.devices.clear()
    service.advancer.advance(job_id)
    job = service.job(job_id)
    assert (job["state"], job["stopped_by"], job["error"]) == ("succeeded", "device_seconds", None)
    assert not service.engine.tasks


@pytest.mark.parametrize(("seconds", "words"), [(8, "before the finals"), (10, "before the winner was built afresh")])
def test_a_case_says_how_far_it_came(limited: Any, seconds: float, words: str) -> None:
    service, job_id = limited(device_seconds=seconds)
    job = service.finish(job_id)
    assert words in job["cases"][0]["error"]
    assert job["cases"][0]["best"], "what was measured is said"
    assert (job["stopped_by"], job["progress"]["not_run"]) == ("device_seconds", 0)


def test_what_was_complete_can_be_frozen_and_its_evidence_names_no_search_that_was_cut_short(
    limited: Any, small: dict[str, Any], database: Database
) -> None:
    small["cases"] = [{"kernel": name, "dims": {"rows": 8, "cols": 33}} for name in ("softmax", "rms_norm")]
    service, job_id = limited(device_seconds=20)
    job = service.finish(job_id)
    assert [bool(case["winner"]) for case in job["cases"]] == [True, False]
    assert job["progress"]["not_run"] == 1
    frozen = freeze_jobs(database, FreezeRequest(jobs=(job_id,)))
    assert frozen["candidate"]["kernels"] == ["softmax"]
    (left,) = frozen["left_out"]
    assert "limit of 20 device_seconds" in str(left)
    with database.read() as session:
        bundle = search_of(session, job_id)
    assert [case["kernel"] for case in bundle["cases"]] == ["softmax"]
    assert audit_search(bundle).findings == ()
