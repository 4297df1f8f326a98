"""Do a recorded trial again on this machine, in new processes, and compare. Takes the record as the service sent it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from search.device.spec import DeviceSpec
from search.lowering.contract import Artifact, BuildRequest, BuildResult
from search.measuring.checker import Checker
from search.measuring.protocol import FinalsSamples, MeasureItem, MeasureResult
from search.outcome import Rejected
from search.planning.plan import plan_candidate
from search.program.case import Case
from search.space.candidate import Candidate
from search.stats.compare import paired_ratios
from search.stats.summary import median
from tuner_service.cli.words import seconds_words

BUILT_STAGES = ("resources", "runtime", "timeout", "correctness", "lost_worker")
BUILD_TIMEOUT_SECONDS = 300.0
TRIAL, DEFAULT = "trial", "default"


class Builder(Protocol):
    """What builds: ``search.lowering.builder.Builder``."""

    def build(
        self, requests: Sequence[BuildRequest], *, timeout_seconds: float, cancelled: Any, fresh: bool
    ) -> Iterator[BuildResult]: ...


class Measurer(Protocol):
    """What checks and times: ``search.measuring.run.Measurer``."""

    def search(self, case: Case, items: Sequence[MeasureItem], *, cancelled: Any) -> Iterator[MeasureResult]: ...

    def finals(
        self, case: Case, items: Sequence[MeasureItem], *, all_phases: Sequence[str], cancelled: Any
    ) -> FinalsSamples: ...


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """One fact of the record beside the same fact now. ``must_equal`` is False for times, which are only shown."""

    name: str
    recorded: Any
    now: Any
    must_equal: bool = True

    @property
    def holds(self) -> bool:
        """Whether nothing speaks against the record."""
        return not self.must_equal or self.recorded == self.now

    def document(self) -> dict[str, Any]:
        """JSON form."""
        return {**vars(self), "holds": self.holds}


@dataclass(frozen=True, kw_only=True)
class Replay:
    """What came of doing a trial again."""

    comparisons: tuple[Comparison, ...]
    notes: tuple[str, ...] = ()

    @property
    def reproduced(self) -> bool:
        """Every fact that must be equal is."""
        return all(comparison.holds for comparison in self.comparisons)

    def document(self) -> dict[str, Any]:
        """JSON form."""
        return {
            "reproduced": self.reproduced,
            "comparisons": [comparison.document() for comparison in self.comparisons],
            "notes": list(self.notes),
        }


def device_differences(recorded: DeviceSpec, here: DeviceSpec | None) -> tuple[str, ...]:
    """How this machine differs from the one of the record, in words; empty when a replay says something."""
    if here is None:
        return (f"no {recorded.kind} device is attached here",)
    if not here.available:
        return (f"{here.id} is not available: {here.reason}",)
    lines = []
    for what, there, ours in (
        ("device", recorded.identity, here.identity),
        ("toolchain", recorded.toolchain, here.toolchain),
    ):
        for name in sorted({*there, *ours}):
            if there.get(name) != ours.get(name):
                lines.append(f"{what}.{name}: recorded {_short(there.get(name))}, here {_short(ours.get(name))}")
    return tuple(lines)


def replay(
    trial: Mapping[str, Any],
    default: Mapping[str, Any] | None,
    case: Case,
    *,
    budget_scalars: int | None,
    builder: Builder,
    measurer: Measurer | None,
    checker: Checker | None = None,
) -> Replay:
    """Plan, build afresh, check and time a trial again beside the default; compare with its record.

    Without a ``measurer`` nothing is timed and the ``checker`` checks: the record is of a compile-only device.

    ``trial`` and ``default`` are trial documents with outcome measured, checked or rejected. The latter is reproduced
    when it is rejected again at the same stage for the same reason.
    """
    candidate = Candidate.from_document(trial["candidate"])
    planned = plan_candidate(case, candidate, budget_scalars=budget_scalars if trial["in_space"] else None)
    facts = [
        Comparison(name=name, recorded=trial["plan"][name], now=None if planned.plan is None else now)
        for name, now in ([] if planned.plan is None else planned.plan.document().items())
        if trial.get("plan") and name in trial["plan"]
    ]
    if planned.rejection is not None:
        return Replay(comparisons=(*facts, *_outcomes(trial, planned.rejection)))

    built = _build(trial, default if measurer is not None else None, case, builder)
    mine = built[TRIAL]
    if mine.rejection is not None or mine.artifact is None:
        return Replay(comparisons=(*facts, *_outcomes(trial, mine.rejection)))
    facts += _code(trial, mine.artifact)

    item = MeasureItem(id=TRIAL, artifact=mine.artifact)
    if measurer is None:
        assert checker is not None, "one of them there is"
        checked = _only(checker.check(case, [item], cancelled=_never))
    else:
        checked = _only(measurer.search(case, [item], cancelled=_never))
    facts += _outcomes(trial, checked.rejection)
    if checked.rejection is not None or checked.checks is None:
        return Replay(comparisons=tuple(facts))
    facts.append(Comparison(name="checks passed", recorded=_passed(trial), now=checked.checks.passed))
    if measurer is None:
        return Replay(comparisons=tuple(facts), notes=("nothing was timed: the device is compile-only",))
    timed, notes = _times(trial, default, case, mine.artifact, built, measurer)
    return Replay(comparisons=(*facts, *timed), notes=notes)


def _build(
    trial: Mapping[str, Any], default: Mapping[str, Any] | None, case: Case, builder: Builder
) -> dict[str, BuildResult]:
    document = case.document()
    requests = [BuildRequest(id=TRIAL, case=document, candidate=trial["candidate"])]
    if default is not None and default["id"] != trial["id"]:
        requests.append(BuildRequest(id=DEFAULT, case=document, candidate=default["candidate"]))
    results = builder.build(requests, timeout_seconds=BUILD_TIMEOUT_SECONDS, cancelled=_never, fresh=True)
    return {result.id: result for result in results}


def _code(trial: Mapping[str, Any], artifact: Artifact) -> list[Comparison]:
    code = trial.get("code") or {}
    return [
        Comparison(name=name, recorded=code.get(name), now=getattr(artifact, name))
        for name in ("source_sha256", "artifact_sha256")
    ]


def _outcomes(trial: Mapping[str, Any], rejection: Rejected | None) -> list[Comparison]:
    recorded = f"rejected: {trial['stage']}/{trial['reason']}" if trial["outcome"] == "rejected" else "passed"
    now = "passed" if rejection is None else f"rejected: {rejection.stage}/{rejection.reason}"
    return [Comparison(name="outcome", recorded=recorded, now=now)]


def _passed(trial: Mapping[str, Any]) -> bool:
    return bool((trial.get("checks") or {}).get("passed"))


def _times(
    trial: Mapping[str, Any],
    default: Mapping[str, Any] | None,
    case: Case,
    artifact: Artifact,
    built: Mapping[str, BuildResult],
    measurer: Measurer,
) -> tuple[list[Comparison], tuple[str, ...]]:
    """The trial timed interleaved with the default, beside what was recorded. Times are shown, never required equal."""
    items = [MeasureItem(id=TRIAL, artifact=artifact)]
    other = built.get(DEFAULT)
    beside = other.artifact if other is not None else None
    if beside is not None and beside.artifact_sha256 != artifact.artifact_sha256:
        items.append(MeasureItem(id=DEFAULT, artifact=beside))
    samples = measurer.finals(case, items, all_phases=(), cancelled=_never).samples_seconds
    if TRIAL not in samples:
        return [Comparison(name="timed", recorded=True, now=False)], ()
    now = median(samples[TRIAL])
    recorded = _recorded_seconds(trial)
    out = [_shown("median", seconds_words(recorded), seconds_words(now))]
    if recorded:
        out.append(_shown("now / recorded", None, f"{now / recorded:.2f}"))
    if DEFAULT not in samples:
        return out, ("the default has this trial's machine code" if beside is not None or default is None or
                     default["id"] == trial["id"] else "the default could not be built here",)  # fmt: skip
    ratio = paired_ratios(samples[TRIAL], samples[DEFAULT])
    there = _recorded_seconds(default)
    out.append(_shown("default's median", seconds_words(there), seconds_words(median(samples[DEFAULT]))))
    out.append(
        _shown(
            "trial / default",
            f"{recorded / there:.2f}" if recorded and there else None,
            f"{ratio.median:.2f} [{ratio.low:.2f}, {ratio.high:.2f}]",
        )
    )
    return out, ("recorded times come from the search, one candidate after the other; those of now are interleaved",)


def _shown(name: str, recorded: Any, now: Any) -> Comparison:
    return Comparison(name=name, recorded=recorded, now=now, must_equal=False)


def _recorded_seconds(trial: Mapping[str, Any] | None) -> float | None:
    timing = ((trial or {}).get("timing") or {}).get("device_batch")
    return None if not timing else float(timing["median_seconds"])


def _only(results: Iterator[MeasureResult]) -> MeasureResult:
    (result,) = results
    return result


def _never() -> bool:
    return False


def _short(value: Any) -> str:
    text = str(value)
    return text if len(text) <= 60 else text[:60] + "…"
