"""Jobs on a compile-only device: what they accept, how they end, what cannot be done with them."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from search.device.probe import compile_only
from search.device.spec import DeviceSpec
from search.errors import ChildFailed, InvalidInput
from search.lowering.contract import CodeFacts
from search.outcome import Rejected
from search.steps import Build, Check
from tuner_service.db.engine import Database
from tuner_service.db.queries.jobs import list_job_events
from tuner_service.db.queries.trials import list_trials
from tuner_service.errors import Conflict
from tuner_service.jobs.freeze_catalog import FreezeRequest, freeze_jobs
from tuner_service.jobs.request import Limits, ResolvedRequest, resolve_request
from tuner_service.jobs.submit import submit

WRONG = Rejected(stage="correctness", reason="wrong_values", detail={"input_set": "normal"})
BODY: dict[str, Any] = {
    "cases": [{"kernel": "softmax", "dims": {"rows": 8, "cols": 513}}],
    "device": "cuda-sm_90",
    "space": {"width": [32, 256], "vector": [1], "rows_per_block": [1, 8], "materialize": ["private"]},
    "private_budget_scalars": 17,
}
"""Eight candidates: two blocks would be too large, one row cached by 32 threads is over budget in both mappings."""


@pytest.fixture
def device() -> DeviceSpec:
    return compile_only("cuda-sm_90", toolchain={"compiler": "paper"}, unavailable=None)


@pytest.fixture
def job(database: Database, resolve: Callable[..., ResolvedRequest]) -> str:
    return submit(database, resolve(BODY), idempotency_key=None, body_sha256="5" * 64)


def facts(ordinal: int) -> CodeFacts:
    return CodeFacts(
        source_sha256=f"{ordinal:064x}",
        artifact_sha256=f"{ordinal:064x}",
        static_instructions=100,
        static_branches=3,
        stack_bytes=0,
        widest_vector_bits=32,
        code_bytes=400,
        registers=30 + ordinal,
        spill_bytes=8 * (ordinal % 2),
    )


def threads(trial: dict[str, Any]) -> int:
    return int(trial["candidate"]["width"] * trial["candidate"]["mapping"]["rows_per_block"])


def problem(resolve: Callable[..., ResolvedRequest], **changes: Any) -> Any:
    with pytest.raises(InvalidInput) as refused:
        resolve({**BODY, **changes})
    (one,) = refused.value.problems
    return one


def test_a_job_ends_as_checked_without_a_winner(service: Any, tools: Any, job: str, check_sum: Any) -> None:
    tools.rejects = {0: WRONG}
    tools.code = lambda ordinal: f"{ordinal // 4:064x}"
    done = service.finish(job)
    assert done["state"] == "succeeded"
    assert done["device"]["timed"] is False
    progress = done["progress"]
    assert progress["measured"] == progress["pending"] == progress["not_run"] == 0
    assert progress["checked"] > 0
    assert check_sum(done)
    (case,) = done["cases"]
    assert [case[what] for what in ("winner", "reference", "best", "noise_floor", "regret", "error")] == [None] * 6
    assert case["tie_set"] == []
    assert case["baselines"] == {}
    assert "never timed" in case["untimed"]
    trials = service.trials(job)
    assert {trial["outcome"] for trial in trials} == {"checked", "rejected"}
    checked = [trial for trial in trials if trial["outcome"] == "checked"]
    assert all(trial["timing"] is None and trial["overlapped"] is None for trial in checked)
    assert all(trial["checks"]["passed"] and trial["finished_at"] for trial in checked)
    shared = [trial for trial in checked if trial["same_code_as"]]
    assert shared
    assert {trial["same_code_as"] for trial in shared} <= {trial["id"] for trial in checked}
    assert {trial["reason"] for trial in trials if trial["outcome"] == "rejected"} >= {"wrong_values", "private_budget"}
    simulated = [trial for _, step in tools.performed if isinstance(step, Check) for trial in step.trials]
    assert len(simulated) == len(set(simulated)) < len(checked) + 1, "one simulation for each machine code"


def test_a_block_of_more_than_1024_threads_is_rejected_before_anything_is_built(service: Any, job: str) -> None:
    service.finish(job)
    found = [trial for trial in service.trials(job) if threads(trial) > 1024]
    assert len(found) == 2
    assert {(trial["outcome"], trial["stage"]) for trial in found} == {("rejected", "constraints")}


def test_the_feed_says_checked(service: Any, database: Database, job: str) -> None:
    service.finish(job)
    with database.read() as session:
        events = list_job_events(session, job)
    news = [event["data"] for event in events if event["kind"] == "trial"]
    assert "checked" in {one["outcome"] for one in news}
    assert all(one["median_seconds"] is None for one in news)
    (settled,) = [event["data"] for event in events if event["data"].get("event") == "case_settled"]
    assert settled["winner"] is None


def test_a_restart_goes_on_with_what_lacks(service: Any, tools: Any, job: str, check_sum: Any) -> None:
    service.advancer.advance(job)
    service.run(next(iter(service.engine.tasks)))
    service.advancer.advance(job)
    assert service.engine.tasks, "a check is handed out, and lost with the service"
    service.die()
    done = service.finish(job)
    assert done["state"] == "succeeded"
    assert check_sum(done)
    builds = [trial for _, step in tools.performed if isinstance(step, Build) for trial in step.trials]
    assert len(builds) == len(set(builds)), "what was built is not built again"


def test_a_trial_whose_simulation_loses_its_worker_twice_is_rejected_alone(service: Any, tools: Any, job: str) -> None:
    def fails(step: Any, state: Any) -> BaseException | None:
        unlucky = next(t.id for t in state.trials if t.outcome != "rejected" or t.rejection.stage == "lost_worker")
        return ChildFailed("gone") if isinstance(step, Check) and unlucky in step.trials else None

    tools.faults = fails
    assert service.finish(job)["state"] == "succeeded"
    lost = service.trials(job, stage="lost_worker")
    assert [trial["reason"] for trial in lost] == ["lost_worker"]
    assert service.trials(job, outcome="checked")


def test_code_facts_filter_and_sort(service: Any, tools: Any, database: Database, job: str) -> None:
    tools.facts = facts
    service.finish(job)
    built = service.trials(job, outcome="checked")
    assert len(built) >= 3
    with database.read() as session:
        spilling = list_trials(session, job, spills=True)["items"]
        tight = list_trials(session, job, spills=False)["items"]
        few = list_trials(session, job, max_registers=30 + built[1]["ordinal"])["items"]
        ordered: list[int | None] = []
        cursor = None
        while True:
            page = list_trials(session, job, sort="-registers", cursor=cursor, limit=2)
            ordered += [(trial["code"] or {}).get("registers") for trial in page["items"]]
            cursor = page["next"]
            if cursor is None:
                break
    assert {t["ordinal"] for t in spilling} == {t["ordinal"] for t in built if t["ordinal"] % 2}
    assert {t["ordinal"] for t in tight} == {t["ordinal"] for t in built if t["ordinal"] % 2 == 0}
    assert [t["ordinal"] for t in few] == [t["ordinal"] for t in built[:2]]
    named = [registers for registers in ordered if registers is not None]
    assert named == sorted(named, reverse=True)
    assert ordered[len(named) :] == [None] * (len(ordered) - len(named)), "rejected before they were built: last"


def test_a_request_takes_no_baseline_unless_it_says_so_and_then_it_is_refused(
    resolve: Callable[..., ResolvedRequest],
) -> None:
    assert resolve(BODY).baselines == ()
    assert resolve({**BODY, "baselines": []}).document["baselines"] == []
    refused = problem(resolve, baselines=["torch_eager"])
    assert (refused.field, refused.value, refused.allowed) == ("/baselines", ["torch_eager"], [])
    assert "compile-only" in refused.message
    assert resolve(dict(resolve(BODY).document)) == resolve(BODY), "what was resolved resolves to itself"


def test_an_unknown_architecture_is_refused_with_those_that_there_are(resolve: Callable[..., ResolvedRequest]) -> None:
    refused = problem(resolve, device="cuda-sm_123")
    assert (refused.field, refused.value) == ("/device", "cuda-sm_123")
    assert "cuda-sm_90" in refused.allowed


def test_a_knob_of_the_cpu_is_refused_by_name(resolve: Callable[..., ResolvedRequest]) -> None:
    refused = problem(resolve, space={**BODY["space"], "simd_scope": ["all"]})
    assert refused.field == "/space/simd_scope"
    assert "rows_per_block" in str(refused.allowed)


def test_a_device_without_a_compiler_is_refused_with_the_reason(device: DeviceSpec) -> None:
    gone = replace(device, available=False, reason="no CUDA compiler: neither nvcc nor NVRTC is installed")
    with pytest.raises(InvalidInput, match="neither nvcc nor NVRTC") as refused:
        resolve_request(BODY, devices={gone.id: gone}, limits=Limits())
    assert refused.value.problems[0].field == "/device"


def test_a_job_without_times_is_not_frozen(service: Any, database: Database, job: str) -> None:
    service.finish(job)
    with pytest.raises(Conflict, match="compile-only"):
        freeze_jobs(database, FreezeRequest(jobs=(job,)))


def test_a_reload_whose_loads_were_merged_is_shown_as_such(service: Any, tools: Any, job: str) -> None:
    def loads(ordinal: int) -> CodeFacts:
        return replace(facts(ordinal), memory_instructions={"LDG": {"32": 6 if ordinal == merged_not else 2}})

    service.advancer.advance(job)
    trials = service.trials(job)
    pairs = _reloads_with_twins(trials)
    merged_not = pairs[0]["ordinal"]
    tools.facts = loads
    service.finish(job)
    shown = {trial["ordinal"]: trial["code"].get("reload_merged") for trial in service.trials(job) if trial["code"]}
    assert shown[merged_not] is False
    expected = {trial["ordinal"] for trial in pairs[1:]}
    assert {ordinal for ordinal, merged in shown.items() if merged} == expected
    assert len(shown) > len(pairs), "what caches, or has no twin that was built, says nothing"


def _reloads_with_twins(trials: list[dict[str, Any]]) -> list[dict[str, Any]]:
    alive = [trial["candidate"] for trial in trials if trial["outcome"] == "pending"]
    reloads = [t for t in trials if t["outcome"] == "pending" and t["candidate"]["input"] == "reload"]
    return [trial for trial in reloads if {**trial["candidate"], "input": "cache"} in alive]
