"""Opening a case, performing its steps with stand-in tools, and the loop's edges."""

from __future__ import annotations

from dataclasses import replace

import pytest

from search.device.spec import DeviceSpec
from search.errors import ChildFailed, InvalidInput, ToolchainUnavailable
from search.events import DefaultRetimed, FinalsMeasured, FreshBuilt, Revalidated, TrialMeasured, TrialRejected
from search.ledger import CaseState, apply
from search.lowering.contract import Artifact, BuildResult, CodeFacts
from search.measuring.protocol import BaselineSamples, Checks, FinalsSamples, MeasureResult, PhaseTiming
from search.outcome import Rejected
from search.pipeline import Tools, open_case, perform, tune
from search.planning.plan import plan_case
from search.program.resolve import resolve_case
from search.space.resolve import resolve_space
from search.steps import Baseline, Build, Finals, FreshBuild, Measure, Revalidate, Settle, ShareCode, missing

CASE = resolve_case({"kernel": "softmax", "dims": {"rows": 4, "cols": 700}})
SPACE = {"width": [8, 32], "input": ["reload", "cache"], "materialize": ["private"], "simd_scope": ["none"]}
CRASHED = Rejected(stage="runtime", reason="crashed", detail={"signal": "SIGSEGV"})
CHECKS = Checks(passed=True, inputs=(), guards_intact=True, inputs_unchanged=True)


def opened(**changes) -> CaseState:
    space = resolve_space({**SPACE, "nontemporal": [False]}, CASE, "cpu")
    return open_case(CASE, **{"space": space, "budget_scalars": 64, "baselines": ("torch_eager",), **changes})


def artifact(code: str) -> Artifact:
    return Artifact(
        source_sha256=f"source of {code}",
        artifact_sha256=code,
        library_path="/x.so",
        library_sha256="l",
        symbol="k",
        arguments=(),
    )


class Builds:
    """Stands in for the Builder: what it was asked, and what comes of each trial."""

    def __init__(self, codes=None, rejections=None):
        self.codes, self.rejections, self.asked = codes or {}, rejections or {}, []

    def build(self, requests, *, timeout_seconds, cancelled, fresh=False):
        for request in requests:
            self.asked.append((request, fresh))
            if request.id in self.rejections:
                yield BuildResult(id=request.id, rejection=self.rejections[request.id])
                continue
            code = self.codes.get(request.id, request.id)
            facts = CodeFacts(
                source_sha256=f"source of {code}",
                artifact_sha256=code,
                static_instructions=1,
                static_branches=0,
                stack_bytes=0,
                widest_vector_bits=0,
                code_bytes=1,
            )
            yield BuildResult(
                id=request.id, artifact=artifact(code), facts=facts, lower_seconds=0.5, compile_seconds=0.25
            )


class Measures:
    """Stands in for the Measurer: failing trials by id, and a log of what ran."""

    def __init__(self, failing=(), fails_at=("search", "check", "retime", "finals")):
        self.failing, self.fails_at, self.log, self.sittings = set(failing), fails_at, [], []

    def result(self, method, item, timed):
        self.log.append((method, item.id))
        if item.id in self.failing and method in self.fails_at:
            return MeasureResult(id=item.id, rejection=CRASHED, checks=CHECKS)
        timing = {"device_batch": phase(1.0 + len(self.log))} if timed else {}
        return MeasureResult(id=item.id, checks=CHECKS, timing=timing)

    def search(self, case, items, *, cancelled):
        for item in items:
            yield self.result("search", item, True)

    def check(self, case, items, *, cancelled):
        for item in items:
            yield self.result("check", item, False)

    def retime(self, case, item, *, cancelled):
        result = self.result("retime", item, True)
        return result.rejection or result.timing["device_batch"]

    def finals(self, case, items, *, all_phases, sittings, cancelled):
        self.sittings.append(sittings)
        rejections = {i.id: CRASHED for i in items if i.id in self.failing and "finals" in self.fails_at}
        alive = [i.id for i in items if i.id not in rejections]
        return FinalsSamples(
            order=tuple(alive),
            protocol="finals",
            samples_seconds=dict.fromkeys(alive, (1.0,) * 15),
            extra_phases={trial: {"device_batch": phase(1.0)} for trial in all_phases if trial in alive},
            rejections=rejections,
        )

    def baseline(self, case, name, *, against, cancelled):
        self.log.append(("baseline", against and against.id))
        return BaselineSamples(
            name=name,
            implementation="",
            allocation="",
            versions={},
            timing={},
            checks=None,
            kernel_id=against and against.id,
        )


def phase(seconds):
    return PhaseTiming(samples_seconds=(seconds,) * 5, median_seconds=seconds, calls_per_sample=10)


def tools(builder=None, measurer=None, overlapped=lambda: False) -> Tools:
    return Tools(
        builder=builder or Builds(), measurer=measurer or Measures(), cancelled=lambda: False, overlapped=overlapped
    )


def after(state, step, with_tools) -> CaseState:
    for event in perform(step, state, CASE, with_tools):
        state = apply(state, event)
    return state


