"""What is missing, state by state."""

import json
from dataclasses import replace

import pytest

from search.events import (
    BaselineMeasured,
    Built,
    DefaultRetimed,
    FinalsMeasured,
    FreshBuilt,
    Revalidated,
    TrialMeasured,
    TrialRejected,
)
from search.ledger import CaseState, TrialState, apply, stop
from search.lowering.contract import Artifact, CodeFacts
from search.measuring.protocol import BaselineSamples, Checks, FinalsSamples, InputCheck, PhaseTiming
from search.outcome import Rejected
from search.space.candidate import Candidate, CpuMapping
from search.steps import (
    BUILD_BATCH,
    Baseline,
    Build,
    Finals,
    FreshBuild,
    Measure,
    Revalidate,
    Settle,
    ShareCode,
    conflicts,
    is_quiet,
    missing,
    queue_of,
    step_document,
    step_from_document,
    step_key,
)

ROUNDS = 15
CRASHED = Rejected(stage="runtime", reason="crashed", detail={"signal": "SIGSEGV"})


def trial(ordinal, **changes):
    candidate = Candidate(
        width=8,
        input=changes.pop("input", "reload"),
        fusion="separate",
        materialize="private",
        vector=1,
        unroll=1,
        partials=1,
        mapping=CpuMapping(local_lanes=8),
    )
    fields = {"candidate": candidate, "in_space": True, "is_default": False, "outcome": "pending", "plan": {"n": 1}}
    return TrialState(id=f"t{ordinal}", ordinal=ordinal, **{**fields, **changes})


def case(*trials, baselines=()):
    return CaseState(id="c", trials=trials, baselines_wanted=baselines)


def artifact(code):
    return Artifact(
        source_sha256=f"source-{code}",
        artifact_sha256=code,
        library_path="/x.so",
        library_sha256="s",
        symbol="k",
        arguments=(),
    )


def built(trial_id, code=None):
    code = code or f"code-{trial_id}"
    facts = CodeFacts(
        source_sha256=f"source-{code}",
        artifact_sha256=code,
        static_instructions=1,
        static_branches=0,
        stack_bytes=0,
        widest_vector_bits=0,
        code_bytes=1,
    )
    return Built(trial=trial_id, artifact=artifact(code), facts=facts, lower_seconds=0.1, compile_seconds=0.1)


def phase(seconds):
    return PhaseTiming(samples_seconds=(seconds,) * 5, median_seconds=seconds, calls_per_sample=10)


def checks(passed=True):
    record = InputCheck(
        name="normal",
        elements_checked=1,
        guard_elements_checked=136,
        input_sha256="i",
        tolerance="2 ulp",
        max_abs_error=0.0,
        max_rel_error=0.0,
        max_ulp_error=0.0,
        max_tolerance=1e-7,
    )
    return Checks(passed=passed, inputs=(record,), guards_intact=True, inputs_unchanged=True)


def measured(trial_id, seconds, same_code_as=None):
    timing = {"device_batch": phase(seconds)}
    return TrialMeasured(trial=trial_id, timing=timing, checks=checks(), overlapped=False, same_code_as=same_code_as)


def finals(seconds, *, phases=(), rejections=None):
    samples = FinalsSamples(
        order=tuple(seconds),
        protocol="finals",
        samples_seconds={trial_id: (value,) * ROUNDS for trial_id, value in seconds.items()},
        extra_phases={trial_id: {"device_batch": phase(9.0), "e2e_batch": phase(10.0)} for trial_id in phases},
        rejections=rejections or {},
    )
    return FinalsMeasured(samples=samples)


def baseline(name, against):
    samples = BaselineSamples(
        name=name,
        implementation="torch",
        allocation="out",
        versions={},
        timing={"device_batch": phase(2.0)},
        checks=checks(),
        kernel_id=against,
    )
    return BaselineMeasured(samples=samples)


def fresh(trial_id, code=None):
    return FreshBuilt(trial=trial_id, artifact=artifact(code or f"code-{trial_id}"), plan={"n": 1}, rejection=None)


def revalidated(trial_id, **changes):
    fields = {"same_source": True, "same_machine_code": True, "same_plan": True, "checks": checks()}
    return Revalidated(trial=trial_id, **{**fields, **changes})


def after(state, *events):
    for event in events:
        state = apply(state, event)
    return state


def searched(*trials, seconds, baselines=()):
    """A case whose search is over: every trial measured, the default re-timed five times."""
    state = case(*trials, baselines=baselines)
    for number, value in enumerate(seconds):
        state = after(state, built(f"t{number}"), measured(f"t{number}", value))
    return after(state, *(DefaultRetimed(sequence=n, timing=phase(1.0)) for n in range(5)))


