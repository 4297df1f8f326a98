"""An acceptance from the request to the audited evidence, on a device on paper: kills, faults, deltas, verdicts."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from catalogs import DeviceIdentity, sha256_hex
from catalogs.audit import audit
from search.device.spec import DeviceSpec
from search.errors import Cancelled, ChildFailed, DeviceContended, InvalidInput
from search.lowering.contract import Artifact
from search.measuring.protocol import Checks, InputCheck, PhaseTiming
from search.outcome import Rejected
from search.replay.records import ArmBuild, ArmTimed, BuildRound, ReplayRecord, ReplayState, ReplayStep, RoundBuilt
from search.selection.replay import sequence
from tuner_service.db.engine import Database
from tuner_service.db.queries import acceptances as queries
from tuner_service.errors import Conflict, DatabaseUnavailable, DeviceAwaited, NotFound
from tuner_service.jobs.acceptance import AcceptRequest, accept, read_accept_request
from tuner_service.jobs.acceptance_advance import AcceptanceAdvancer
from tuner_service.jobs.acceptance_ledger import end_acceptance, get_acceptance, load_state, record
from tuner_service.jobs.freeze_catalog import FreezeRequest, freeze_jobs
from tuner_service.jobs.promote import manifest_of, promote
from tuner_service.jobs.request import Limits, resolve_request
from tuner_service.jobs.submit import submit
from tuner_service.workers import acceptance as worker_module
from tuner_service.workers import patience
from tuner_service.workers.acceptance import AcceptanceWorker

CASES = [
    {"kernel": "softmax", "dims": {"rows": 8, "cols": 33}},
    {"kernel": "rms_norm", "dims": {"rows": 8, "cols": 33}},
]
TOOLCHAIN = {"gcc": "0"}
STEP_SECONDS = 2.0


@pytest.fixture
def device(make_device: Callable[..., DeviceSpec]) -> DeviceSpec:
    """A device whose digests are those of its descriptions, as the audit wants them."""
    identity = {"model": "paper"}
    return make_device(
        identity=identity,
        identity_digest=DeviceIdentity(kind="cpu", identity=identity).digest,
        toolchain=TOOLCHAIN,
        toolchain_fingerprint=sha256_hex(TOOLCHAIN),
    )


def checks(index: int) -> Checks:
    names = ("normal", "large_offset", "edge_rows")
    inputs = tuple(
        InputCheck(
            name=name,  # type: ignore[arg-type]
            elements_checked=88,  # 264 in all, as the trials of the search
            guard_elements_checked=204,
            input_sha256=sha256_hex([index, name]),
            tolerance="2 ulp",
            max_abs_error=0.0,
            max_rel_error=0.0,
            max_ulp_error=0.0,
            max_tolerance=1e-6,
        )
        for name in names
    )
    return Checks(passed=True, inputs=inputs, guards_intact=True, inputs_unchanged=True)


@dataclass
class PaperReplays:
    """Acts a replay out on a clock of its own. ``seconds`` gives an arm's time, ``fails`` what goes wrong."""

    seconds: Callable[[int, str, int], float] = lambda case, arm, number: {"C": 1e-6, "A": 1e-6}.get(arm, 2e-6)
    fails: Callable[[int, str, int], dict[str, Any] | None] = lambda case, arm, number: None
    rebuilt: Callable[[int, str], dict[str, Any]] = lambda case, arm: {}
    faults: Callable[[ReplayStep], BaseException | None] = lambda step: None
    clock_seconds: float = 1000.0
    performed: list[ReplayStep] = field(default_factory=list)

    def replay(
        self, step: ReplayStep, state: ReplayState, *, device_id: str, cancelled: Callable[[], bool]
    ) -> Iterator[ReplayRecord]:
        self.performed.append(step)
        if (error := self.faults(step)) is not None:
            raise error
        if isinstance(step, BuildRound):
            yield RoundBuilt(
                round=step.round,
                process=f"process {len(self.performed)}",
                builds=tuple(self.build(state, case.index, arm) for case in state.replay.cases for arm in case.built),
            )
            return
        for case, arm in sequence(state.replay, step.round):
            if cancelled():
                raise Cancelled("stopped")
            one = self.time(step.round, case, arm)
            yield one
            if one.failure is not None and arm != "T":
                return

    def build(self, state: ReplayState, case: int, name: str) -> ArmBuild:
        arm, changed = state.case(case).arms[name], self.rebuilt(case, name)
        if "rejection" in changed:
            return ArmBuild(case=case, arm=name, artifact=None, plan=arm.plan, rejection=changed["rejection"])
        artifact = Artifact(
            source_sha256=changed.get("source_sha256", arm.source_sha256),
            artifact_sha256=changed.get("artifact_sha256", arm.artifact_sha256),
            library_path="/nowhere.so",
            library_sha256="4" * 64,
            symbol="k",
            arguments=(),
        )
        return ArmBuild(case=case, arm=name, artifact=artifact, plan=changed.get("plan", arm.plan))

    def time(self, number: int, case: int, arm: str) -> ArmTimed:
        started, self.clock_seconds = self.clock_seconds, self.clock_seconds + STEP_SECONDS
        seconds, failure = self.seconds(case, arm, number), self.fails(case, arm, number)
        stray = seconds * 1e-9 * self.clock_seconds  # no two records of real clocks are equal
        phase = PhaseTiming(
            samples_seconds=(*[seconds - stray] * 4, seconds, *[seconds + stray] * 4),
            median_seconds=seconds,
            calls_per_sample=round(0.03 / seconds),
        )
        return ArmTimed(
            round=number,
            case=case,
            arm=arm,
            started_at=stamp(started),
            finished_at=stamp(self.clock_seconds),
            started_monotonic_seconds=started,
            finished_monotonic_seconds=self.clock_seconds,
            timing={} if failure else {"device_batch": phase, "e2e_batch": phase},
            checks=checks(case),
            torch={"implementation": "torch.softmax", "allocation": "preallocated (out=)", "versions": {"torch": "0"}}
            if arm == "T"
            else None,
            failure=failure,
        )


