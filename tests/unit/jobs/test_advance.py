"""A job from queued to its end: what is recorded, what a crash costs, who is charged for what."""

import errno
from collections.abc import Callable
from typing import Any

import pytest
from sqlalchemy import event

from search.errors import Cancelled, ChildFailed, DeviceContended, DeviceUnavailable, ToolchainUnavailable
from search.outcome import Rejected
from search.steps import Build, Finals, Measure
from tuner_service.db.engine import Database
from tuner_service.db.queries.jobs import active_job_ids, list_job_events
from tuner_service.errors import DatabaseFull, DatabaseUnavailable, DeviceAwaited, NotFound
from tuner_service.jobs.cancel import cancel
from tuner_service.jobs.submit import submit
from tuner_service.workers import perform

Check = Callable[[Any], bool]


def test_progress_is_right_from_the_start(service: Any, submitted: str, check_sum: Check) -> None:
    job = service.job(submitted)
    assert job["state"] == "queued"
    assert job["progress"] == {"enumerated": 4, "rejected": 0, "measured": 0, "checked": 0, "pending": 4, "not_run": 0}
    assert job["cases"][0]["state"] == "queued"
    assert job["error"] is None
    assert job["started_at"] is None


def test_a_job_ends_with_winner_reference_and_baselines(service: Any, submitted: str, check_sum: Check) -> None:
    job = service.finish(submitted)
    assert job["state"] == "succeeded"
    assert job["progress"] == {"enumerated": 4, "rejected": 1, "measured": 3, "checked": 0, "pending": 0, "not_run": 0}
    case = job["cases"][0]
    assert case["state"] == "settled"
    assert case["winner"]["ordinal"] == 3  # the fastest on paper within the space
    assert case["winner"]["candidate"]["input"] == "cache"
    assert case["reference"]["ordinal"] == 2
    assert case["default"]["is_default"]
    assert not case["default"]["in_space"]
    assert case["tie_set"] == [case["winner"]["id"]]
    assert case["noise_floor"] == pytest.approx(0.01)
    assert case["baselines"]["torch_eager"]["median_seconds"] == pytest.approx(1e-3)
    assert case["baselines"]["torch_eager"]["ratio"]["median"] == pytest.approx(0.1)
    assert case["best"]["id"] == case["winner"]["id"]
    assert case["error"] is None
    assert len(service.case(submitted, 0)["retimes"]) >= 5
    assert set(case["winner"]["timing"]) == {"device_batch", "device_single", "e2e_batch", "e2e_single"}
    assert case["winner"]["timing"]["e2e_batch"]["median_seconds"] > 0
    assert all(trial["attempt"] == 1 for trial in service.trials(submitted))
    assert check_sum(job)


def test_a_measured_trial_has_every_field_of_the_contract(service: Any, submitted: str) -> None:
    service.finish(submitted)
    trial = service.trials(submitted, outcome="measured")[0]
    assert set(trial) >= {
        "id", "job_id", "case", "candidate", "in_space", "is_default", "outcome", "stage", "reason", "detail",
        "same_code_as", "overlapped", "plan", "code", "timing", "checks", "attempt", "worker", "created_at",
        "finished_at",
    }  # fmt: skip
    assert trial["plan"]["demand"]["per_lane"]["scalar_rounds"] > 0
    assert trial["code"]["static_instructions"] == 100
    assert trial["timing"]["device_batch"]["samples_seconds"]
    assert trial["checks"]["inputs"][0]["elements_checked"] == 264
    assert trial["worker"]
    assert trial["finished_at"] >= trial["created_at"]


def test_a_budget_rejection_is_recorded_with_its_numbers(service: Any, submitted: str) -> None:
    service.finish(submitted)
    (rejected,) = service.trials(submitted, outcome="rejected")
    assert (rejected["stage"], rejected["reason"]) == ("constraints", "private_budget")
    assert rejected["detail"]["private_scalars"] == 10
    assert rejected["plan"]["private_scalars"] == 10
    assert rejected["timing"] is None


def test_equal_code_is_timed_once(service: Any, tools: Any, submitted: str) -> None:
    tools.code = lambda ordinal: "a" * 64 if ordinal in (2, 3) else f"{ordinal:064x}"
    service.finish(submitted)
    trials = {trial["ordinal"]: trial for trial in service.trials(submitted)}
    assert trials[3]["same_code_as"] == trials[2]["id"]
    assert trials[3]["timing"]["device_batch"] == trials[2]["timing"]["device_batch"]


