"""A case on a compile-only device, state by state: built, checked once per machine code, settled without a winner."""

from dataclasses import replace
from typing import Any

import pytest

from search.errors import ChildFailed, InvalidInput
from search.events import CaseSettled, TrialChecked, TrialRejected, event_document, event_from_document
from search.ledger import CaseState, TrialState, apply, stop
from search.lowering.contract import Artifact, BuildResult, CodeFacts
from search.measuring.protocol import Checks, InputCheck, MeasureResult
from search.outcome import Rejected
from search.perform import Tools, perform
from search.pipeline import open_case
from search.program.resolve import resolve_case
from search.space.candidate import Candidate, CudaMapping
from search.space.resolve import resolve_space
from search.steps import (
    UNTIMED_BUILD_BATCH,
    Build,
    Check,
    Settle,
    ShareCode,
    conflicts,
    is_quiet,
    missing,
    queue_of,
    step_document,
    step_from_document,
)
from search.untimed import CHECK_BATCH

WHY = "cuda-sm_90 is compile-only"
CASE = resolve_case({"kernel": "softmax", "dims": {"rows": 4, "cols": 65}})
WRONG = Rejected(stage="correctness", reason="wrong_values")


def trial(ordinal: int, **changes: Any) -> TrialState:
    candidate = Candidate(
        width=32,
        input="reload",
        fusion="separate",
        materialize="private",
        vector=1,
        unroll=1,
        partials=1,
        mapping=CudaMapping(),
    )
    fields: dict[str, Any] = {"candidate": candidate, "in_space": True, "is_default": False, "outcome": "pending"}
    return TrialState(id=f"t{ordinal}", ordinal=ordinal, **{**fields, **changes})


def artifact(code: str) -> Artifact:
    return Artifact(
        source_sha256=f"source {code}",
        artifact_sha256=code,
        library_path="/x.cubin",
        library_sha256="s",
        symbol="k",
        arguments=(),
    )


def built(ordinal: int, code: str | None = None, **changes: Any) -> TrialState:
    return trial(ordinal, artifact=artifact(code or f"code {ordinal}"), **changes)


def checks() -> Checks:
    one = InputCheck(
        name="normal",
        elements_checked=195,
        guard_elements_checked=136,
        input_sha256="i",
        tolerance="2 ulp",
        max_abs_error=0.0,
        max_rel_error=0.0,
        max_ulp_error=0.0,
        max_tolerance=1e-6,
    )
    return Checks(passed=True, inputs=(one,), guards_intact=True, inputs_unchanged=True)


def case(*trials: TrialState) -> CaseState:
    return CaseState(id="c", trials=trials, baselines_wanted=(), untimed=WHY)


def test_first_everything_is_built() -> None:
    state = case(*(trial(n) for n in range(UNTIMED_BUILD_BATCH + 1)))
    steps = missing(state)
    assert [type(step) for step in steps] == [Build, Build]
    assert missing(state, steps) == ()


def test_what_is_built_is_checked_in_full_batches_while_more_is_coming() -> None:
    ready = [built(n) for n in range(CHECK_BATCH)]
    assert not any(isinstance(step, Check) for step in missing(case(*ready[1:], trial(99))))
    first, *rest = missing(case(*ready, trial(99)))
    assert first == Check(trials=tuple(one.id for one in ready))
    assert [type(step) for step in rest] == [Build]
    assert missing(case(*ready[:2])) == (Check(trials=("t0", "t1")),)


def test_one_of_each_machine_code_is_simulated_and_the_others_share_its_checks() -> None:
    state = case(built(0, "a"), built(1, "b"), built(2, "a"), built(3, "b"))
    (check,) = missing(state)
    assert check == Check(trials=("t0", "t1"))
    assert missing(state, [check]) == ()
    state = apply(state, TrialChecked(trial="t0", checks=checks()))
    state = apply(state, TrialRejected(trial="t1", rejection=WRONG))
    assert missing(state) == (Check(trials=("t3",)), ShareCode(trials=(("t2", "t0"),)))
    shared = TrialChecked(trial="t2", checks=checks(), same_code_as="t0")
    assert apply(state, shared).trial("t2").same_code_as == "t0"


def test_checks_are_not_borrowed_from_other_code_nor_from_what_was_rejected() -> None:
    state = apply(case(built(0, "a"), built(1, "b"), built(2, "a")), TrialChecked(trial="t0", checks=checks()))
    borrowed = TrialChecked(trial="t1", checks=checks(), same_code_as="t0")
    assert apply(state, borrowed) is state
    state = apply(case(built(0, "a"), built(2, "a")), TrialRejected(trial="t0", rejection=WRONG))
    borrowed = TrialChecked(trial="t2", checks=checks(), same_code_as="t0")
    assert apply(state, borrowed) is state


def test_a_check_needs_code_and_stands_once_it_is_there() -> None:
    state = case(trial(0))
    assert apply(state, TrialChecked(trial="t0", checks=checks())) is state
    state = apply(case(built(0)), TrialChecked(trial="t0", checks=checks()))
    assert state.trial("t0").outcome == "checked"
    assert apply(state, TrialRejected(trial="t0", rejection=WRONG)) is state
    late = TrialRejected(trial="t0", rejection=WRONG, after_measured=True)
    assert apply(state, late) is state
    assert state.contenders() == (), "nothing that was not timed can win"