def stamp(seconds: float) -> str:
    moment = datetime(2026, 1, 1, tzinfo=UTC) + timedelta(seconds=seconds)
    return moment.isoformat(timespec="microseconds").replace("+00:00", "Z")


class Replays:
    """Advance and worker of acceptances around the inline engine of the job tests."""

    def __init__(self, service: Any, tools: PaperReplays) -> None:
        self.service, self.database, self.tools = service, service.database, tools
        self.patience_seconds = 0.0
        self.begin()

    def begin(self) -> None:
        self.engine = self.service.engine
        self.worker = AcceptanceWorker(database=self.database, tools=self.tools, patience_seconds=self.patience_seconds)
        self.advancer = AcceptanceAdvancer(
            database=self.database, engine=self.engine, devices=lambda: self.service.devices
        )

    def die(self) -> None:
        """SIGKILL and a new start: memory is gone, the database stays."""
        self.service.die()
        self.begin()

    def run(self, *, cancelled: bool = False) -> None:
        key, task = next(iter(self.engine.tasks.items()))
        try:
            self.worker.handle(task, lambda: cancelled)
        except Exception as error:
            self.worker.on_failure(task, error)
        finally:
            self.engine.tasks.pop(key, None)

    def finish(self, acceptance_id: str) -> dict[str, Any]:
        for _ in range(200):
            self.advancer.advance(acceptance_id)
            if not self.engine.tasks:
                return self.document(acceptance_id)
            self.run()
        raise AssertionError("the acceptance does not end")

    def document(self, acceptance_id: str) -> dict[str, Any]:
        with self.database.read() as session:
            return get_acceptance(session, acceptance_id)

    def evidence(self, acceptance_id: str) -> bytes:
        with self.database.read() as session:
            found = queries.evidence(session, acceptance_id)
        assert found is not None
        return found[0].encode()