def pending(state) -> list[str]:
    return [trial.id for trial in state.trials if trial.outcome == "pending"]


# Opening


def test_opening_keeps_every_candidate_in_order_with_its_plan_and_planning_rejections_as_ended_trials():
    state = opened()
    planned = list(plan_case(CASE, resolve_space({**SPACE, "nontemporal": [False]}, CASE, "cpu")))
    assert [t.candidate for t in state.trials] == [p.candidate for p in planned]
    assert [t.id for t in state.trials] == [f"case-{n}" for n in range(len(planned))]
    over = [t for t in state.trials if t.outcome == "rejected"]
    # softmax, 700 columns: 88 per tile at W=8, 22 at W=32; cache needs two tiles, reload one
    assert [t.private_scalars for t in over] == [88, 176]
    assert {t.rejection.reason for t in over} == {"private_budget"}
    assert all(t.plan["private_scalars"] == t.private_scalars for t in state.trials)
    assert [t.private_scalars for t in state.trials if t.outcome == "pending" and t.in_space] == [22, 44]
    (default,) = [t for t in state.trials if t.is_default]
    assert not default.in_space, "its materialize is not in this space"


def test_opening_refuses_bad_budgets_and_unknown_baselines_by_field():
    with pytest.raises(InvalidInput) as unknown:
        opened(baselines=("torch_eager", "numpy"))
    assert [(p.field, p.value) for p in unknown.value.problems] == [("/baselines/1", "numpy")]
    with pytest.raises(InvalidInput) as negative:
        opened(budget_scalars=-1)
    assert negative.value.problems[0].field == "/private_budget_scalars"


def test_a_baseline_asked_twice_is_wanted_once():
    assert opened(baselines=("torch_eager", "torch_eager")).baselines_wanted == ("torch_eager",)


# Performing


def test_a_build_hands_over_the_case_and_candidate_and_records_facts_cost_or_rejection():
    state = opened()
    first, second, *_ = pending(state)
    refused = Rejected(stage="compile", reason="compiler_error")
    builder = Builds(rejections={second: refused})
    state = after(state, Build(trials=(first, second)), tools(builder))
    (request, fresh), _ = builder.asked
    assert (request.case, request.candidate) == (CASE.document(), state.trial(first).candidate.document())
    assert not fresh
    assert (state.trial(first).lower_seconds, state.trial(first).compile_seconds) == (0.5, 0.25)
    assert state.trial(second).rejection == refused


def test_measuring_times_each_then_the_default_and_says_what_overlapped():
    state = opened()
    trials = tuple(pending(state))
    default = state.default.id
    state = after(state, Build(trials=trials), tools())
    compiling = iter([False, True, False, False, False, False])
    measurer = Measures()
    step = Measure(trials=trials, retimes=2, first_retime_sequence=7)
    events = list(perform(step, state, CASE, tools(measurer=measurer, overlapped=lambda: next(compiling))))
    assert measurer.log == [*(("search", t) for t in trials), ("retime", default), ("retime", default)]
    assert [e.overlapped for e in events if isinstance(e, TrialMeasured)] == [True, False, False]
    assert [e.sequence for e in events if isinstance(e, DefaultRetimed)] == [7, 8]


def test_a_default_that_is_rejected_is_not_timed_again():
    state = opened()
    default = state.default.id
    state = after(state, Build(trials=(default,)), tools())
    measurer = Measures(failing=[default])
    (event,) = perform(Measure(trials=(default,)), state, CASE, tools(measurer=measurer))
    assert (event.trial, event.rejection, event.checks, event.after_measured) == (default, CRASHED, CHECKS, False)


def test_a_default_that_fails_in_a_retiming_is_rejected_afterwards():
    state = opened()
    default = state.default.id
    state = after(state, Build(trials=(default,)), tools())
    state = after(state, Measure(trials=(default,), retimes=0), tools())
    failing = tools(measurer=Measures(failing=[default], fails_at=("retime",)))
    (event,) = perform(Measure(trials=(), retimes=3), state, CASE, failing)
    assert event == TrialRejected(trial=default, rejection=CRASHED, after_measured=True)


def shared_pair(state):
    root, sharer = [t for t in pending(state) if t != state.default.id][:2]
    state = after(state, Build(trials=(root, sharer, state.default.id)), tools(Builds(codes={sharer: root})))
    return after(state, Measure(trials=(root,), retimes=0), tools()), root, sharer


def test_shared_code_is_checked_not_timed_and_inherits():
    state, root, sharer = shared_pair(opened())
    measurer = Measures()
    state = after(state, ShareCode(trials=((sharer, root),)), tools(measurer=measurer))
    assert measurer.log == [("check", sharer)]
    assert state.trial(sharer).timing == state.trial(root).timing
    assert state.trial(sharer).same_code_as == root


def test_shared_code_that_fails_its_check_is_rejected_and_a_lost_root_leaves_it_open():
    state, root, sharer = shared_pair(opened())
    step = ShareCode(trials=((sharer, root),))
    rejected = after(state, step, tools(measurer=Measures(failing=[sharer])))
    assert rejected.trial(sharer).rejection == CRASHED
    gone = apply(state, TrialRejected(trial=root, rejection=CRASHED, after_measured=True))
    assert list(perform(step, gone, CASE, tools())) == []


