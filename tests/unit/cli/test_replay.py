"""Reproducing a trial: what must equal the record, what is only shown, and what speaks against it.

Planning is real; building and measuring answer with what the test says, because their own tests cover them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from search.device.spec import DeviceSpec
from search.lowering.contract import Artifact, BuildRequest, BuildResult
from search.measuring.protocol import Checks, FinalsSamples, MeasureItem, MeasureResult
from search.outcome import Rejected
from search.planning.plan import plan_candidate
from search.program.case import Case
from search.program.resolve import resolve_case
from search.space.candidate import Candidate, CpuMapping
from tuner_service.cli.replay import DEFAULT, TRIAL, Replay, device_differences, replay

CASE = resolve_case({"kernel": "softmax", "dims": {"rows": 4, "cols": 33}})
CHECKS = Checks(passed=True, inputs=(), guards_intact=True, inputs_unchanged=True)


def candidate(width: int) -> Candidate:
    return Candidate(
        width=width,
        input="reload",
        fusion="separate",
        materialize="private",
        vector=1,
        unroll=1,
        partials=1,
        mapping=CpuMapping(local_lanes=width),
    )


def record(width: int = 8, trial_id: str = "trl_1", **changes: Any) -> dict[str, Any]:
    chosen = candidate(width)
    plan = plan_candidate(CASE, chosen).plan
    assert plan is not None
    samples = {"samples_seconds": [2e-6] * 5, "median_seconds": 2e-6, "calls_per_sample": 10}
    return {
        "id": trial_id,
        "candidate": chosen.document(),
        "in_space": True,
        "outcome": "measured",
        "stage": None,
        "reason": None,
        "plan": plan.document(),
        "code": {"source_sha256": f"source{width}", "artifact_sha256": f"code{width}"},
        "timing": {"device_batch": samples},
        "checks": {"passed": True},
        **changes,
    }


class Builds:
    """Builds everything as recorded, or rejects it; remembers that it was asked to build afresh."""

    def __init__(self, *, code: str = "code", rejection: Rejected | None = None) -> None:
        self.code, self.rejection = code, rejection
        self.fresh: list[bool] = []

    def build(
        self, requests: Sequence[BuildRequest], *, timeout_seconds: float, cancelled: Any, fresh: bool
    ) -> Iterator[BuildResult]:
        self.fresh.append(fresh)
        for request in requests:
            width = request.candidate["width"]
            artifact = Artifact(
                source_sha256=f"source{width}",
                artifact_sha256=f"{self.code}{width}",
                library_path="/nowhere.so",
                library_sha256="0",
                symbol="kernel",
                arguments=(),
            )
            rejected = self.rejection if request.id == TRIAL else None
            yield BuildResult(id=request.id, artifact=None if rejected else artifact, rejection=rejected)


class Measures:
    """Checks and times as told."""

    def __init__(self, *, rejection: Rejected | None = None) -> None:
        self.rejection = rejection

    def search(self, case: Case, items: Sequence[MeasureItem], *, cancelled: Any) -> Iterator[MeasureResult]:
        for item in items:
            yield MeasureResult(id=item.id, checks=None if self.rejection else CHECKS, rejection=self.rejection)

    def finals(
        self, case: Case, items: Sequence[MeasureItem], *, all_phases: Sequence[str], cancelled: Any
    ) -> FinalsSamples:
        seconds = {TRIAL: (1e-6, 1e-6, 2e-6), DEFAULT: (4e-6, 2e-6, 2e-6)}
        return FinalsSamples(
            order=tuple(item.id for item in items),
            protocol="finals",
            samples_seconds={item.id: seconds[item.id] for item in items},
            extra_phases={},
        )


def again(trial: dict[str, Any], **given: Any) -> Replay:
    default = given.pop("default", record(32, "trl_0"))
    return replay(trial, default, CASE, budget_scalars=64, **{"builder": Builds(), "measurer": Measures(), **given})


def facts(result: Replay) -> dict[str, tuple[Any, Any]]:
    return {c.name: (c.recorded, c.now) for c in result.comparisons}


def test_a_trial_that_comes_out_the_same_is_reproduced() -> None:
    builder = Builds()
    result = again(record(), builder=builder)
    assert result.reproduced
    assert builder.fresh == [True]
    found = facts(result)
    assert found["source_sha256"] == ("source8", "source8")
    assert found["artifact_sha256"] == ("code8", "code8")
    assert found["outcome"] == ("passed", "passed")
    assert found["private_scalars"] == (5, 5)  # ceil(33 / 8): one private tile of softmax
    assert found["median"] == ("2 µs", "1 µs")
    assert found["now / recorded"] == (None, "0.50")
    assert found["trial / default"] == ("1.00", "0.50 [0.25, 1.00]")


@pytest.mark.parametrize(
    ("given", "differing"),
    [
        ({"builder": Builds(code="other")}, {"artifact_sha256"}),
        ({"builder": Builds(rejection=Rejected(stage="compile", reason="gcc"))}, {"outcome"}),
        ({"measurer": Measures(rejection=Rejected(stage="correctness", reason="wrong_values"))}, {"outcome"}),
    ],
)
def test_a_difference_is_named(given: dict[str, Any], differing: set[str]) -> None:
    result = again(record(), **given)
    assert not result.reproduced
    assert {c.name for c in result.comparisons if not c.holds} == differing


def test_an_edited_plan_is_not_reproduced() -> None:
    trial = record()
    trial["plan"]["private_scalars"] = 4
    assert {c.name for c in again(trial).comparisons if not c.holds} == {"private_scalars"}


def test_a_budget_rejection_is_reproduced_by_planning_alone() -> None:
    trial = record(1, outcome="rejected", stage="constraints", reason="private_budget", code=None, timing=None)
    builder = Builds()
    result = replay(trial, None, CASE, budget_scalars=32, builder=builder, measurer=Measures())
    assert result.reproduced
    assert builder.fresh == []
    unlimited = replay(trial, None, CASE, budget_scalars=None, builder=Builds(), measurer=Measures())
    assert not unlimited.reproduced


@pytest.mark.parametrize("stage", ["runtime", "timeout", "correctness"])
def test_a_rejected_trial_is_reproduced_when_rejected_again_for_the_same_reason(stage: Any) -> None:
    trial = record(outcome="rejected", stage=stage, reason="same", timing=None)
    assert again(trial, measurer=Measures(rejection=Rejected(stage=stage, reason="same"))).reproduced
    assert not again(trial, measurer=Measures(rejection=Rejected(stage=stage, reason="other"))).reproduced
    assert not again(trial).reproduced


def test_the_default_itself_is_timed_alone() -> None:
    trial = record(32, "trl_0")
    result = again(trial, default=trial)
    assert result.reproduced
    assert "trial / default" not in facts(result)


def test_a_device_differs_by_identity_or_toolchain_and_says_where() -> None:
    recorded = device()
    assert device_differences(recorded, device()) == ()
    assert device_differences(recorded, None) == ("no cpu device is attached here",)
    lines = device_differences(recorded, device(identity={"model": "B"}, toolchain={"gcc": "12", "tilelang": "0.2"}))
    assert lines == ("device.model: recorded A, here B", "toolchain.tilelang: recorded 0.1, here 0.2")
    assert device_differences(recorded, device(available=False, reason="no gcc")) == ("cpu:1 is not available: no gcc",)


def device(**changes: Any) -> DeviceSpec:
    fields: dict[str, Any] = {
        "id": "cpu:1",
        "kind": "cpu",
        "target": "cpu",
        "name": "A",
        "identity": {"model": "A"},
        "identity_digest": "1",
        "toolchain": {"gcc": "12", "tilelang": "0.1"},
        "toolchain_fingerprint": "2",
        "available": True,
    }
    return DeviceSpec(**{**fields, **changes})