# The search


def test_builds_come_in_batches_in_canonical_order_with_the_default_first():
    state = case(*(trial(n, is_default=n == 20) for n in range(30)))
    steps = missing(state, device_waits=False)
    assert [type(step) for step in steps] == [Build, Build, Build]
    assert steps[0].trials == ("t20", *(f"t{n}" for n in range(11)))
    assert [len(step.trials) for step in steps] == [BUILD_BATCH, BUILD_BATCH, 6]


def test_a_device_that_waits_gets_the_first_builds_from_short_calls():
    state = case(*(trial(n, is_default=n == 20) for n in range(30)))
    first, second, *rest = missing(state)
    assert first.trials == ("t20", "t0", "t1", "t2")
    assert len(first.trials) + len(second.trials) == BUILD_BATCH
    assert [len(step.trials) for step in rest] == [BUILD_BATCH, 6]
    assert missing(state, [first])[0] == second, "what is in flight is begun"
    begun = after(state, *(built(name) for name in first.trials))
    assert [s.trials for s in missing(begun, [second]) if isinstance(s, Build)] == [step.trials for step in rest]


def test_trials_rejected_by_their_plan_are_never_built():
    budget = Rejected(stage="constraints", reason="private_budget", detail={})
    state = case(trial(0, outcome="rejected", rejection=budget), trial(1, is_default=True))
    assert missing(state) == (Build(trials=("t1",)),)


def test_trials_in_flight_are_not_asked_for_again():
    state = case(*(trial(n, is_default=n == 0) for n in range(11)))
    first = missing(state)
    assert missing(state, first) == ()
    state = after(state, built("t0"), built("t1"))
    (measure,) = missing(state, first)
    assert measure == Measure(trials=("t0", "t1"), retimes=1, first_retime_sequence=0)
    state = after(state, built("t2"), built("t3"))
    assert missing(state, (*first, measure)) == (), "too few for a full chunk while the device works"
    state = after(state, built("t4"))
    (full,) = missing(state, (*first, measure))
    assert full == Measure(trials=("t2", "t3", "t4"), retimes=1, first_retime_sequence=1)


def test_nothing_is_measured_before_the_default_is_built():
    state = after(case(trial(0), trial(1), trial(2, is_default=True)), built("t0"), built("t1"))
    assert missing(state) == (Build(trials=("t2",)),)
    assert missing(after(state, built("t2")))[0] == Measure(trials=("t2",), retimes=1, first_retime_sequence=0)


def test_without_a_default_to_retime_the_search_goes_on():
    state = after(case(trial(0), trial(1, is_default=True)), built("t0"), TrialRejected(trial="t1", rejection=CRASHED))
    assert missing(state) == (Measure(trials=("t0",), retimes=0, first_retime_sequence=0),)


def test_chunks_spread_at_least_five_retimings_over_the_search_and_number_them():
    state = case(*(trial(n, is_default=n == 0) for n in range(11)))
    state = after(state, *(built(f"t{n}") for n in range(11)))
    steps = missing(state)
    assert [len(step.trials) for step in steps] == [3, 3, 3, 2]
    assert [step.first_retime_sequence for step in steps] == [0, 1, 2, 3]
    large = case(*(trial(n, is_default=n == 0) for n in range(100)))
    assert max(len(step.trials) for step in missing(after(large, *(built(f"t{n}") for n in range(100))))) == 8


def test_retime_numbers_in_flight_are_not_given_out_twice():
    state = after(case(*(trial(n, is_default=n == 0) for n in range(4))), built("t0"))
    (_, running) = missing(state)
    state = after(state, *(built(f"t{n}") for n in range(1, 4)))
    assert [step.first_retime_sequence for step in missing(state, (running,))] == [1, 2, 3]


def test_equal_code_is_timed_once_and_shared_afterwards():
    state = case(*(trial(n, is_default=n == 2) for n in range(3)))
    state = after(state, *(built(f"t{n}", code="same") for n in range(3)))
    (measure,) = missing(state)
    assert measure.trials == ("t2",), "the default runs for its code although others come first"
    assert missing(state, (measure,)) == ()
    state = after(state, measured("t2", 1.0))
    assert missing(state) == (ShareCode(trials=(("t0", "t2"), ("t1", "t2"))),)
    state = after(state, measured("t0", 1.0, same_code_as="t2"))
    assert missing(state) == (ShareCode(trials=(("t1", "t2"),)),)


