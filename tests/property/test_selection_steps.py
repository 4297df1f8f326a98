"""Whatever order events come in, whatever is lost or repeated: a case ends, complete, and nothing runs in vain."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

from hypothesis import given, settings
from hypothesis import strategies as st

from search.events import (
    BaselineMeasured,
    Built,
    DefaultRetimed,
    Event,
    FinalsMeasured,
    FreshBuilt,
    Revalidated,
    TrialMeasured,
    TrialRejected,
)
from search.ledger import CaseState, TrialState, apply
from search.lowering.contract import Artifact, CodeFacts
from search.measuring.protocol import BaselineSamples, Checks, FinalsSamples, InputCheck, PhaseTiming
from search.outcome import Rejected
from search.selection.noise import MINIMUM_RETIMES
from search.space.candidate import Candidate, CpuMapping
from search.steps import (
    Baseline,
    Build,
    Finals,
    FreshBuild,
    Measure,
    Revalidate,
    Settle,
    ShareCode,
    Step,
    missing,
    queue_of,
    step_key,
)

Fate = st.sampled_from(["fine", "fine", "fine", "fine", "plan", "compile", "correctness", "finals", "retime"])


@dataclass
class World:
    """What would really happen to each trial: its code, its speed and where it fails."""

    codes: dict[str, str]
    fates: dict[str, str]
    rng: random.Random
    stale: list[Event] = field(default_factory=list)

    def artifact(self, trial: str) -> Artifact:
        code = self.codes[trial]
        return Artifact(
            source_sha256=trial,
            artifact_sha256=code,
            library_path="/x.so",
            library_sha256="s",
            symbol="k",
            arguments=(),
        )

    def phase(self, trial: str) -> PhaseTiming:
        seconds = (1 + int(self.codes[trial]) % 7) * (1 + 0.02 * self.rng.random())
        return PhaseTiming(samples_seconds=(seconds,), median_seconds=seconds, calls_per_sample=1)

    def fails(self, trial: str, *at: str) -> Rejected | None:
        if self.fates[trial] in at:
            return Rejected(stage="runtime", reason=self.fates[trial])
        return None

    def perform(self, step: Step, state: CaseState) -> list[Event]:
        match step:
            case Build():
                return [self.build(trial) for trial in step.trials]
            case Measure():
                events = [self.measure(trial, None) for trial in step.trials]
                default = next(t.id for t in state.trials if t.is_default)
                if step.retimes and (failure := self.fails(default, "retime")):
                    return [*events, TrialRejected(trial=default, rejection=failure, after_measured=True)]
                first = step.first_retime_sequence
                retimes = [DefaultRetimed(sequence=first + n, timing=self.phase(default)) for n in range(step.retimes)]
                return [*events, *retimes]
            case ShareCode():
                return [self.measure(trial, root, state) for trial, root in step.trials]
            case Finals():
                return [self.finals(step)]
            case Baseline():
                samples = BaselineSamples(
                    name=step.name,
                    implementation="",
                    allocation="",
                    versions={},
                    timing={},
                    checks=None,
                    kernel_id=step.against,
                )
                return [BaselineMeasured(samples=samples)]
            case FreshBuild():
                return [
                    FreshBuilt(trial=trial, artifact=self.artifact(trial), plan={}, rejection=None)
                    for trial in step.trials
                ]
            case Revalidate():
                return [
                    Revalidated(trial=trial, same_source=True, same_machine_code=True, same_plan=True, checks=CHECKS)
                    for trial in step.trials
                ]
            case Settle():
                return [step.result]

    def build(self, trial: str) -> Event:
        if failure := self.fails(trial, "compile"):
            return TrialRejected(trial=trial, rejection=failure)
        facts = CodeFacts(
            source_sha256=trial,
            artifact_sha256=self.codes[trial],
            static_instructions=1,
            static_branches=0,
            stack_bytes=0,
            widest_vector_bits=0,
            code_bytes=1,
        )
        return Built(trial=trial, artifact=self.artifact(trial), facts=facts, lower_seconds=0.0, compile_seconds=0.0)

    def measure(self, trial: str, root: str | None, state: CaseState | None = None) -> Event:
        if failure := self.fails(trial, "correctness"):
            return TrialRejected(trial=trial, rejection=failure)
        timing = state.trial(root).timing if root and state else {"device_batch": self.phase(trial)}
        return TrialMeasured(trial=trial, timing=timing, checks=CHECKS, overlapped=False, same_code_as=root)

    def finals(self, step: Finals) -> FinalsMeasured:
        asked = step.trials or step.all_phases
        rejections = {trial: failure for trial in asked if (failure := self.fails(trial, "finals"))}
        alive = [trial for trial in asked if trial not in rejections]
        samples = FinalsSamples(
            order=tuple(alive),
            protocol="finals",
            samples_seconds={trial: tuple(self.phase(trial).median_seconds for _ in range(15)) for trial in alive},
            extra_phases={t: {"device_batch": self.phase(t)} for t in step.all_phases if t in alive},
            rejections=rejections,
        )
        return FinalsMeasured(samples=samples, phases_only=not step.trials)


CHECKS = Checks(
    passed=True,
    inputs=(
        InputCheck(
            name="normal",
            elements_checked=1,
            guard_elements_checked=136,
            input_sha256="i",
            tolerance="t",
            max_abs_error=0.0,
            max_rel_error=0.0,
            max_ulp_error=0.0,
            max_tolerance=0.0,
        ),
    ),
    guards_intact=True,
    inputs_unchanged=True,
)


@st.composite
def worlds(draw: st.DrawFn) -> tuple[World, CaseState]:
    count = draw(st.integers(1, 30))
    default = draw(st.integers(0, count - 1))
    outside = draw(st.booleans())
    fates = {f"t{n}": draw(Fate) for n in range(count)}
    codes = {f"t{n}": str(draw(st.integers(0, 12))) for n in range(count)}
    rejected = Rejected(stage="constraints", reason="private_budget")
    trials = tuple(
        TrialState(
            id=f"t{n}",
            ordinal=n,
            candidate=Candidate(
                width=8,
                input="reload" if n % 3 else "cache",
                fusion="separate",
                materialize="private",
                vector=1,
                unroll=1,
                partials=1,
                mapping=CpuMapping(local_lanes=8),
            ),
            in_space=not (outside and n == default),
            is_default=n == default,
            outcome="rejected" if fates[f"t{n}"] == "plan" else "pending",
            rejection=rejected if fates[f"t{n}"] == "plan" else None,
            score=float(n % 4),
        )
        for n in range(count)
    )
    world = World(codes=codes, fates=fates, rng=random.Random(draw(st.integers(0, 2**32))))
    return world, CaseState(id="c", trials=trials, baselines_wanted=("torch_eager",))


def assert_sound(step: Step, state: CaseState, in_flight: list[Step]) -> None:
    """A step asks only for work that is open, possible and not under way."""
    same_queue = [other for other in in_flight if queue_of(other) == queue_of(step)]
    assert step_key(step) not in {step_key(other) for other in in_flight}
    match step:
        case Build():
            busy = {trial for other in same_queue if isinstance(other, Build) for trial in other.trials}
            assert all(state.trial(t).outcome == "pending" and state.trial(t).artifact is None for t in step.trials)
            assert not busy & set(step.trials)
        case Measure() | ShareCode():
            asked = [t if isinstance(t, str) else t[0] for t in step.trials]
            for other in same_queue:
                if isinstance(other, Measure | ShareCode):
                    assert not set(asked) & {t if isinstance(t, str) else t[0] for t in other.trials}
            assert all(state.trial(t).outcome == "pending" and state.trial(t).artifact is not None for t in asked)
            if isinstance(step, ShareCode):
                for trial, root in step.trials:
                    assert state.trial(root).outcome == "measured"
                    assert state.trial(root).same_code_as is None
                    ours, theirs = state.trial(trial).artifact, state.trial(root).artifact
                    assert ours is not None
                    assert theirs is not None
                    assert ours.artifact_sha256 == theirs.artifact_sha256
            else:
                codes = [state.trial(t).artifact.artifact_sha256 for t in asked]
                assert len(set(codes)) == len(codes), "one run for each code"
        case Finals():
            assert all(t.outcome != "pending" for t in state.trials)
            assert all(state.trial(t).outcome == "measured" for t in step.trials + step.all_phases)
            codes = [state.trial(t).artifact.artifact_sha256 for t in step.trials]
            assert len(set(codes)) == len(codes), "identical code is never two finalists"
        case Settle() | Baseline() | FreshBuild() | Revalidate():
            assert all(t.outcome != "pending" for t in state.trials)


@settings(max_examples=150, deadline=None)
@given(worlds(), st.integers(0, 2**32))
def test_a_case_ends_whatever_is_lost_repeated_or_late(given_world: tuple[World, CaseState], seed: int) -> None:
    world, state = given_world
    rng = random.Random(seed)
    in_flight: list[Step] = []
    losses, turns = 40, 0
    terminal: dict[str, str] = {}
    while state.settled is None:
        turns += 1
        assert turns < 2000, "it must end"
        for step in missing(state, in_flight):
            assert_sound(step, state, in_flight)
            if rng.random() < 0.8 or not in_flight:
                in_flight.append(step)
        assert in_flight, "nothing to do, and not settled"
        step = in_flight.pop(rng.randrange(len(in_flight)))
        events = world.perform(step, state)
        if losses and rng.random() < 0.3:
            losses -= 1
            events = events[: rng.randrange(len(events) + 1)]
        if rng.random() < 0.2:
            rng.shuffle(events)
        if world.stale and rng.random() < 0.3:
            events.append(rng.choice(world.stale))
        for event in events:
            state = apply(state, event)
            assert apply(state, event) is state or isinstance(event, FinalsMeasured), "a repeated event does nothing"
        world.stale.extend(events)
        for trial in state.trials:
            before = terminal.get(trial.id, "pending")
            if before != "pending" and trial.outcome != before:
                assert (before, trial.outcome) == ("measured", "rejected")
                assert world.fates[trial.id] in ("finals", "retime")
            terminal[trial.id] = trial.outcome
    assert_complete(world, state)


def assert_complete(world: World, state: CaseState) -> None:
    measured = {t.id for t in state.trials if t.outcome == "measured"}
    rejected = {t.id for t in state.trials if t.outcome == "rejected"}
    assert len(measured) + len(rejected) == len(state.trials)
    assert all(world.fates[t] in ("plan", "compile", "correctness", "finals", "retime") for t in rejected)
    assert all(world.fates[t] not in ("plan", "compile", "correctness") for t in measured)
    result = state.settled
    assert result is not None
    assert result.error is None
    assert set(state.baselines) == {"torch_eager"}
    in_space = {t.id for t in state.trials if t.id in measured and t.in_space}
    assert (result.winner is not None) == bool(in_space)
    assert result.tie_set[:1] == ((result.winner,) if result.winner else ())
    assert set(result.tie_set) <= in_space
    assert set(result.reference_tie_set) <= {t for t in in_space if state.trial(t).candidate.input == "reload"}
    for trial in {result.winner, result.reference} - {None}:
        assert state.revalidated[trial].passed
    default = state.default
    assert default is not None
    if in_space and default.outcome == "measured":
        assert len({r.sequence for r in state.retimes}) == len(state.retimes) >= MINIMUM_RETIMES
        assert result.noise_floor is not None


@settings(max_examples=60, deadline=None)
@given(worlds())
def test_a_driver_that_does_one_step_at_a_time_builds_and_runs_each_code_once(
    given_world: tuple[World, CaseState],
) -> None:
    world, state = given_world
    built: list[str] = []
    ran: list[str] = []
    while state.settled is None:
        step = missing(state)[0]
        if isinstance(step, Build):
            built.extend(step.trials)
        if isinstance(step, Measure):
            ran.extend(step.trials)
        for event in world.perform(step, state):
            state = apply(state, event)
    assert_complete(world, state)
    assert len(built) == len(set(built)) == sum(fate != "plan" for fate in world.fates.values())
    assert len(ran) == len(set(ran))
    own = [world.codes[t] for t in ran if world.fates[t] not in ("correctness", "finals", "retime")]
    assert len(own) == len(set(own))
