"""The one meaning of events: first outcomes stand, stale ones change nothing."""

import pytest

from search.events import Built, DefaultRetimed, FinalsMeasured, TrialMeasured, TrialRejected
from search.ledger import CaseState, TrialState, apply, stop
from search.lowering.contract import Artifact, CodeFacts
from search.measuring.protocol import Checks, FinalsSamples, PhaseTiming
from search.outcome import Rejected
from search.space.candidate import Candidate, CpuMapping

CRASHED = Rejected(stage="runtime", reason="crashed")
CHECKS = Checks(passed=True, inputs=(), guards_intact=True, inputs_unchanged=True)


def trial(ordinal):
    candidate = Candidate(
        width=8,
        input="reload",
        fusion="separate",
        materialize="private",
        vector=1,
        unroll=1,
        partials=1,
        mapping=CpuMapping(local_lanes=8),
    )
    return TrialState(
        id=f"t{ordinal}",
        ordinal=ordinal,
        candidate=candidate,
        in_space=True,
        is_default=ordinal == 0,
        outcome="pending",
        private_scalars=3,
        score=1.5,
    )


def built(trial_id, code):
    artifact = Artifact(
        source_sha256="s",
        artifact_sha256=code,
        library_path="/x.so",
        library_sha256="l",
        symbol="k",
        arguments=(),
    )
    facts = CodeFacts(
        source_sha256="s",
        artifact_sha256=code,
        static_instructions=1,
        static_branches=0,
        stack_bytes=64,
        widest_vector_bits=0,
        code_bytes=1,
        registers=40,
    )
    return Built(trial=trial_id, artifact=artifact, facts=facts, lower_seconds=0.1, compile_seconds=0.2)


def phase(seconds):
    return PhaseTiming(samples_seconds=(seconds,), median_seconds=seconds, calls_per_sample=1)


def measured(trial_id, seconds=1.0, same_code_as=None):
    return TrialMeasured(
        trial=trial_id,
        timing={"device_batch": phase(seconds)},
        checks=CHECKS,
        overlapped=True,
        same_code_as=same_code_as,
    )


@pytest.fixture
def state():
    state = CaseState(id="c", trials=(trial(0), trial(1), trial(2)), baselines_wanted=())
    for event in (built("t0", "same"), built("t1", "same"), built("t2", "other")):
        state = apply(state, event)
    return state


def test_a_build_is_recorded_with_its_facts_and_cost(state):
    t2 = state.trial("t2")
    assert (t2.outcome, t2.artifact.artifact_sha256, t2.facts.stack_bytes) == ("pending", "other", 64)
    assert (t2.lower_seconds, t2.compile_seconds) == (0.1, 0.2)


def test_the_first_outcome_stands(state):
    after = apply(state, measured("t0", 1.0))
    assert apply(after, measured("t0", 2.0)) is after
    assert apply(after, TrialRejected(trial="t0", rejection=CRASHED)) is after
    assert apply(after, built("t0", "different")) is after
    rejected = apply(state, TrialRejected(trial="t0", rejection=CRASHED, checks=CHECKS))
    assert (rejected.trial("t0").outcome, rejected.trial("t0").checks) == ("rejected", CHECKS)
    assert apply(rejected, measured("t0")) is rejected


def test_a_measurement_of_a_trial_without_machine_code_is_refused():
    bare = CaseState(id="c", trials=(trial(0),), baselines_wanted=())
    assert apply(bare, measured("t0")) is bare


def test_timing_is_inherited_only_from_a_measured_trial_of_equal_code(state):
    assert apply(state, measured("t1", same_code_as="t0")) is state, "not measured yet"
    state = apply(state, measured("t0"))
    assert apply(state, measured("t2", same_code_as="t0")) is state, "other code"
    state = apply(state, measured("t1", same_code_as="t0"))
    assert state.trial("t1").same_code_as == "t0"
    contender = state.trial("t1").contender()
    assert (contender.inherits, contender.code, contender.median_seconds) == (True, "same", 1.0)
    assert (contender.private_scalars, contender.registers, contender.stack_bytes) == (3, 40, 64)


