"""How steps of a replay are performed: fresh builders on every core, one fresh measurer, faults as records."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from search.errors import ChildFailed
from search.lowering.contract import Artifact, BuildResult, CodeFacts
from search.measuring.protocol import BaselineSamples, Checks, InputCheck, MeasureItem, MeasureResult, PhaseTiming
from search.outcome import Rejected
from search.planning.default import default_candidate
from search.planning.plan import plan_candidate
from search.program.resolve import resolve_case
from search.replay.perform import ReplayTools, perform_replay
from search.replay.records import (
    ArmTimed,
    BuildRound,
    ReplayState,
    RoundBuilt,
    TimeRound,
    built_from_document,
    missing,
    replay_document,
    replay_from_document,
    step_document,
    step_from_document,
    timed_from_document,
)
from search.selection.replay import Arm, Replay, ReplayCase, arms_of, sequence

CASE = resolve_case({"kernel": "softmax", "dims": {"rows": 8, "cols": 33}})
CANDIDATE = default_candidate(CASE, "cpu")
PLAN = plan_candidate(CASE, CANDIDATE, budget_scalars=None).plan
CHECK = InputCheck(
    name="normal",
    elements_checked=264,
    guard_elements_checked=136,
    input_sha256="3" * 64,
    tolerance="2 ulp",
    max_abs_error=0.0,
    max_rel_error=0.0,
    max_ulp_error=None,
    max_tolerance=1e-6,
)
CHECKS = Checks(passed=True, inputs=(CHECK,), guards_intact=True, inputs_unchanged=True)
PHASE = PhaseTiming(samples_seconds=(1e-6,) * 9, median_seconds=1e-6, calls_per_sample=10)
BOTH: Any = {"device_batch": PHASE, "e2e_batch": PHASE}


def arm(code: str) -> Arm:
    assert PLAN is not None
    return Arm(
        trial_id=code, candidate=CANDIDATE.document(), plan=PLAN.document(), source_sha256=code, artifact_sha256=code
    )


@pytest.fixture
def replay() -> Replay:
    arms = arms_of(reference=arm("r"), candidate=arm("c"), default=arm("r"), incumbent=arm("i"))
    cases = tuple(
        ReplayCase(index=index, case=CASE.document(), key_digest=str(index) * 64, arms=arms, torch=True)
        for index in range(2)
    )
    return Replay(rounds=4, cases=cases)


class Builders:
    """Makes builders, and remembers what each was asked."""

    def __init__(self, rejects: Sequence[str] = ()) -> None:
        self.made: list[SimpleNamespace] = []
        self.rejects = rejects

    def __call__(self, cpus: Sequence[int]) -> Any:
        made = SimpleNamespace(cpus=tuple(cpus), asked=[], fresh=[], closed=False)
        self.made.append(made)

        def build(requests: Sequence[Any], *, fresh: bool, **_: Any) -> Iterator[BuildResult]:
            made.asked += [request.id for request in requests]
            made.fresh.append(fresh)
            for request in requests:
                yield self.result(request.id)

        def close() -> None:
            made.closed = True

        return SimpleNamespace(build=build, close=close)

    def result(self, name: str) -> BuildResult:
        if name in self.rejects:
            return BuildResult(id=name, rejection=Rejected(stage="compile", reason="compiler_error"))
        code = CodeFacts(
            source_sha256=name,
            artifact_sha256=name,
            static_instructions=1,
            static_branches=0,
            stack_bytes=0,
            widest_vector_bits=0,
            code_bytes=1,
        )
        artifact = Artifact(
            source_sha256=name,
            artifact_sha256=name,
            library_path="/nowhere",
            library_sha256="4" * 64,
            symbol="k",
            arguments=(),
        )
        return BuildResult(id=name, artifact=artifact, facts=code)


class Measurer:
    """Answers as a measurer would; remembers in which order it was asked."""

    def __init__(self, fails: Callable[[str], Rejected | None] = lambda name: None, torch_error: str | None = None):
        self.fails, self.torch_error = fails, torch_error
        self.asked: list[str] = []
        self.closed = False

    def __enter__(self) -> Measurer:
        return self

    def __exit__(self, *_: object) -> None:
        self.closed = True

    def replay(self, case: Any, item: MeasureItem, *, phases: Any, cancelled: Any) -> MeasureResult:
        assert tuple(phases) == ("device_batch", "e2e_batch")
        self.asked.append(item.artifact.artifact_sha256)
        rejection = self.fails(item.artifact.artifact_sha256)
        return MeasureResult(id=item.id, checks=CHECKS, timing={} if rejection else BOTH, rejection=rejection)

    def baseline(self, case: Any, name: str, *, cancelled: Any, protocol: str) -> BaselineSamples:
        assert (name, protocol) == ("torch_eager", "acceptance")
        self.asked.append("torch")
        return BaselineSamples(
            name=name,
            implementation="torch.softmax",
            allocation="preallocated (out=)",
            versions={"torch": "0"},
            timing={} if self.torch_error else {**BOTH, "e2e_single": PHASE},
            checks=CHECKS,
            kernel_id=None,
            error=self.torch_error,
        )


def tools(builders: Builders | None = None, measurer: Measurer | None = None, cpus: int = 2) -> ReplayTools:
    return ReplayTools(
        builder=builders or Builders(),
        build_cpus=tuple(range(cpus)),
        measurer=lambda: measurer or Measurer(),  # type: ignore[arg-type, return-value]
        cancelled=lambda: False,
    )


def built(state: ReplayState, builders: Builders | None = None, number: int = 0) -> RoundBuilt:
    (record,) = perform_replay(BuildRound(round=number), state, tools(builders))
    assert isinstance(record, RoundBuilt)
    return record


def test_every_kernel_arm_is_built_afresh_on_every_core(replay: Replay) -> None:
    builders = Builders()
    record = built(ReplayState(replay=replay), builders)
    assert [made.cpus for made in builders.made] == [(0,), (1,)]
    assert sorted(name for made in builders.made for name in made.asked) == [
        f"{case}/{name}" for case in (0, 1) for name in ("C", "D", "I", "R")
    ]
    assert all(made.fresh == [True] and made.closed for made in builders.made)
    assert [(one.case, one.arm) for one in record.builds] == [(i, a) for i in (0, 1) for a in ("C", "R", "D", "I")]
    assert PLAN is not None
    assert all(one.plan == PLAN.document() and one.artifact is not None for one in record.builds)


def test_no_two_rounds_share_a_process(replay: Replay) -> None:
    state = ReplayState(replay=replay)
    assert len({built(state, number=number).process for number in range(4)}) == 4


def test_a_round_is_timed_in_its_order_by_one_fresh_measurer(replay: Replay) -> None:
    state = ReplayState(replay=replay)
    state = replace(state, built={1: built(state, number=1)})
    measurer = Measurer()
    records = list(perform_replay(TimeRound(round=1), state, tools(measurer=measurer)))
    assert measurer.closed
    assert [(one.case, one.arm) for one in records if isinstance(one, ArmTimed)] == list(sequence(replay, 1))
    # the control is the candidate's artifact once more
    assert measurer.asked == [
        "torch" if arm == "T" else f"{case}/{'C' if arm == 'A' else arm}" for case, arm in sequence(replay, 1)
    ]
    ends = [
        (one.started_monotonic_seconds, one.finished_monotonic_seconds) for one in records if isinstance(one, ArmTimed)
    ]
    assert all(before[1] <= after[0] for before, after in itertools.pairwise(ends))
    assert all(set(one.timing) == {"device_batch", "e2e_batch"} for one in records if isinstance(one, ArmTimed))


def test_a_kernel_that_fails_is_a_record_and_ends_the_round(replay: Replay) -> None:
    state = ReplayState(replay=replay)
    state = replace(state, built={0: built(state)})
    wrong = Rejected(stage="correctness", reason="wrong_value")
    measurer = Measurer(fails=lambda name: wrong if name == "0/C" else None)
    records = list(perform_replay(TimeRound(round=0), state, tools(measurer=measurer)))
    assert records[-1].failure == wrong.document()  # type: ignore[union-attr]
    assert [one.arm for one in records] == ["R", "C"]  # type: ignore[union-attr]
    after = replace(state, timed={0: tuple(records)})  # type: ignore[arg-type]
    assert "failed in round 0" in after.failures[0]
    assert missing(after) is None


def test_torch_that_fails_ends_nothing(replay: Replay) -> None:
    state = ReplayState(replay=replay)
    state = replace(state, built={0: built(state)})
    records = list(perform_replay(TimeRound(round=0), state, tools(measurer=Measurer(torch_error="no such op"))))
    assert len(records) == len(sequence(replay, 0))
    after = replace(state, timed={0: tuple(records)})  # type: ignore[arg-type]
    assert after.failures == ()
    assert after.torch_failures() == {0: "no such op", 1: "no such op"}
    assert missing(after) == BuildRound(round=1)


def test_a_build_that_is_rejected_ends_the_replay(replay: Replay) -> None:
    state = ReplayState(replay=replay)
    state = replace(state, built={0: built(state, Builders(rejects=["1/R"]))})
    assert "arm R" in state.failures[0]
    assert "compiler_error" in state.failures[0]
    assert missing(state) is None
    with pytest.raises(ChildFailed):
        list(perform_replay(TimeRound(round=0), state, tools()))


def test_what_is_missing_comes_round_by_round(replay: Replay) -> None:
    state = ReplayState(replay=replay)
    steps = []
    while (step := missing(state)) is not None:
        steps.append(step)
        records = list(perform_replay(step, state, tools()))
        if isinstance(step, BuildRound):
            state = replace(state, built={**state.built, step.round: records[0]})  # type: ignore[dict-item]
        else:
            # half a round is no round
            half = replace(state, timed={**state.timed, step.round: tuple(records[:3])})  # type: ignore[dict-item]
            assert missing(half) == step
            state = replace(state, timed={**state.timed, step.round: tuple(records)})  # type: ignore[dict-item]
    assert steps == [kind(round=number) for number in range(4) for kind in (BuildRound, TimeRound)]
    assert all(step_from_document(step_document(step)) == step for step in steps)


def test_records_survive_json(replay: Replay) -> None:
    state = ReplayState(replay=replay)
    record = built(state, Builders(rejects=["0/I"]))
    assert replay_from_document(replay_document(replay)) == replay
    assert built_from_document(replay_document(record)) == record
    state = replace(state, built={0: built(state)})
    for one in perform_replay(TimeRound(round=0), state, tools(measurer=Measurer(torch_error="no"))):
        assert timed_from_document(replay_document(one)) == one