@pytest.fixture
def paper() -> PaperReplays:
    return PaperReplays()


@pytest.fixture
def replays(service: Any, paper: PaperReplays) -> Replays:
    return Replays(service, paper)


@pytest.fixture
def digest(
    played_ledgers: Any,
    database_url: str,
    make_service: Any,
    tools: Any,
    device: DeviceSpec,
    resolve: Any,
    small: dict[str, Any],
) -> str:
    """A frozen candidate catalog of two cases, in the ledger that the database fixture opens."""

    def freeze(database: Database) -> str:
        job_id = submit(database, resolve({**small, "cases": CASES}), idempotency_key=None, body_sha256="5" * 64)
        assert make_service(database, tools, device).finish(job_id)["state"] == "succeeded"
        return str(freeze_jobs(database, FreezeRequest(jobs=(job_id,)))["candidate"]["digest"])

    return str(played_ledgers.put("frozen catalog", freeze, database_url))


@pytest.fixture
def database(digest: str, open_database: Callable[..., Database], hurry: Any) -> Any:
    """With the catalog in it."""
    return hurry(open_database())


@pytest.fixture
def asked(database: Database, service: Any, digest: str) -> Callable[..., str]:
    def asked(**fields: Any) -> str:
        return accept(database, digest, AcceptRequest(**fields), devices=service.devices)

    return asked


def test_a_better_candidate_is_accepted_and_its_evidence_passes_the_audit(
    replays: Replays, asked: Callable[..., str]
) -> None:
    acceptance_id = asked()
    queued = replays.document(acceptance_id)
    assert (queued["state"], queued["verdict"], queued["evidence_sha256"]) == ("queued", None, None)
    assert all(case["metrics"] is None for case in queued["cases"])
    found = replays.finish(acceptance_id)
    assert (found["state"], found["verdict"], found["reasons"], found["deltas"]) == ("succeeded", "accepted", [], [])
    assert found["progress"]["records"] == found["progress"]["expected"] > 0
    assert {case["state"] for case in found["cases"]} == {"ok"}
    evidence = replays.evidence(acceptance_id)
    report = audit(evidence)
    assert report.findings == ()
    assert b'"sha256":"' + found["evidence_sha256"].encode() in evidence
    _check_that_the_search_is_bound(json.loads(evidence))
    statements = "\n".join(found["statements"])
    for words in ("Scope: a CPU on paper", "Allocation:", "Losses", "not a confidence interval", "per exact key"):
        assert words in statements


def _check_that_the_search_is_bound(evidence: Any) -> None:
    """A losing trial that leaves a real search, with its count, is missed by the entries and by the space."""
    case = evidence["search"][0]["cases"][0]
    chosen = {arm["trial_id"] for one in evidence["cases"] for arm in one["arms"].values() if arm and "trial_id" in arm}
    chosen |= {trial["same_code_as"] for trial in case["trials"]}
    case["trials"].remove(next(trial for trial in case["trials"] if trial["id"] not in chosen))
    case["enumerated"] -= 1
    del evidence["sha256"]
    findings = audit({**evidence, "sha256": sha256_hex(evidence)}).findings
    assert {finding.field for finding in findings} == {"enumerated", "search_sha256"}