def test_rejected_trials_of_one_code_name_the_first_of_them(state):
    for name in ("t1", "t0"):
        state = apply(state, TrialRejected(trial=name, rejection=CRASHED))
    state = apply(state, measured("t2"))
    assert [state.trial(name).same_code_as for name in ("t0", "t1", "t2")] == ["t1", None, None]
    unbuilt = CaseState(id="c", trials=(trial(0), trial(1)), baselines_wanted=())
    for name in ("t0", "t1"):
        unbuilt = apply(unbuilt, TrialRejected(trial=name, rejection=CRASHED))
    assert unbuilt.trial("t1").same_code_as is None, "nothing is known of their code"


def test_one_that_inherited_its_timing_says_so_when_it_is_rejected_later(state):
    for event in (measured("t0"), measured("t1", same_code_as="t0"), finals({"t0": [1.0]}, rejections={"t1": CRASHED})):
        state = apply(state, event)
    assert (state.trial("t1").outcome, state.trial("t1").same_code_as) == ("rejected", "t0")


def test_only_measured_trials_are_contenders(state):
    state = apply(apply(state, measured("t0")), TrialRejected(trial="t2", rejection=CRASHED))
    assert [contender.id for contender in state.contenders()] == ["t0"]


def finals(seconds, *, phases=(), rejections=None, phases_only=False):
    samples = FinalsSamples(
        order=tuple(seconds),
        protocol="finals",
        samples_seconds={trial_id: (value,) * 15 for trial_id, value in seconds.items()},
        extra_phases={trial_id: {"device_batch": phase(7.0), "e2e_single": phase(8.0)} for trial_id in phases},
        rejections=rejections or {},
    )
    return FinalsMeasured(samples=samples, phases_only=phases_only)


def searched(state):
    for event in (measured("t0"), measured("t1", same_code_as="t0"), measured("t2", 2.0)):
        state = apply(state, event)
    return state


def test_phases_of_the_finals_join_every_trial_of_that_code_beside_the_searchs_own_device_batch(state):
    state = apply(searched(state), finals({"t0": 1.0, "t2": 2.0}, phases=("t0",)))
    for trial_id in ("t0", "t1"):
        timing = state.trial(trial_id).timing
        assert timing["device_batch"].median_seconds == 1.0
        assert timing["e2e_single"].median_seconds == 8.0
    assert set(state.trial("t2").timing) == {"device_batch"}


def test_a_finals_rejection_ends_a_measured_trial(state):
    state = apply(searched(state), finals({"t2": 2.0}, rejections={"t0": CRASHED}))
    assert state.trial("t0").outcome == "rejected"
    assert state.trial("t1").outcome == "measured", "what it inherited was measured"
    assert apply(state, finals({"t2": 9.0})) is state, "stale"


def test_phases_alone_need_finals_and_keep_their_samples(state):
    state = searched(state)
    alone = finals({"t2": 9.0}, phases=("t2",), phases_only=True)
    assert apply(state, alone) is state
    state = apply(apply(state, finals({"t0": 1.0, "t2": 2.0})), alone)
    assert state.finals.samples.samples_seconds["t2"] == (2.0,) * 15
    assert set(state.finals.samples.extra_phases) == {"t2"}


def test_retimings_count_once_each_and_no_more_after_the_finals(state):
    retime = DefaultRetimed(sequence=0, timing=phase(1.0))
    state = apply(searched(state), retime)
    assert apply(state, retime) is state
    state = apply(state, finals({"t0": 1.0}))
    assert apply(state, DefaultRetimed(sequence=1, timing=phase(1.0))) is state
    late = TrialRejected(trial="t0", rejection=CRASHED, after_measured=True)
    assert apply(state, late) is state


def test_stopping_leaves_what_ended_as_it_is(state):
    stopped = stop(apply(state, measured("t0")))
    assert [t.outcome for t in stopped.trials] == ["measured", "not_run", "not_run"]


def test_an_event_of_another_case_is_a_bug(state):
    with pytest.raises(KeyError):
        apply(state, TrialRejected(trial="t9", rejection=CRASHED))