def test_finals_take_all_phases_alone_when_no_trials_are_named():
    state, root, _ = shared_pair(opened())
    measurer = Measures()
    (whole,) = perform(Finals(trials=(root,), all_phases=(root,)), state, CASE, tools(measurer=measurer))
    (alone,) = perform(Finals(trials=(), all_phases=(root,)), state, CASE, tools(measurer=measurer))
    assert (whole.phases_only, alone.phases_only) == (False, True)
    assert measurer.sittings == [None, 1], "what decides nothing takes one process"
    assert set(alone.samples.extra_phases) == {root}


def test_finals_that_lose_a_finalist_without_a_word_are_an_error():
    state, root, _ = shared_pair(opened())

    class Forgetful(Measures):
        def finals(self, case, items, **options):
            return replace(super().finals(case, items, **options), samples_seconds={})

    with pytest.raises(ChildFailed, match=root):
        list(perform(Finals(trials=(root,), all_phases=()), state, CASE, tools(measurer=Forgetful())))


def test_finals_name_those_that_crash():
    state, root, _ = shared_pair(opened())
    crashing = tools(measurer=Measures(failing=[root]))
    (event,) = perform(Finals(trials=(root,), all_phases=(root,)), state, CASE, crashing)
    assert isinstance(event, FinalsMeasured)
    assert event.samples.rejections == {root: CRASHED}


def test_a_baseline_runs_beside_the_winner_or_alone():
    state, root, _ = shared_pair(opened())
    measurer = Measures()
    for against in (root, None):
        list(perform(Baseline(name="torch_eager", against=against), state, CASE, tools(measurer=measurer)))
    assert measurer.log == [("baseline", root), ("baseline", None)]


def test_a_fresh_build_bypasses_the_store_and_plans_again():
    state, root, _ = shared_pair(opened())
    builder = Builds()
    (event,) = perform(FreshBuild(trials=(root,)), state, CASE, tools(builder))
    assert builder.asked[0][1] is True
    assert (event.artifact, event.plan) == (artifact(root), state.trial(root).plan)
    refused = Rejected(stage="compile", reason="compiler_error")
    (event,) = perform(FreshBuild(trials=(root,)), state, CASE, tools(Builds(rejections={root: refused})))
    assert (event.artifact, event.rejection) == (None, refused)


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, (True, True, True)),
        ({"artifact": replace(artifact("x"), source_sha256="other")}, (False, True, True)),
        ({"artifact": replace(artifact("x"), artifact_sha256="other")}, (True, False, True)),
        ({"plan": {"private_scalars": 0}}, (True, True, False)),
    ],
)
def test_revalidation_compares_source_machine_code_and_plan_and_checks_again(changes, expected):
    state, root, _ = shared_pair(opened())
    code = state.trial(root).artifact
    wrong = changes.get("artifact")
    if wrong is not None:
        wrong = replace(
            code,
            source_sha256="other" if wrong.source_sha256 == "other" else code.source_sha256,
            artifact_sha256="other" if wrong.artifact_sha256 == "other" else code.artifact_sha256,
        )
    plan = changes.get("plan", state.trial(root).plan)
    state = apply(state, FreshBuilt(trial=root, artifact=wrong or code, plan=plan, rejection=None))
    measurer = Measures()
    (event,) = perform(Revalidate(trials=(root,)), state, CASE, tools(measurer=measurer))
    assert isinstance(event, Revalidated)
    assert (event.same_source, event.same_machine_code, event.same_plan) == expected
    assert measurer.log == [("check", root)]
    assert event.checks == CHECKS


def test_the_loop_of_steps_settles_a_case_with_stand_in_tools():
    state, with_tools = opened(), tools(Builds(), Measures())
    while state.settled is None:
        state = after(state, missing(state)[0], with_tools)
    assert state.settled.error is None
    assert state.settled.winner is not None
    assert [t.outcome for t in state.trials].count("pending") == 0
    (result,) = perform(Settle(result=state.settled), state, CASE, with_tools)
    assert result == state.settled


# tune, before anything is started


def device(**changes) -> DeviceSpec:
    fields = {
        "id": "cpu:0",
        "kind": "cpu",
        "target": "cpu",
        "name": "",
        "identity": {},
        "identity_digest": "",
        "toolchain": {},
        "toolchain_fingerprint": "",
        "available": True,
    }
    return DeviceSpec(**{**fields, **changes})


def test_tuning_on_an_unavailable_device_says_why(tmp_path):
    with pytest.raises(ToolchainUnavailable, match="no gcc"):
        tune(CASE, device=device(available=False, reason="no gcc"), work_dir=tmp_path)


def test_tuning_refuses_a_wrong_space_before_it_starts_anything(tmp_path):
    with pytest.raises(InvalidInput) as refused:
        tune(CASE, device=device(), work_dir=tmp_path / "work", space={"width": [7], "height": [1]})
    assert {p.field for p in refused.value.problems} == {"/space/width/0", "/space/height"}
    assert not (tmp_path / "work").exists()