def test_when_the_representative_is_rejected_the_next_of_its_code_is_measured_itself():
    state = case(trial(0), trial(1), trial(2), trial(3, is_default=True))
    state = after(state, *(built(f"t{n}", code="same") for n in range(3)), built("t3"), measured("t3", 1.0))
    assert missing(state)[0].trials == ("t0",)
    state = after(state, TrialRejected(trial="t0", rejection=CRASHED))
    assert missing(state)[0].trials == ("t1",)


# After the search


def test_missing_retimings_are_asked_for_once_every_trial_has_ended():
    state = after(case(trial(0, is_default=True)), built("t0"), measured("t0", 1.0))
    state = after(state, DefaultRetimed(sequence=0, timing=phase(1.0)))
    assert missing(state) == (Measure(trials=(), retimes=4, first_retime_sequence=1),)
    state = after(state, DefaultRetimed(sequence=1, timing=phase(1.0)))
    assert missing(state) == (Measure(trials=(), retimes=3, first_retime_sequence=2),)


def test_a_default_that_fails_when_timed_again_is_rejected_and_asked_no_more():
    state = after(case(trial(0), trial(1, is_default=True)), built("t0"), built("t1"))
    state = after(state, measured("t0", 1.0), measured("t1", 1.0))
    state = after(state, TrialRejected(trial="t1", rejection=CRASHED, after_measured=True))
    assert state.trial("t1").outcome == "rejected"
    assert missing(state) == (Finals(trials=("t0",), all_phases=("t0",)),)


def test_finals_wait_for_the_search_and_stand_alone():
    state = searched(trial(0, is_default=True), trial(1), trial(2), seconds=[1.5, 1.0, 1.005])
    (step,) = missing(state)
    assert step == Finals(trials=("t0", "t1", "t2"), all_phases=("t0", "t1"))
    assert missing(state, (step,)) == ()
    assert missing(state, (Measure(trials=()),)) == (), "a straggling re-timing could still move the floor"


def test_a_finalist_that_crashes_is_rejected_and_the_finals_are_done_without_it():
    state = searched(trial(0, is_default=True), trial(1), trial(2), trial(3), seconds=[1.0, 1.1, 1.12, 1.4])
    assert missing(state) == (Finals(trials=("t0", "t1"), all_phases=("t0",)),)
    state = after(state, finals({"t1": 1.1}, phases=("t1",), rejections={"t0": CRASHED}))
    assert state.trial("t0").rejection == CRASHED
    assert missing(state) == (Finals(trials=("t1", "t2"), all_phases=("t1",)),), "t2 is now within reach"
    state = after(state, finals({"t1": 1.1, "t2": 1.2}, phases=("t1",)))
    assert missing(state)[0] == FreshBuild(trials=("t1",))


def test_samples_of_finalists_that_remain_are_enough_when_one_drops_out():
    state = searched(trial(0, is_default=True), trial(1), trial(2), seconds=[1.0, 1.0, 1.0])
    state = after(state, finals({"t1": 1.0, "t2": 1.0}, phases=("t1",), rejections={"t0": CRASHED}))
    assert missing(state)[0] == FreshBuild(trials=("t1",))


def test_a_winner_without_its_four_phases_is_measured_for_them_alone():
    state = searched(trial(0, is_default=True), trial(1), seconds=[1.0, 1.001])
    state = after(state, finals({"t0": 2.0, "t1": 1.0}, phases=("t0",)))
    assert missing(state) == (Finals(trials=(), all_phases=("t1",)),)
    late = replace(finals({"t1": 3.0}, phases=("t1",)), phases_only=True)
    state = after(state, late)
    assert state.finals.samples.samples_seconds["t1"] == (1.0,) * ROUNDS, "it decides nothing"
    timing = state.trial("t1").timing
    assert (timing["device_batch"].median_seconds, timing["e2e_batch"].median_seconds) == (1.001, 10.0)
    assert missing(state)[0] == FreshBuild(trials=("t1",))


def test_baselines_and_fresh_builds_follow_the_finals_and_the_result_settles_last():
    state = searched(
        trial(0, is_default=True), trial(1, input="cache"), seconds=[2.0, 1.0], baselines=("torch_eager", "other")
    )
    state = after(state, finals({"t0": 2.0, "t1": 1.0}, phases=("t0", "t1")))
    steps = missing(state)
    build = FreshBuild(trials=("t1", "t0"))
    assert steps == (build, Baseline(name="torch_eager", against="t1"), Baseline(name="other", against="t1"))
    assert missing(state, steps) == ()
    state = after(state, baseline("torch_eager", "t1"), fresh("t1"))
    assert missing(state, (build,)) == (Revalidate(trials=("t1",)), Baseline(name="other", against="t1"))
    state = after(state, fresh("t0"), revalidated("t1"), revalidated("t0"))
    assert missing(state) == (Baseline(name="other", against="t1"),)
    state = after(state, baseline("other", "t1"))
    assert missing(state, (Measure(trials=()),)) == ()
    (settle,) = missing(state)
    assert (settle.result.winner, settle.result.reference) == ("t1", "t0")
    assert (settle.result.tie_set, settle.result.reference_tie_set) == (("t1",), ("t0",))
    assert settle.result.noise_floor == 0.01
    assert settle.result.error is None
    assert missing(state, (settle,)) == ()
    assert missing(after(state, settle.result)) == ()


