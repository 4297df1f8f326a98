"""One case tuned for real: TileLang, gcc, measuring children, finals, torch, fresh builds."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

from search.errors import Cancelled
from search.events import Event, FinalsMeasured, TrialMeasured, event_document, event_from_document
from search.ledger import CaseState, apply
from search.measuring.attach import attached_devices
from search.measuring.protocol import PROTOCOLS
from search.pipeline import open_case, tune
from search.program.resolve import resolve_case
from search.selection.noise import MINIMUM_RETIMES, noise_floor
from search.space.resolve import resolve_space
from search.steps import missing

pytestmark = pytest.mark.toolchain

CASE = resolve_case({"kernel": "softmax", "dims": {"rows": 6, "cols": 130}})
SPACE = {
    "width": [8, 16],
    "input": ["reload", "cache"],
    "materialize": ["private"],
    "simd_scope": ["none", "main"],
    "nontemporal": [False],
}


@pytest.fixture(scope="module")
def device(tmp_path_factory):
    (found,) = [d for d in attached_devices(tmp_path_factory.mktemp("attach")) if d.target == "cpu"]
    assert found.available, found.reason
    return found


@pytest.fixture(scope="module")
def tuned(device, tmp_path_factory) -> tuple[CaseState, list[Event]]:
    events: list[Event] = []
    state = tune(
        CASE,
        device=device,
        work_dir=tmp_path_factory.mktemp("tune"),
        space=SPACE,
        budget_scalars=40,
        on_event=lambda _, event: events.append(event),
    )
    return state, events


def test_every_candidate_ends_measured_or_rejected_with_numbers(tuned):
    state, _ = tuned
    in_space = [t for t in state.trials if t.in_space]
    assert len(in_space) == 8
    assert {t.outcome for t in in_space} == {"measured"}, [t.rejection for t in in_space if t.rejection]
    for trial in in_space:
        # stripes of 130 columns at W: 17 or 9; one tile, two when the input is cached
        assert trial.private_scalars == (17 if trial.candidate.width == 8 else 9) * (
            2 if trial.candidate.input == "cache" else 1
        )
        assert trial.checks.passed
        assert sum(check.elements_checked for check in trial.checks.inputs) >= 3 * 6 * 130
        assert len(trial.timing["device_batch"].samples_seconds) == 5
        assert trial.facts.artifact_sha256 == trial.artifact.artifact_sha256


def test_identical_code_is_timed_once(tuned):
    state, events = tuned
    own = [t for t in state.trials if t.outcome == "measured" and t.same_code_as is None]
    codes = {t.artifact.artifact_sha256 for t in state.trials if t.outcome == "measured"}
    assert len(own) == len(codes)
    for trial in state.trials:
        if trial.same_code_as is not None:
            root = state.trial(trial.same_code_as)
            assert root.artifact.artifact_sha256 == trial.artifact.artifact_sha256
            assert root.timing == trial.timing
            assert trial.checks.passed
    assert sum(isinstance(e, TrialMeasured) and e.same_code_as is None for e in events) == len(codes)


def test_the_result_names_winner_reference_noise_and_regret(tuned):
    state, _ = tuned
    result = state.settled
    assert result.error is None
    assert result.winner == result.tie_set[0]
    assert state.trial(result.reference).candidate.input == "reload"
    assert len(state.retimes) >= MINIMUM_RETIMES
    assert result.noise_floor == noise_floor([r.timing.median_seconds for r in state.retimes])
    medians = [t.timing["device_batch"].median_seconds for t in state.trials if t.outcome == "measured" and t.in_space]
    predicted = state.trial(result.predicted)
    assert result.regret == predicted.timing["device_batch"].median_seconds / min(medians) - 1
    assert predicted.score == min(t.score for t in state.trials if t.in_space)


def test_finals_are_interleaved_and_the_chosen_ones_have_all_four_phases(tuned):
    state, _ = tuned
    samples = state.finals.samples
    assert samples.rejections == {}
    rounds = {len(of) for of in samples.samples_seconds.values()}
    assert (rounds, samples.sittings) == ({PROTOCOLS["finals"].samples}, PROTOCOLS["finals"].sittings)
    for trial in {state.settled.winner, state.settled.reference, state.default.id}:
        assert set(state.trial(trial).timing) == {"device_batch", "device_single", "e2e_batch", "e2e_single"}


def test_winner_and_reference_come_out_the_same_in_a_fresh_process(tuned):
    state, _ = tuned
    for trial in {state.settled.winner, state.settled.reference}:
        fresh, check = state.fresh[trial], state.revalidated[trial]
        assert (check.same_source, check.same_machine_code, check.same_plan) == (True, True, True)
        assert check.passed
        assert fresh.artifact.library_path != state.trial(trial).artifact.library_path


def test_the_baseline_is_paired_with_the_winner_and_checked(tuned):
    state, _ = tuned
    samples = state.baselines["torch_eager"].samples
    assert samples.error is None
    assert samples.kernel_id == state.settled.winner
    assert len(samples.kernel_seconds) == len(samples.timing["device_batch"].samples_seconds) > 0
    assert samples.checks.passed


def test_the_events_alone_through_json_rebuild_the_same_ledger(tuned):
    state, events = tuned
    again = open_case(CASE, space=resolve_space(SPACE, CASE, "cpu"), budget_scalars=40)
    for event in events:
        again = apply(again, event_from_document(json.loads(json.dumps(event_document(event)))))
    assert again == state
    assert missing(again) == ()


def test_a_ledger_that_lost_its_last_events_asks_only_for_those(tuned):
    _, events = tuned
    cut = next(n for n, event in enumerate(events) if isinstance(event, FinalsMeasured))
    again = open_case(CASE, space=resolve_space(SPACE, CASE, "cpu"), budget_scalars=40)
    for event in events[:cut]:
        again = apply(again, event)
    assert [type(step).__name__ for step in missing(again)] == ["Finals"]


def test_a_space_with_nothing_that_fits_settles_without_a_winner(device, tmp_path):
    state = tune(
        CASE,
        device=device,
        work_dir=tmp_path,
        space={**SPACE, "input": ["cache"], "width": [8], "simd_scope": ["none"]},
        budget_scalars=1,
        baselines=(),
    )
    assert [(t.in_space, t.outcome) for t in state.trials] == [(True, "rejected"), (False, "measured")]
    assert state.settled.winner is None
    assert state.settled.error is None


def children() -> set[int]:
    """Processes that this one started."""
    tasks = Path("/proc/self/task").iterdir()
    return {int(pid) for task in tasks for pid in (task / "children").read_text().split()}


def test_cancelling_ends_every_child(device, tmp_path):
    before, heard = children(), []
    with pytest.raises(Cancelled):
        tune(
            CASE,
            device=device,
            work_dir=tmp_path,
            space=SPACE,
            baselines=(),
            on_event=lambda _, event: heard.append(event),
            cancelled=lambda: len(heard) >= 3,
        )
    assert len(heard) >= 3
    deadline = time.monotonic() + 10
    while children() - before and time.monotonic() < deadline:
        time.sleep(0.05)
    assert children() <= before
