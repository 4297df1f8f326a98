"""From the samples of a replay to ratios, classes, margins and a verdict. Pure; nothing is rounded before it decides.

``catalogs.audit`` works all of this out again without this module.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from search.selection.replay import FROZEN_ARMS, ArmName, Replay, ReplayCase
from search.stats.compare import paired_ratios

Metric = Literal["device_batch", "e2e_batch"]
METRICS: tuple[Metric, ...] = ("device_batch", "e2e_batch")
DECIDING_METRIC: Metric = "device_batch"
MARGIN_FLOOR = 0.02
INCONCLUSIVE_ABOVE = 0.15
OPPONENTS: Mapping[ArmName, str] = {"R": "reference", "D": "default", "I": "incumbent", "T": "torch"}
DECIDING_OPPONENTS: tuple[ArmName, ...] = ("R", "D", "I")
"""Torch is reported and never decides."""

Values = Mapping[tuple[int, int, str], Mapping[str, float]]
"""(round, case index, arm) → metric → median seconds of the record."""


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """The candidate against one opponent in one metric: ratios opponent / candidate, paired within rounds."""

    ratio_class: Literal["positive", "negative", "mixed", "control"]
    ratio_median: float
    ratio_min: float
    ratio_max: float
    """``ratio_min`` and ``ratio_max`` are what was observed, not a confidence interval."""

    def document(self) -> dict[str, Any]:
        """JSON form."""
        return {
            "class": self.ratio_class,
            "ratio_median": self.ratio_median,
            "ratio_min": self.ratio_min,
            "ratio_max": self.ratio_max,
        }


@dataclass(frozen=True, kw_only=True)
class CaseResult:
    """What the replay says of one case."""

    replayed: ReplayCase
    metrics: Mapping[Metric, Mapping[str, Comparison | None]]
    """metric → opponent → comparison; None where that opponent takes no part."""
    spread: float
    """Largest |A / C − 1| on device_batch."""
    margin: float
    state: Literal["ok", "worse", "inconclusive"]
    reasons: tuple[str, ...]

    def document(self) -> dict[str, Any]:
        """JSON form, as in an acceptance."""
        case = self.replayed.case
        return {
            "index": self.replayed.index,
            "kernel": case["kernel"],
            "params": dict(case["params"]),
            "dims": dict(case["dims"]),
            "dtypes": dict(case["dtypes"]),
            "key_digest": self.replayed.key_digest,
            "metrics": {
                metric: {name: found.document() if found else None for name, found in against.items()}
                for metric, against in self.metrics.items()
            },
            "spread": self.spread,
            "margin": self.margin,
            "state": self.state,
        }


def judge(replay: Replay, values: Values) -> tuple[CaseResult, ...]:
    """The result of every case of a complete replay. KeyError when a record is missing, ValueError for no duration."""
    return tuple(_judge_case(case, replay.rounds, values) for case in replay.cases)


def reasons_of(results: Iterable[CaseResult]) -> tuple[str, ...]:
    """Why a replay is not accepted; empty when every case is ok."""
    return tuple(reason for result in results for reason in result.reasons)


def case_words(case: Mapping[str, Any]) -> str:
    """A case for people: ``softmax rows=64 cols=256``."""
    return " ".join([str(case["kernel"]), *(f"{name}={extent}" for name, extent in case["dims"].items())])


def _judge_case(case: ReplayCase, rounds: int, values: Values) -> CaseResult:
    def column(arm: ArmName, metric: str) -> list[float]:
        stand_in = arm if arm in ("A", "T") else case.arms[arm].same_code_as or arm
        return [values[(number, case.index, stand_in)][metric] for number in range(rounds)]

    metrics = {
        metric: {name: _compare(case, arm, column, metric) for arm, name in OPPONENTS.items()} for metric in METRICS
    }
    again, first = column("A", DECIDING_METRIC), column("C", DECIDING_METRIC)
    spread = max(abs(a / c - 1) for a, c in zip(again, first, strict=True))
    margin = max(MARGIN_FLOOR, spread)
    state, reasons = _state(case, metrics[DECIDING_METRIC], spread, margin)
    return CaseResult(replayed=case, metrics=metrics, spread=spread, margin=margin, state=state, reasons=tuple(reasons))


def _compare(case: ReplayCase, arm: ArmName, column: Any, metric: str) -> Comparison | None:
    if arm == "T":
        if not case.torch:
            return None
    elif arm not in case.arms:
        return None
    paired = paired_ratios(column(arm, metric), column("C", metric))
    control = arm in FROZEN_ARMS and case.arms[arm].artifact_sha256 == case.arms["C"].artifact_sha256
    return Comparison(
        ratio_class="control" if control else paired.ratio_class,
        ratio_median=paired.median,
        ratio_min=paired.low,
        ratio_max=paired.high,
    )


def _state(
    case: ReplayCase, against: Mapping[str, Comparison | None], spread: float, margin: float
) -> tuple[Literal["ok", "worse", "inconclusive"], list[str]]:
    if spread > INCONCLUSIVE_ABOVE:
        what = f"the same code timed twice differs by {spread:.1%}, above {INCONCLUSIVE_ABOVE:.0%}"
        return "inconclusive", [f"{case_words(case.case)}: inconclusive, {what}"]
    worse = []
    for arm in DECIDING_OPPONENTS:
        found = against[OPPONENTS[arm]]
        if found is not None and found.ratio_median < 1 - margin:
            words = f"the {OPPONENTS[arm]} takes {found.ratio_median:.3f} of the candidate's time"
            worse.append(f"{case_words(case.case)}: worse, {words} (margin {margin:.1%})")
    return ("worse", worse) if worse else ("ok", [])


def losses(results: Sequence[CaseResult]) -> list[str]:
    """Every comparison that the candidate lost in all rounds, torch's included: reported, whatever the verdict."""
    found = []
    for result in results:
        for metric, against in result.metrics.items():
            for opponent, comparison in against.items():
                if comparison is not None and comparison.ratio_class == "negative":
                    words = f"{comparison.ratio_median:.3f} [{comparison.ratio_min:.3f}, {comparison.ratio_max:.3f}]"
                    found.append(f"{case_words(result.replayed.case)}: {opponent} is faster on {metric}, {words}")
    return found
