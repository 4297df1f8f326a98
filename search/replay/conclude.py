"""What a replay says once nothing is missing: results, what differs from what was frozen, verdict, statements."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from search.measuring.protocol import PHASES
from search.replay.records import ReplayState
from search.selection.acceptance import METRICS, CaseResult, Values, case_words, judge, losses, reasons_of
from search.selection.replay import Replay


@dataclass(frozen=True, kw_only=True)
class Conclusion:
    """The end of an acceptance."""

    replay: Replay
    """As it was carried out: without the torch arms that failed."""
    results: tuple[CaseResult, ...]
    """Empty when the replay could not go on."""
    deltas: tuple[Mapping[str, Any], ...]
    """``{"round", "case", "arm", "field", "frozen", "rebuilt"}``: what a rebuild gave instead of what was frozen."""
    reasons: tuple[str, ...]
    statements: tuple[str, ...]

    @property
    def verdict(self) -> str:
        """``accepted`` only when there is no reason against it."""
        return "rejected" if self.reasons else "accepted"

    def document(self) -> dict[str, Any]:
        """JSON form: ``{"cases", "verdict", "reasons", "deltas", "statements"}``."""
        return {
            "cases": [result.document() for result in self.results],
            "verdict": self.verdict,
            "reasons": list(self.reasons),
            "deltas": [dict(delta) for delta in self.deltas],
            "statements": list(self.statements),
        }


def conclude(
    state: ReplayState,
    *,
    toolchain: str,
    frozen_toolchain: str,
    device_name: str,
    uncovered: Sequence[str] = (),
) -> Conclusion:
    """The conclusion of a replay that lacks nothing or cannot go on.

    ``toolchain`` is the device's fingerprint now. On another one than the catalog was frozen with (a canary replay)
    the ratios and what differs are reported, but nothing is accepted: promotion is per exact key, the toolchain
    included. ``uncovered``: keys of the incumbent that the candidate does not have, in words.
    """
    without_torch = state.torch_failures()
    replay = replace(
        state.replay,
        cases=tuple(replace(c, torch=c.torch and c.index not in without_torch) for c in state.replay.cases),
    )
    failures, deltas = state.failures, _deltas(state)
    results = () if failures else judge(replay, _values(state))
    reasons = [*failures, *reasons_of(results)]
    if toolchain != frozen_toolchain:
        reasons.append(
            f"canary: the toolchain is {toolchain} now and the catalog was frozen with {frozen_toolchain}; what is "
            "accepted is an exact key, so tune again with this toolchain and freeze that"
        )
    for delta in _first_of_each_arm(deltas):
        words = case_words(replay.cases[delta["case"]].case)
        reasons.append(f"{words}: the {delta['field']} of arm {delta['arm']}, built anew, is not the frozen one")
    return Conclusion(
        replay=replay,
        results=results,
        deltas=tuple(deltas),
        reasons=tuple(reasons),
        statements=_statements(state, replay, results, device_name, toolchain, uncovered, without_torch),
    )


def _values(state: ReplayState) -> Values:
    return {
        (one.round, one.case, one.arm): {metric: one.timing[metric].median_seconds for metric in METRICS}
        for records in state.timed.values()
        for one in records
        if one.failure is None
    }


def _deltas(state: ReplayState) -> list[dict[str, Any]]:
    found = []
    for number, built in sorted(state.built.items()):
        for build in built.builds:
            frozen = state.case(build.case).arms.get(build.arm)
            if frozen is None:
                continue  # a stand-in that takes no part
            pairs: dict[str, tuple[Any, Any]] = {"plan": (frozen.plan, build.plan)}
            if build.artifact is not None:
                pairs["source"] = (frozen.source_sha256, build.artifact.source_sha256)
                pairs["machine code"] = (frozen.artifact_sha256, build.artifact.artifact_sha256)
            for name, (before, after) in pairs.items():
                if before != after:
                    about = {"round": number, "case": build.case, "arm": build.arm, "field": name}
                    found.append({**about, "frozen": before, "rebuilt": after})
    return found


def _first_of_each_arm(deltas: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    seen: dict[tuple[Any, ...], Mapping[str, Any]] = {}
    for delta in deltas:
        seen.setdefault((delta["case"], delta["arm"], delta["field"]), delta)
    return list(seen.values())


def _statements(
    state: ReplayState,
    replay: Replay,
    results: Sequence[CaseResult],
    device_name: str,
    toolchain: str,
    uncovered: Sequence[str],
    without_torch: Mapping[int, str],
) -> tuple[str, ...]:
    shapes = "; ".join(case_words(case.case) for case in replay.cases)
    torch = {
        f"{one.torch['implementation']}: {one.torch['allocation']}"
        for records in state.timed.values()
        for one in records
        if one.torch is not None and one.case not in without_torch
    }
    lost = losses(results)
    return (
        f"Scope: {device_name}, toolchain {toolchain}, one thread, warm caches, and exactly these shapes: {shapes}. "
        "Nothing is said about any other.",
        "Allocation: kernels write into buffers that exist before the timing and read resident inputs; torch "
        + ("takes no part." if not torch else "runs " + "; ".join(sorted(torch)) + "."),
        *(f"Phase {metric}: {PHASES[metric].rstrip('.')}." for metric in METRICS),
        "Torch has no native entry to loop over: its device_batch is host time and includes dispatch.",
        "Losses (the opponent was faster in every round): " + ("; ".join(lost) if lost else "none") + ".",
        *(f"Torch was not timed for {case_words(replay.cases[i].case)}: {why}." for i, why in without_torch.items()),
        *_stand_ins(replay),
        *(f"The incumbent has {words}, which the candidate lacks: it would miss." for words in uncovered),
        "ratio_min and ratio_max are the smallest and largest ratio seen in the rounds, not a confidence interval.",
        "Ratios are paired within rounds and their median is shown: displayed medians need not divide to it.",
        "A control has the candidate's machine code; controls are reported and never subtracted.",
        "Promotion is per exact key: program, dims, dtypes, device, toolchain, threads and cache context.",
    )


def _stand_ins(replay: Replay) -> list[str]:
    found = []
    for case in replay.cases:
        if case.stand_in:
            what = "was rebuilt with this one and takes part" if "I" in case.arms else "cannot be rebuilt with this one"
            found.append(f"The incumbent of {case_words(case.case)} is of another toolchain; it {what}.")
    return found