def test_when_all_have_ended_the_case_settles_without_a_winner_and_says_why() -> None:
    state = case(built(0), trial(1, outcome="rejected", rejection=WRONG))
    state = apply(state, TrialChecked(trial="t0", checks=checks()))
    assert missing(state, [Check(trials=("t0",))]) == ()
    (settle,) = missing(state)
    assert isinstance(settle, Settle)
    assert (settle.result.winner, settle.result.reference, settle.result.untimed) == (None, None, WHY)
    assert settle.result.error is None
    assert missing(apply(state, settle.result)) == ()


def test_a_case_that_was_stopped_says_so() -> None:
    (settle,) = missing(stop(case(built(0))))
    assert isinstance(settle, Settle)
    assert settle.result.error is not None
    assert "stopped" in settle.result.error


def test_checks_take_cores_and_no_device() -> None:
    step = Check(trials=("a", "b"))
    assert queue_of(step) == "compile"
    assert not is_quiet(step)
    assert conflicts(step) == {"a", "b"}
    assert step_from_document(step_document(step)) == step


def test_results_that_are_older_than_untimed_devices_still_load() -> None:
    document = event_document(
        CaseSettled(
            winner=None,
            reference=None,
            tie_set=(),
            reference_tie_set=(),
            noise_floor=None,
            regret=None,
            predicted=None,
        )
    )
    del document["untimed"]
    settled = event_from_document(document)
    assert isinstance(settled, CaseSettled)
    assert settled.untimed is None


class Checker:
    """Rejects what it is told to; loses what it is told to."""

    def __init__(self, *, wrong: set[str] | None = None, lost: set[str] | None = None) -> None:
        self.wrong, self.lost = wrong or set(), lost or set()
        self.asked: list[list[str]] = []

    def check(self, case: Any, items: Any, *, cancelled: Any) -> Any:
        self.asked.append([item.id for item in items])
        for item in items:
            if item.id in self.wrong:
                yield MeasureResult(id=item.id, checks=replace(checks(), passed=False), rejection=WRONG)
            elif item.id not in self.lost:
                yield MeasureResult(id=item.id, checks=checks())

    def close(self) -> None: ...


def tools(checker: Checker) -> Tools:
    never: Any = None
    return Tools(builder=never, measurer=never, cancelled=lambda: False, overlapped=lambda: False, checker=checker)


def test_a_check_ends_every_trial_of_its_batch() -> None:
    state, checker = case(built(0), built(1)), Checker(wrong={"t1"})
    for event in perform(Check(trials=("t0", "t1")), state, CASE, tools(checker)):
        state = apply(state, event)
    assert [one.outcome for one in state.trials] == ["checked", "rejected"]
    assert state.trial("t1").rejection == WRONG
    assert checker.asked == [["t0", "t1"]]


def test_a_checker_that_leaves_one_out_broke_its_word() -> None:
    state = case(built(0), built(1))
    with pytest.raises(ChildFailed, match="t1"):
        list(perform(Check(trials=("t0", "t1")), state, CASE, tools(Checker(lost={"t1"}))))


def test_sharing_takes_no_work() -> None:
    state, checker = case(built(0, "a"), built(1, "a")), Checker()
    state = apply(state, TrialChecked(trial="t0", checks=checks()))
    (event,) = perform(ShareCode(trials=(("t1", "t0"),)), state, CASE, tools(checker))
    assert event == TrialChecked(trial="t1", checks=checks(), same_code_as="t0")
    assert checker.asked == []


def test_a_baseline_is_refused_where_nothing_is_timed_and_none_is_the_default() -> None:
    space = resolve_space({"width": [32]}, CASE, "cuda")
    assert open_case(CASE, space=space, untimed=WHY).baselines_wanted == ()
    assert open_case(CASE, space=space).baselines_wanted == ("torch_eager",)
    with pytest.raises(InvalidInput, match="compile-only") as refused:
        open_case(CASE, space=space, untimed=WHY, baselines=("torch_eager",))
    assert refused.value.problems[0].field == "/baselines"


def test_code_that_takes_too_much_is_refused_with_its_facts() -> None:
    facts = CodeFacts(
        source_sha256="s",
        artifact_sha256="a",
        static_instructions=900,
        static_branches=0,
        stack_bytes=512,
        widest_vector_bits=128,
        code_bytes=9000,
        registers=255,
        spill_bytes=512,
    )
    too_much = Rejected(stage="resources", reason="launch_limits")

    class Builder:
        def build(self, requests: Any, **_: Any) -> Any:
            yield BuildResult(id="t0", facts=facts, rejection=too_much)

    never: Any = None
    builder: Any = Builder()
    given = Tools(builder=builder, measurer=never, cancelled=lambda: False, overlapped=lambda: False)
    (event,) = perform(Build(trials=("t0",)), case(trial(0)), CASE, given)
    refused = apply(case(trial(0)), event_from_document(event_document(event))).trial("t0")
    assert (refused.outcome, refused.rejection, refused.facts, refused.artifact) == ("rejected", too_much, facts, None)