def test_a_case_whose_every_candidate_is_rejected_still_succeeds(service: Any, tools: Any, submitted: str) -> None:
    tools.rejects = {n: Rejected(stage="runtime", reason="crashed", detail={"signal": "SIGSEGV"}) for n in range(5)}
    job = service.finish(submitted)
    assert job["state"] == "succeeded"
    assert job["cases"][0]["winner"] is None
    assert job["progress"]["rejected"] == 4
    assert job["cases"][0]["default"]["outcome"] == "rejected"


def test_every_case_of_a_job_is_settled(
    service: Any, database: Database, resolve: Any, small: dict[str, Any], check_sum: Check
) -> None:
    small["cases"] = [{"kernel": name, "dims": {"rows": 8, "cols": 33}} for name in ("softmax", "rms_norm")]
    job = service.finish(submit(database, resolve(small), idempotency_key=None, body_sha256="5" * 64))
    assert job["state"] == "succeeded"
    assert [case["kernel"] for case in job["cases"]] == ["softmax", "rms_norm"]
    assert all(case["winner"] for case in job["cases"])
    assert job["cases"][1]["inert_knobs"] == ["algorithm", "materialize"]
    assert check_sum(job)


def test_the_feed_tells_everything_in_order(service: Any, database: Database, submitted: str) -> None:
    service.finish(submitted)
    with database.read() as session:
        events = list_job_events(session, submitted)
        rest = list_job_events(session, submitted, after=events[3]["sequence"])
    assert [event["data"]["state"] for event in events if event["kind"] == "job"] == ["queued", "running", "succeeded"]
    assert rest == events[4:]
    ended = [event["data"] for event in events if event["kind"] == "trial" and event["data"]["outcome"] == "measured"]
    assert len({trial["trial_id"] for trial in ended}) == 4
    assert events[-2]["data"]["winner"]


def test_a_kill_at_any_moment_loses_nothing_and_repeats_nothing_recorded(
    service: Any, tools: Any, submitted: str, check_sum: Check
) -> None:
    """The service dies after every single task and in the middle of each; the job still ends the same."""
    seen: dict[str, dict[str, Any]] = {}
    for _ in range(200):
        service.die()
        assert service.unfinished in ([submitted], [])
        if not service.unfinished:
            break
        service.advancer.advance(submitted)
        service.die()  # claims were made, nothing ran
        service.advancer.advance(submitted)
        for key in list(service.engine.tasks)[:1]:
            service.run(key)
        assert check_sum(service.job(submitted))
        for trial in service.trials(submitted):
            before = seen.get(trial["id"], {"outcome": "pending"})
            if before["outcome"] != "pending":
                assert (trial["outcome"], trial["finished_at"]) == (before["outcome"], before["finished_at"])
            seen[trial["id"]] = trial
    job = service.job(submitted)
    assert job["state"] == "succeeded"
    assert job["cases"][0]["winner"]["ordinal"] == 3
    assert len(seen) == 5
    assert not any(trial["stage"] == "lost_worker" for trial in seen.values())
    measured = [trial for _, step in tools.performed if isinstance(step, Measure) for trial in step.trials]
    assert len(measured) == len(set(measured)) == 4


def test_a_void_claims_results_are_refused(service: Any, submitted: str) -> None:
    service.advancer.advance(submitted)
    (key,) = service.engine.tasks
    late = service.engine.tasks[key]
    old = service.worker
    service.die()
    service.advancer.advance(submitted)  # the claim of the dead process is void, and made anew
    assert service.engine.tasks[key].payload["attempts"] != late.payload["attempts"]
    old.handle(late, lambda: False)
    assert all(trial["code"] is None for trial in service.trials(submitted))


def test_a_late_end_of_a_void_task_leaves_the_claim_that_was_made_since(service: Any, submitted: str) -> None:
    """Its worker was cut off for so long that the step was asked for again, under the same key."""
    service.advancer.advance(submitted)
    (key,) = service.engine.tasks
    late = service.engine.tasks[key]
    old = service.worker
    service.die()
    service.advancer.advance(submitted)
    old.on_failure(late, ChildFailed("the child broke off"))
    assert [trial["attempt"] for trial in service.trials(submitted, outcome="pending")] == [2] * 4
    service.run(key)
    assert any(trial["code"] for trial in service.trials(submitted)), "the new claim stood"