def test_a_round_that_ran_through_an_outage_of_the_database_is_not_done_again(
    replays: Replays, asked: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = 0
    real = worker_module.record

    def flaky(*words: Any, **more: Any) -> bool:
        nonlocal calls
        calls += 1
        if calls % 4 == 1:
            raise DatabaseUnavailable("away before the question")
        stored = real(*words, **more)
        if calls % 4 == 3:
            raise DatabaseUnavailable("away before the answer: it is stored all the same")
        return stored

    monkeypatch.setattr(worker_module, "record", flaky)
    monkeypatch.setattr(patience, "FIRST_PAUSE_SECONDS", 0.001)
    replays.patience_seconds = 60.0
    replays.begin()
    acceptance_id = asked()
    found = replays.finish(acceptance_id)
    assert (found["state"], found["verdict"]) == ("succeeded", "accepted")
    with replays.database.read() as session:
        kept = queries.records(session, acceptance_id)
    assert calls > len(kept) > 0
    timed = {(one["round"], one["attempt"]) for one in kept if one["case_index"] != queries.BUILD_CASE}
    assert len(timed) == found["rounds"], "each round was timed in one attempt"


def test_a_kill_at_any_moment_costs_only_the_round_that_was_being_timed(
    replays: Replays, asked: Callable[..., str], paper: PaperReplays
) -> None:
    chance = random.Random(7)
    acceptance_id = asked()
    replays.advancer.advance(acceptance_id)
    while replays.engine.tasks:
        task = next(iter(replays.engine.tasks.values()))
        if chance.random() < 0.5:
            with replays.database.read() as session:
                state = load_state(session, acceptance_id)
            step = replays.worker._tools.replay(_step(task), state, device_id=task.device_id, cancelled=lambda: False)
            for _ in range(chance.randrange(4)):  # some records get in before the kill
                if (one := next(step, None)) is not None:
                    record(replays.database, acceptance_id, task.payload["attempt"], one)
            replays.die()
        else:
            replays.run()
        replays.advancer.advance(acceptance_id)
    found = replays.document(acceptance_id)
    assert (found["state"], found["verdict"]) == ("succeeded", "accepted")
    assert audit(replays.evidence(acceptance_id)).findings == ()
    with replays.database.read() as session:
        kept = load_state(session, acceptance_id)
        everything = queries.records(session, acceptance_id)
    assert len(everything) > sum(len(records) for records in kept.timed.values()) + len(kept.built)
    for number, records in kept.timed.items():
        assert [(one.case, one.arm) for one in records] == list(sequence(kept.replay, number))


def _step(task: Any) -> ReplayStep:
    from search.replay.records import step_from_document

    return step_from_document(task.payload["step"])


def test_a_result_of_a_void_attempt_is_refused(
    replays: Replays, asked: Callable[..., str], paper: PaperReplays
) -> None:
    acceptance_id = asked()
    replays.advancer.advance(acceptance_id)
    old = next(iter(replays.engine.tasks.values()))
    replays.die()
    replays.advancer.advance(acceptance_id)
    new = next(iter(replays.engine.tasks.values()))
    assert new.payload["attempt"] == old.payload["attempt"] + 1
    with replays.database.read() as session:
        state = load_state(session, acceptance_id)
    (built,) = paper.replay(_step(old), state, device_id="", cancelled=lambda: False)
    assert not record(replays.database, acceptance_id, old.payload["attempt"], built)
    assert record(replays.database, acceptance_id, new.payload["attempt"], built)
    assert not record(replays.database, acceptance_id, new.payload["attempt"], built)  # once is enough


def test_what_a_task_records_as_it_ends_is_not_asked_for_again(
    replays: Replays, asked: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    in_flight = replays.engine.in_flight

    def ends_meanwhile(acceptance_id: str) -> frozenset[str]:
        if replays.engine.tasks:
            replays.run()
        return frozenset(in_flight(acceptance_id))

    monkeypatch.setattr(replays.engine, "in_flight", ends_meanwhile)
    acceptance_id = asked()
    steps = 2 * replays.document(acceptance_id)["rounds"]
    for _ in range(steps + 1):
        replays.advancer.advance(acceptance_id)
    assert replays.document(acceptance_id)["verdict"] == "accepted"
    with replays.database.read() as session:
        attempts = [(one["round"], one["attempt"]) for one in queries.records(session, acceptance_id)]
    assert sorted(set(attempts)) == [(step // 2, step + 1) for step in range(steps)]


def test_of_two_that_advance_at_once_one_hands_out_the_step(
    replays: Replays, asked: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    acceptance_id, in_flight, others = asked(), replays.engine.in_flight, [replays.advancer.advance]

    def another_advances(acceptance_id: str) -> frozenset[str]:
        flying = frozenset(in_flight(acceptance_id))
        if others:
            others.pop()(acceptance_id)
        return flying

    monkeypatch.setattr(replays.engine, "in_flight", another_advances)
    replays.advancer.advance(acceptance_id)
    assert [task.payload["attempt"] for task in replays.engine.tasks.values()] == [1]
    replays.run()
    assert replays.finish(acceptance_id)["verdict"] == "accepted"


def test_timing_is_quiet_and_building_takes_the_device_too(replays: Replays, asked: Callable[..., str]) -> None:
    acceptance_id = asked()
    kinds = []
    replays.advancer.advance(acceptance_id)
    while replays.engine.tasks:
        task = next(iter(replays.engine.tasks.values()))
        kinds.append((task.payload["step"]["step"], task.queue, task.quiet))
        replays.run()
        replays.advancer.advance(acceptance_id)
    assert kinds == [("build_round", "device", False), ("time_round", "device", True)] * 4


def test_a_worse_candidate_is_rejected_and_told_why(
    replays: Replays, asked: Callable[..., str], paper: PaperReplays
) -> None:
    paper.seconds = lambda case, arm, number: 1.5e-6 if (case, arm) == (0, "D") else 2e-6
    found = replays.finish(asked())
    assert found["verdict"] == "rejected"
    assert [case["state"] for case in found["cases"]] == ["worse", "ok"]
    assert any("default" in reason for reason in found["reasons"])
    assert audit(replays.evidence(found["id"])).findings == ()


@pytest.mark.parametrize("seed", range(6))
def test_whatever_the_samples_say_the_auditor_comes_to_the_same_figures(
    replays: Replays, asked: Callable[..., str], paper: PaperReplays, seed: int
) -> None:
    chance = random.Random(seed)
    spread = chance.choice([0.0001, 0.01, 0.05, 0.5])
    paper.seconds = lambda case, arm, number: 1e-6 * chance.lognormvariate(0, spread)
    found = replays.finish(asked(rounds=chance.choice([4, 8])))
    assert found["state"] == "succeeded"
    assert (found["verdict"] == "accepted") == (not found["reasons"])
    assert audit(replays.evidence(found["id"])).findings == ()


def test_too_much_noise_is_inconclusive_and_not_accepted(
    replays: Replays, asked: Callable[..., str], paper: PaperReplays
) -> None:
    paper.seconds = lambda case, arm, number: 1.3e-6 if (case, arm, number) == (1, "A", 2) else 1e-6
    found = replays.finish(asked())
    assert [case["state"] for case in found["cases"]] == ["ok", "inconclusive"]
    assert found["verdict"] == "rejected"
    assert audit(replays.evidence(found["id"])).findings == ()


def test_a_kernel_that_fails_its_checks_ends_the_replay_as_rejected(
    replays: Replays, asked: Callable[..., str], paper: PaperReplays
) -> None:
    wrong = Rejected(stage="correctness", reason="wrong_value").document()
    paper.fails = lambda case, arm, number: wrong if (case, arm, number) == (1, "C", 1) else None
    found = replays.finish(asked())
    assert (found["state"], found["verdict"]) == ("succeeded", "rejected")
    assert "failed in round 1: correctness, wrong_value" in found["reasons"][0]
    assert not any(step.round > 1 for step in paper.performed)
    assert audit(replays.evidence(found["id"])).findings != ()  # it is not complete


def test_an_arm_that_cannot_be_built_ends_the_replay_as_rejected(
    replays: Replays, asked: Callable[..., str], paper: PaperReplays
) -> None:
    broken = Rejected(stage="compile", reason="compiler_crashed")
    paper.rebuilt = lambda case, arm: {"rejection": broken} if (case, arm) == (0, "D") else {}
    found = replays.finish(asked())
    assert found["verdict"] == "rejected"
    assert "was not built in round 0: compile, compiler_crashed" in found["reasons"][0]


@pytest.mark.parametrize(
    ("name", "changed"),
    [
        ("source", {"source_sha256": "a" * 64}),
        ("machine code", {"artifact_sha256": "b" * 64}),
        ("plan", {"plan": {"private_scalars": 77}}),
    ],
)
def test_a_rebuild_that_is_not_what_was_frozen_is_a_delta_and_a_rejection(
    replays: Replays, asked: Callable[..., str], paper: PaperReplays, name: str, changed: dict[str, Any]
) -> None:
    paper.rebuilt = lambda case, arm: changed if (case, arm) == (0, "C") else {}
    found = replays.finish(asked())
    assert found["verdict"] == "rejected"
    assert {(delta["case"], delta["arm"], delta["field"]) for delta in found["deltas"]} == {(0, "C", name)}
    assert len(found["deltas"]) == 4
    assert [reason for reason in found["reasons"] if f"the {name} of arm C" in reason]
    assert found["cases"][0]["metrics"] is not None
    assert audit(replays.evidence(found["id"])).findings != ()


def test_an_arm_that_is_measured_in_another_s_stead_is_rebuilt_all_the_same(
    replays: Replays, database: Database, paper: PaperReplays, service: Any, resolve: Any, small: dict[str, Any]
) -> None:
    space = {"width": [8, 16], "input": ["reload"]}  # the winner reloads, so it is the reference too
    job_id = submit(database, resolve({**small, "space": space}), idempotency_key=None, body_sha256="7" * 64)
    assert service.finish(job_id)["state"] == "succeeded"
    digest = str(freeze_jobs(database, FreezeRequest(jobs=(job_id,)))["candidate"]["digest"])
    same = replays.finish(accept(database, digest, AcceptRequest(), devices=service.devices))
    assert {case["metrics"]["device_batch"]["reference"]["class"] for case in same["cases"]} == {"control"}
    evidence = replays.evidence(same["id"])
    assert audit(evidence).findings == ()
    built = [(one["round"], one["arm"]) for one in json.loads(evidence)["builds"] if one["case"] == 0]
    assert built == [(number, arm) for number in range(4) for arm in ("C", "R", "D")]
    paper.rebuilt = lambda case, arm: {"artifact_sha256": "9" * 64} if (case, arm) == (0, "R") else {}
    found = replays.finish(accept(database, digest, AcceptRequest(), devices=service.devices))
    assert found["verdict"] == "rejected"
    assert [(one["round"], one["case"], one["arm"], one["field"]) for one in found["deltas"]] == [
        (number, 0, "R", "machine code") for number in range(4)
    ]


def test_on_another_toolchain_it_is_a_canary_that_reports_and_accepts_nothing(
    replays: Replays, asked: Callable[..., str], paper: PaperReplays, service: Any, device: DeviceSpec
) -> None:
    later = {"gcc": "1"}
    service.devices[device.id] = replace(device, toolchain=later, toolchain_fingerprint=sha256_hex(later))
    paper.rebuilt = lambda case, arm: {"artifact_sha256": sha256_hex([case, arm])}
    found = replays.finish(asked())
    assert (found["state"], found["verdict"]) == ("succeeded", "rejected")
    assert any(reason.startswith("canary:") for reason in found["reasons"])
    assert {delta["field"] for delta in found["deltas"]} == {"machine code"}
    assert all(case["metrics"]["device_batch"]["default"] for case in found["cases"])


def test_the_audit_of_a_canary_says_what_it_ran_on_and_no_more(
    replays: Replays, asked: Callable[..., str], service: Any, device: DeviceSpec
) -> None:
    later = {"gcc": "1"}
    service.devices[device.id] = replace(device, toolchain=later, toolchain_fingerprint=sha256_hex(later))
    acceptance_id = asked()
    assert replays.finish(acceptance_id)["verdict"] == "rejected"
    findings = audit(replays.evidence(acceptance_id)).findings
    assert {(finding.where, finding.field) for finding in findings} == {
        ("catalogs.candidate", "toolchain"),
        ("catalogs.reference", "toolchain"),
    }


def test_torch_that_fails_once_takes_no_part_and_decides_nothing(
    replays: Replays, asked: Callable[..., str], paper: PaperReplays
) -> None:
    broken = {"stage": "runtime", "reason": "out of memory", "detail": {}}
    paper.fails = lambda case, arm, number: broken if (case, arm, number) == (1, "T", 2) else None
    found = replays.finish(asked())
    assert found["verdict"] == "accepted"
    assert [case["metrics"]["device_batch"]["torch"] is None for case in found["cases"]] == [False, True]
    assert any("out of memory" in statement for statement in found["statements"])
    assert audit(replays.evidence(found["id"])).findings == ()


def test_faults_of_ours_are_tried_again_three_times(
    replays: Replays, asked: Callable[..., str], paper: PaperReplays
) -> None:
    left = [ChildFailed("it broke"), ChildFailed("it broke"), DatabaseUnavailable("away")]
    paper.faults = lambda step: left.pop() if left else None
    assert replays.finish(asked())["verdict"] == "accepted"
    paper.faults = lambda step: ChildFailed("it broke") if step.round == 2 else None
    found = replays.finish(asked())
    assert (found["state"], found["verdict"]) == ("failed", None)
    assert "it broke" in found["error"]


def test_the_load_of_others_is_nobodys_fault(replays: Replays, asked: Callable[..., str], paper: PaperReplays) -> None:
    left = [DeviceContended("others compute on it")] * 7
    paper.faults = lambda step: left.pop() if left else None
    found = replays.finish(asked())
    assert (found["state"], found["verdict"], left) == ("succeeded", "accepted", [])


def test_one_waits_for_its_device_and_goes_on_with_it(
    replays: Replays, asked: Callable[..., str], service: Any, device: DeviceSpec
) -> None:
    acceptance_id = asked()
    service.devices[device.id] = replace(device, available=False, reason="the GPU fell off the bus")
    with pytest.raises(DeviceAwaited, match="fell off the bus"):
        replays.advancer.advance(acceptance_id)
    service.devices.clear()
    with pytest.raises(DeviceAwaited, match="not attached"):
        replays.advancer.advance(acceptance_id)
    assert replays.document(acceptance_id)["state"] == "queued"
    service.devices[device.id] = device
    replays.advancer.advance(acceptance_id)
    service.devices.clear()
    with pytest.raises(DeviceAwaited, match="the rounds go on when it is back"):
        replays.advancer.advance(acceptance_id)
    service.devices[device.id] = device
    assert replays.finish(acceptance_id)["verdict"] == "accepted"


def test_a_device_that_changed_ends_it_as_failed(
    replays: Replays, asked: Callable[..., str], service: Any, device: DeviceSpec
) -> None:
    changes: list[tuple[DeviceSpec, str]] = [
        (replace(device, toolchain_fingerprint="9" * 64), "changed under the acceptance"),
    ]
    for present, words in changes:
        service.devices[device.id] = device
        acceptance_id = asked()
        replays.advancer.advance(acceptance_id)
        service.devices[device.id] = present
        replays.advancer.advance(acceptance_id)
        found = replays.document(acceptance_id)
        assert found["state"] == "failed"
        assert words in found["error"]
        replays.engine.tasks.clear()


def test_a_cancelled_replay_takes_no_more_records(
    replays: Replays, asked: Callable[..., str], paper: PaperReplays
) -> None:
    acceptance_id = asked()
    replays.advancer.advance(acceptance_id)
    assert end_acceptance(replays.database, acceptance_id, "cancelled")
    assert not end_acceptance(replays.database, acceptance_id, "succeeded")
    replays.run(cancelled=True)
    found = replays.finish(acceptance_id)
    assert (found["state"], found["verdict"], found["progress"]["records"]) == ("cancelled", None, 0)


def test_what_the_alias_names_takes_part_as_the_incumbent(
    replays: Replays, asked: Callable[..., str], digest: str, database: Database, paper: PaperReplays
) -> None:
    first = replays.finish(asked())
    assert first["incumbent"] is None
    promote(database, "prod", digest)
    again = replays.finish(asked())
    assert again["incumbent"] == digest
    for case in again["cases"]:
        assert case["metrics"]["device_batch"]["incumbent"]["class"] == "control"
    assert audit(replays.evidence(again["id"])).findings == ()
    assert replays.finish(asked(alias="canary"))["incumbent"] is None


@pytest.mark.parametrize(
    ("rebuilt", "takes_part"),
    [
        ({"source_sha256": "a" * 64, "artifact_sha256": "b" * 64}, True),
        ({}, True),
        ({"plan": {"private_scalars": 77}}, False),
        ({"rejection": Rejected(stage="compile", reason="compiler_error")}, False),
    ],
)
def test_with_a_new_toolchain_the_incumbent_of_the_old_one_stands_in_if_it_can_be_rebuilt(
    replays: Replays,
    asked: Callable[..., str],
    digest: str,
    database: Database,
    paper: PaperReplays,
    service: Any,
    small: dict[str, Any],
    device: DeviceSpec,
    rebuilt: dict[str, Any],
    takes_part: bool,
) -> None:
    replays.finish(asked())
    promote(database, "prod", digest)
    later = replace(device, toolchain={"gcc": "1"}, toolchain_fingerprint=sha256_hex({"gcc": "1"}))
    service.devices[device.id] = later
    request = resolve_request({**small, "cases": CASES}, devices={later.id: later}, limits=Limits())
    job_id = submit(database, request, idempotency_key=None, body_sha256="6" * 64)
    assert service.finish(job_id)["state"] == "succeeded"
    newer = str(freeze_jobs(database, FreezeRequest(jobs=(job_id,)))["candidate"]["digest"])
    paper.rebuilt = lambda case, arm: rebuilt if arm == "I" else {}
    found = replays.finish(accept(database, newer, AcceptRequest(), devices=service.devices))
    assert (found["incumbent"], found["verdict"], found["deltas"]) == (digest, "accepted", [])
    for case in found["cases"]:
        assert (case["metrics"]["device_batch"]["incumbent"] is not None) == takes_part
    assert any("another toolchain" in statement for statement in found["statements"])
    assert audit(replays.evidence(found["id"])).findings == ()
    promote(database, "prod", newer)
    with database.read() as session:
        assert [entry.digest for entry in manifest_of(session, "prod").entries] == [newer, digest]


def test_only_a_candidate_for_an_attached_device_can_be_accepted(
    database: Database, service: Any, digest: str, make_device: Callable[..., DeviceSpec]
) -> None:
    other = make_device(id="cpu:1", identity_digest="8" * 64)
    with pytest.raises(Conflict, match="none such is attached"):
        accept(database, digest, AcceptRequest(), devices={other.id: other})
    with pytest.raises(NotFound):
        accept(database, "f" * 64, AcceptRequest(), devices=service.devices)
    with database.read() as session:
        reference = str(queries.list_acceptances(session)["total"])
    assert reference == "0"


@pytest.mark.parametrize(
    ("body", "field"),
    [([], ""), ({"rounds": 5}, "/rounds"), ({"alias": "No Good"}, "/alias"), ({"turns": 4}, "/turns")],
)
def test_a_bad_request_names_the_field(body: Any, field: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        read_accept_request(body)
    assert caught.value.problems[0].field == field
