"""Events survive JSON: what a queue or a database gives back equals what was put in."""

import json

import pytest

from search.documents import record_from_document
from search.events import (
    EVENTS,
    BaselineMeasured,
    Built,
    CaseSettled,
    DefaultRetimed,
    FinalsMeasured,
    FreshBuilt,
    Revalidated,
    TrialChecked,
    TrialMeasured,
    TrialRejected,
    event_document,
    event_from_document,
)
from search.lowering.contract import Argument, Artifact, CodeFacts
from search.measuring.protocol import BaselineSamples, Checks, FinalsSamples, InputCheck, PhaseTiming
from search.outcome import Rejected

ARTIFACT = Artifact(
    source_sha256="a" * 64,
    artifact_sha256="b" * 64,
    library_path="/store/x.so",
    library_sha256="c" * 64,
    symbol="k",
    arguments=(Argument(name="x", kind="tensor"), Argument(name="rows", kind="dim")),
)
FACTS = CodeFacts(
    source_sha256="a" * 64,
    artifact_sha256="b" * 64,
    static_instructions=7,
    static_branches=2,
    stack_bytes=64,
    widest_vector_bits=512,
    code_bytes=99,
)
CHECKS = Checks(
    passed=False,
    inputs=(
        InputCheck(
            name="normal",
            elements_checked=12,
            guard_elements_checked=136,
            input_sha256="d" * 64,
            tolerance="2 ulp",
            max_abs_error=None,
            max_rel_error=1e-7,
            max_ulp_error=1.0,
            max_tolerance=3e-7,
            failures=1,
            first_failure={"tensor": "y", "index": [0, 3], "got": 1.0, "expected": 2.0},
        ),
    ),
    guards_intact=True,
    inputs_unchanged=True,
)
PHASE = PhaseTiming(samples_seconds=(1e-5, 2e-5, 3e-5), median_seconds=2e-5, calls_per_sample=500)
REJECTED = Rejected(stage="timeout", reason="no_result", detail={"seconds": 60.0, "log": ["a"]})

SAMPLES = [
    Built(trial="t1", artifact=ARTIFACT, facts=FACTS, lower_seconds=0.04, compile_seconds=0.06),
    TrialRejected(trial="t1", rejection=REJECTED),
    TrialRejected(trial="t1", rejection=REJECTED, facts=FACTS),
    TrialRejected(trial="t1", rejection=REJECTED, checks=CHECKS, after_measured=True),
    TrialMeasured(trial="t1", timing={"device_batch": PHASE}, checks=CHECKS, overlapped=True, same_code_as="t0"),
    TrialChecked(trial="t1", checks=CHECKS, same_code_as="t0"),
    DefaultRetimed(sequence=3, timing=PHASE),
    FinalsMeasured(
        samples=FinalsSamples(
            order=("t0", "t1"),
            protocol="finals",
            samples_seconds={"t0": (1.0, 2.0), "t1": (2.0, 1.0)},
            extra_phases={"t0": {"device_batch": PHASE, "e2e_single": PHASE}},
            rejections={"t2": REJECTED},
            started_at="2025-01-01T00:00:00Z",
        ),
        phases_only=True,
    ),
    BaselineMeasured(
        samples=BaselineSamples(
            name="torch_eager",
            implementation="torch.softmax(x, -1, out=y)",
            allocation="preallocated (out=)",
            versions={"torch": "2.13"},
            timing={"device_batch": PHASE},
            checks=CHECKS,
            kernel_id="t1",
            kernel_seconds=(1.0, 2.0),
        )
    ),
    FreshBuilt(trial="t1", artifact=ARTIFACT, plan={"private_scalars": 2, "score": None}, rejection=None),
    FreshBuilt(trial="t1", artifact=None, plan=None, rejection=REJECTED),
    Revalidated(trial="t1", same_source=True, same_machine_code=False, same_plan=True, checks=CHECKS),
    CaseSettled(
        winner="t1",
        reference=None,
        tie_set=("t1", "t0"),
        reference_tie_set=(),
        noise_floor=0.02,
        regret=None,
        predicted="t0",
        untimed="nothing has a time here",
    ),
]


@pytest.mark.parametrize("event", SAMPLES, ids=lambda event: type(event).__name__)
def test_an_event_comes_back_equal_from_json(event):
    assert event_from_document(json.loads(json.dumps(event_document(event)))) == event


def test_every_event_is_tried_here():
    assert {type(event) for event in SAMPLES} == set(EVENTS.values())


def test_a_field_unknown_to_this_version_is_ignored_and_a_missing_one_takes_its_default():
    document = event_document(TrialRejected(trial="t1", rejection=REJECTED))
    document["added_later"] = 1
    del document["after_measured"]
    assert event_from_document(document) == TrialRejected(trial="t1", rejection=REJECTED)


def test_a_missing_field_without_a_default_is_an_error():
    with pytest.raises(TypeError):
        record_from_document(TrialRejected, {"trial": "t1"})


def test_an_unknown_event_is_refused():
    with pytest.raises(KeyError):
        event_from_document({"event": "exploded"})