def test_a_task_that_is_delivered_twice_is_harmless(service: Any, tools: Any, submitted: str, check_sum: Check) -> None:
    for _ in range(500):
        service.advancer.advance(submitted)
        if not service.engine.tasks:
            break
        key, task = next(iter(service.engine.tasks.items()))
        service.worker.handle(task, lambda: False)
        once = service.trials(submitted)
        service.run(key)
        assert service.trials(submitted) == once
    job = service.job(submitted)
    assert (job["state"], job["cases"][0]["winner"]["ordinal"]) == ("succeeded", 3)
    assert check_sum(job)


def test_a_lost_trial_is_tried_again_alone_and_lost_twice_it_is_rejected(
    service: Any, tools: Any, submitted: str, check_sum: Check
) -> None:
    def faults(step: Any, state: Any) -> BaseException | None:
        ordinals = [trial.ordinal for trial in state.trials if trial.id in getattr(step, "trials", ())]
        return ChildFailed("the child broke off") if isinstance(step, Build) and 2 in ordinals else None

    tools.faults = faults
    job = service.finish(submitted)
    assert job["state"] == "succeeded"
    lost = [trial for trial in service.trials(submitted) if trial["stage"] == "lost_worker"]
    assert [trial["ordinal"] for trial in lost] == [2]
    assert lost[0]["detail"]["losses"] == 2
    assert "the child broke off" in lost[0]["detail"]["message"]
    assert lost[0]["attempt"] > 1
    assert job["cases"][0]["winner"]["ordinal"] == 3
    assert check_sum(job)


def test_load_of_others_on_the_device_is_nobodys_fault_and_is_waited_for(
    service: Any, tools: Any, submitted: str, check_sum: Check
) -> None:
    waits = iter(range(6))  # more than the losses that a trial, and the faults that a job, may have

    def faults(step: Any, state: Any) -> BaseException | None:
        busy = isinstance(step, Measure | Finals) and next(waits, None) is not None
        return DeviceContended("others compute on the device: processes [77]") if busy else None

    tools.faults = faults
    job = service.finish(submitted)
    assert next(waits, None) is None
    assert job["state"] == "succeeded"
    assert job["progress"]["measured"] == 3
    assert not any(trial["stage"] == "lost_worker" for trial in service.trials(submitted))
    assert check_sum(job)


def test_a_task_that_ends_without_a_result_counts_as_lost(service: Any, tools: Any, submitted: str) -> None:
    perform = tools.perform

    def nothing_of_trial_two(step: Any, state: Any, *rest: Any, **more: Any) -> Any:
        two = state.trials[2].id
        events = perform(step, state, *rest, **more)
        return (event for event in events if getattr(event, "trial", None) != two)

    tools.perform = nothing_of_trial_two
    job = service.finish(submitted)
    assert job["state"] == "succeeded"
    assert [t["ordinal"] for t in service.trials(submitted, stage="lost_worker")] == [2]


def test_steps_that_never_give_a_result_fail_the_job(service: Any, tools: Any, submitted: str) -> None:
    tools.perform = lambda *rest, **more: iter(())
    job = service.finish(submitted)
    assert job["state"] == "failed"
    assert "without a result" in job["error"]


def test_a_fault_at_every_task_fails_the_job_not_its_trials(service: Any, tools: Any, submitted: str) -> None:
    tools.faults = lambda step, state: ChildFailed("no child starts")
    job = service.finish(submitted)
    assert job["state"] == "failed"
    assert "no child starts" in job["error"]
    assert job["progress"]["pending"] == 0
    assert job["progress"] == {"enumerated": 4, "rejected": 1, "measured": 0, "checked": 0, "pending": 0, "not_run": 3}
    assert job["cases"][0]["state"] == "settled"
    assert job["cases"][0]["winner"] is None