def ready_to_compare():
    state = searched(trial(0, is_default=True), trial(1, input="cache"), seconds=[2.0, 1.0])
    return after(state, finals({"t0": 2.0, "t1": 1.0}, phases=("t0", "t1")), fresh("t0"), fresh("t1"))


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"same_source": False}, "source"),
        ({"same_machine_code": False}, "machine code"),
        ({"same_plan": False}, "plan"),
        ({"checks": checks(passed=False)}, "correctness"),
        ({"checks": None, "rejection": CRASHED}, "crashed"),
    ],
)
def test_a_winner_that_does_not_come_out_the_same_again_is_no_winner(changes, named):
    state = after(ready_to_compare(), revalidated("t0"), revalidated("t1", **changes))
    (settle,) = missing(state)
    assert settle.result.winner is None
    assert settle.result.reference == "t0"
    assert "t1" in settle.result.error
    assert named in settle.result.error


def test_a_fresh_build_that_fails_settles_with_the_reason():
    state = searched(trial(0, is_default=True), seconds=[1.0])
    refused = Rejected(stage="compile", reason="compiler_crashed")
    failed = FreshBuilt(trial="t0", artifact=None, plan=None, rejection=refused)
    state = after(state, finals({"t0": 1.0}, phases=("t0",)), failed)
    (settle,) = missing(state)
    assert settle.result.winner is None
    assert "compiler_crashed" in settle.result.error


def test_a_case_without_a_measured_trial_settles_without_a_winner_but_with_baselines():
    state = case(trial(0), trial(1, is_default=True, in_space=False), baselines=("torch_eager",))
    state = after(state, built("t0"), built("t1"), measured("t1", 1.0), TrialRejected(trial="t0", rejection=CRASHED))
    assert missing(state) == (Baseline(name="torch_eager", against=None),)
    (settle,) = missing(after(state, baseline("torch_eager", None)))
    assert settle.result.winner is None
    assert settle.result.error is None


def test_a_search_that_was_stopped_names_no_winner():
    state = after(case(trial(0, is_default=True), trial(1)), built("t0"), measured("t0", 1.0))
    (settle,) = missing(stop(state))
    assert settle.result.winner is None
    assert "1 of 2" in settle.result.error


# Steps as data


@pytest.mark.parametrize(
    "step",
    [
        Build(trials=("t0", "t1")),
        Measure(trials=("t0",), retimes=2, first_retime_sequence=5),
        ShareCode(trials=(("t1", "t0"),)),
        Finals(trials=("t0",), all_phases=("t0",)),
        Baseline(name="torch_eager", against=None),
        FreshBuild(trials=("t0",)),
        Revalidate(trials=("t0",)),
        missing(stop(case(trial(0))))[0],
    ],
    ids=lambda step: type(step).__name__,
)
def test_a_step_comes_back_equal_from_json_under_the_same_key(step):
    again = step_from_document(json.loads(json.dumps(step_document(step))))
    assert again == step
    assert step_key(again) == step_key(step)


def test_keys_are_stable_and_tell_requests_apart():
    assert step_key(Build(trials=("t0",))) == "build:5a12091b9cbbbe18"
    assert step_key(Build(trials=("t0",))) != step_key(Build(trials=("t1",)))
    assert step_key(Build(trials=("t0",))) != step_key(FreshBuild(trials=("t0",)))


def test_a_step_says_where_it_runs_what_it_touches_and_whether_it_must_be_alone():
    assert conflicts(ShareCode(trials=(("t1", "t0"),))) == {"t1"}
    assert conflicts(Baseline(name="b", against="t1")) == {"t1"}
    assert queue_of(FreshBuild(trials=("t0",))) == "compile"
    assert queue_of(Revalidate(trials=("t0",))) == "device"
    assert queue_of(missing(stop(case(trial(0))))[0]) == "driver"
    quiet = [s for s in (Build(trials=()), Measure(trials=()), Finals(trials=(), all_phases=())) if is_quiet(s)]
    assert quiet == [Finals(trials=(), all_phases=())]
    assert isinstance(missing(stop(case(trial(0))))[0], Settle)