def test_finals_that_fail_again_and_again_fail_the_job(service: Any, tools: Any, submitted: str) -> None:
    tools.faults = lambda step, state: ChildFailed("finals broke") if isinstance(step, Finals) else None
    job = service.finish(submitted)
    assert job["state"] == "failed"
    assert "finals" in job["error"]
    assert "3 times" in job["error"]
    assert job["progress"]["measured"] == 3  # what was measured stays


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (ToolchainUnavailable("gcc is gone"), "gcc is gone"),
        (OSError(errno.ENOSPC, "No space left on device"), "no space left on disk"),
        (ChildFailed("OSError: [Errno 28] No space left on device"), "no space left on disk"),
    ],
)
def test_our_own_troubles_fail_the_job_at_once_and_say_why(
    service: Any, tools: Any, submitted: str, error: Exception, reason: str, check_sum: Check
) -> None:
    tools.faults = lambda step, state: error if isinstance(step, Measure) else None
    job = service.finish(submitted)
    assert job["state"] == "failed"
    assert reason in job["error"]
    assert job["progress"] == {"enumerated": 4, "rejected": 1, "measured": 0, "checked": 0, "pending": 0, "not_run": 3}
    assert check_sum(job)
    assert not any(trial["stage"] == "lost_worker" for trial in service.trials(submitted))


def test_a_broken_ledger_makes_the_job_wait(service: Any, tools: Any, submitted: str) -> None:
    service.advancer.advance(submitted)
    (key,) = service.engine.tasks
    task = service.engine.tasks.pop(key)
    service.worker.on_failure(task, DatabaseUnavailable("disk i/o error"))
    assert service.job(submitted)["state"] == "running"
    assert service.finish(submitted)["state"] == "succeeded"


@pytest.mark.databases("sqlite")
def test_a_full_database_makes_the_job_wait_and_loses_nothing(
    service: Any,
    database: Database,
    submitted: str,
    check_sum: Check,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """SQLite's own page limit makes every write that needs room fail, as a full disk does."""
    monkeypatch.setattr(perform, "OUTAGE_PAUSE_SECONDS", 0.0)
    limit_pages = [2**30]

    def limit(connection: Any, *_: Any) -> None:
        connection.execute(f"PRAGMA max_page_count = {limit_pages[0]}")

    event.listen(database.engine, "checkout", limit)
    for _ in range(3):
        service.advancer.advance(submitted)
        service.run(next(iter(service.engine.tasks)))
    before = service.trials(submitted)
    assert any(trial["outcome"] == "measured" for trial in before)
    limit_pages[0] = 1  # SQLite lowers it to the pages in use
    refused = 0
    for _ in range(5):
        try:
            service.advancer.advance(submitted)
            while service.engine.tasks:
                service.run(next(iter(service.engine.tasks)))
        except DatabaseFull:
            refused += 1
    assert refused or "database or disk is full" in caplog.text  # claims may fit where results do not
    assert check_sum(service.job(submitted))
    after = service.trials(submitted)
    for old, new in zip(before, after, strict=True):
        assert old["outcome"] == "pending" or old == new
    limit_pages[0] = 2**30
    job = service.finish(submitted)
    assert job["state"] == "succeeded"
    assert check_sum(job)


def test_a_job_waits_for_its_device_and_goes_on_with_it(service: Any, submitted: str, make_device: Any) -> None:
    present = service.devices
    broken = make_device(available=False, reason="no licence")
    for there, reason in (({}, "not attached"), ({broken.id: broken}, "no licence")):
        service.devices = there
        with pytest.raises(DeviceAwaited, match=reason):
            service.advancer.advance(submitted)
    assert service.job(submitted)["state"] == "queued"
    service.devices = present
    service.advancer.advance(submitted)
    service.devices = {}
    with pytest.raises(DeviceAwaited, match="not attached; the job goes on"):
        service.advancer.advance(submitted)
    assert service.job(submitted)["state"] == "running"
    service.devices = present
    assert service.finish(submitted)["state"] == "succeeded"


def test_a_device_that_is_lost_in_a_task_is_no_trials_fault(service: Any, tools: Any, submitted: str) -> None:
    left = [DeviceUnavailable("GPU is lost")] * 3
    tools.faults = lambda step, state: left.pop() if left and isinstance(step, Measure) else None
    assert service.finish(submitted)["state"] == "succeeded"
    assert left == []
    assert not any(trial["stage"] == "lost_worker" for trial in service.trials(submitted))


def test_a_device_that_is_lost_in_every_task_fails_the_job(service: Any, tools: Any, submitted: str) -> None:
    tools.faults = lambda step, state: DeviceUnavailable("GPU is lost") if isinstance(step, Measure) else None
    job = service.finish(submitted)
    assert job["state"] == "failed"
    assert "GPU is lost" in job["error"]


def test_a_changed_toolchain_fails_the_job(service: Any, submitted: str, make_device: Any) -> None:
    service.advancer.advance(submitted)
    changed = make_device(toolchain_fingerprint="9" * 64)
    service.devices = {changed.id: changed}
    job = service.finish(submitted)
    assert job["state"] == "failed"
    assert "toolchain" in job["error"]


def test_a_job_that_has_not_begun_takes_its_device_as_it_comes_back(
    service: Any, submitted: str, make_device: Any
) -> None:
    service.devices = {}
    with pytest.raises(DeviceAwaited):
        service.advancer.advance(submitted)
    changed = make_device(toolchain_fingerprint="9" * 64)
    service.devices = {changed.id: changed}
    job = service.finish(submitted)
    assert job["state"] == "succeeded", job["error"]
    assert job["device"]["toolchain_fingerprint"] == "9" * 64, "winners are of what they were built with"


def test_a_job_that_named_a_kind_begins_on_whichever_is_there(
    service: Any, submitted: str, make_device: Any, small: dict[str, Any], resolve: Any, database: Database
) -> None:
    named = submit(database, resolve({**small, "device": make_device().id}), idempotency_key=None, body_sha256="named")
    away = make_device(available=False, reason="no worker offers it")
    other = make_device(id="cpu:111111111111", toolchain_fingerprint="9" * 64)
    service.devices = {away.id: away, other.id: other}
    assert service.finish(submitted)["state"] == "succeeded"
    assert service.job(submitted)["device"]["id"] == other.id
    with pytest.raises(DeviceAwaited, match="no worker offers it"):
        service.advancer.advance(named)
    assert service.job(named)["device"]["id"] == away.id, "who named one device gets that one"


def test_cancel_in_the_middle_keeps_what_was_measured(
    service: Any, database: Database, submitted: str, check_sum: Check
) -> None:
    service.advancer.advance(submitted)
    for _ in range(2):
        service.run(next(iter(service.engine.tasks)))
        service.advancer.advance(submitted)
    late = next(iter(service.engine.tasks.values()), None)
    before = service.job(submitted)["progress"]
    assert cancel(database, service.engine, submitted)
    assert not cancel(database, service.engine, submitted)
    job = service.job(submitted)
    assert job["state"] == "cancelled"
    assert job["progress"]["measured"] == before["measured"]
    assert job["progress"]["pending"] == 0
    assert check_sum(job)
    if late is not None:
        service.worker.handle(late, lambda: False)
    assert service.finish(submitted)["progress"] == job["progress"]
    assert service.job(submitted)["cases"][0]["state"] == "settled"
    with database.read() as session:
        assert active_job_ids(session) == []


def test_cancel_before_any_row_exists_still_adds_up(
    service: Any, database: Database, submitted: str, check_sum: Check
) -> None:
    cancel(database, service.engine, submitted)
    assert service.job(submitted)["progress"] == {
        "enumerated": 4, "rejected": 0, "measured": 0, "checked": 0, "pending": 0, "not_run": 4
    }  # fmt: skip
    job = service.job(submitted)
    assert service.finish(submitted) == job
    assert check_sum(job)


def test_a_stopped_task_is_charged_to_nobody(service: Any, tools: Any, submitted: str) -> None:
    service.advancer.advance(submitted)
    (key,) = service.engine.tasks
    tools.faults = lambda step, state: Cancelled("told to stop")
    for _ in range(4):
        service.run(key, cancelled=True)
        service.advancer.advance(submitted)
    tools.faults = lambda step, state: None
    assert service.finish(submitted)["state"] == "succeeded"
    assert not any(trial["stage"] == "lost_worker" for trial in service.trials(submitted))


def test_advance_again_changes_nothing(service: Any, submitted: str) -> None:
    for _ in range(3):
        service.advancer.advance(submitted)
    assert len(service.engine.tasks) == 1
    job = service.finish(submitted)
    service.advancer.advance(submitted)
    assert service.job(submitted) == job


def test_an_unknown_job_is_not_found(service: Any, database: Database) -> None:
    with pytest.raises(NotFound):
        service.advancer.advance("job_none")
    with pytest.raises(NotFound):
        cancel(database, service.engine, "job_none")
