"""The parts of ``gpu_check``: what is measured of a case, each by itself."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from bench.gpu_cases import Checked, Incomplete, leader
from search.measuring.benches import CacheContext
from search.measuring.protocol import BaselineSamples, PhaseTiming
from search.measuring.run import Measurer
from search.outcome import Rejected

FINALISTS = 3
Measure = Callable[[Checked, Measurer, Callable[[], bool]], None]
"""Measures a part of a case; asks now and then whether it must stop. Raises Incomplete, and whatever goes wrong."""


def candidates(one: Checked, warm: Measurer, stop: Callable[[], bool]) -> None:
    """Check and time every candidate."""
    trials = [trial for trial, result in one.built.items() if result.artifact is not None]
    for result in warm.search(one.case, [one.item(trial) for trial in trials], cancelled=stop):
        one.results[result.id] = result
    unbuilt = [trial for trial, planned in one.admitted() if trial not in one.built]
    if unbuilt:
        raise Incomplete(f"{len(unbuilt)} candidates were not built, nor rejected: {unbuilt[0]}…")
    if not one.ranked() or one.default is None:
        raise Incomplete("no candidate was measured" if not one.ranked() else "the default was not measured")


def finals(one: Checked, warm: Measurer, stop: Callable[[], bool]) -> None:
    """The best, the best reload ones and the default, interleaved."""
    ranked, reloads = one.ranked(), one.ranked(reload_only=True)
    if not ranked:
        raise Incomplete("no candidate was measured")
    wanted = dict.fromkeys([*ranked[:FINALISTS], *reloads[:FINALISTS], *filter(None, [one.default])])
    items = [one.item(trial) for trial in wanted]
    one.finals = warm.finals(one.case, items, protocol="acceptance", cancelled=stop)
    if one.finals.rejections:
        raise Incomplete(f"failed in finals: {sorted(one.finals.rejections)}")
    if leader(one, lambda trial: one.candidate(trial).candidate.input == "reload") is None:
        raise Incomplete("no reload candidate is among the finalists")


def copy(one: Checked, warm: Measurer, stop: Callable[[], bool]) -> None:
    """What the kernels' bandwidth is compared with."""
    one.copy_seconds = _copied(warm.copy(one.case, one.moved_bytes // 2, cancelled=stop))


def baseline(name: str) -> Measure:
    """Torch beside the best."""

    def measure(one: Checked, warm: Measurer, stop: Callable[[], bool]) -> None:
        one.baselines[name] = _beside(name, one, warm, stop)

    return measure


def cold_best(one: Checked, cold: Measurer, stop: Callable[[], bool]) -> None:
    """The best once more, with buffers that rotate through more than the cache."""
    item = one.item(one.best)
    again = cold.replay(one.case, item, phases=("device_batch",), protocol="search", cancelled=stop)
    if again.rejection is not None:
        raise Incomplete(f"rejected: {again.rejection.document()}")
    one.cold["best_seconds"] = again.timing["device_batch"].median_seconds


def cold_copy(one: Checked, cold: Measurer, stop: Callable[[], bool]) -> None:
    """The copy with such buffers."""
    one.cold["copy_seconds"] = _copied(cold.copy(one.case, one.moved_bytes // 2, cancelled=stop))


def cold_eager(one: Checked, cold: Measurer, stop: Callable[[], bool]) -> None:
    """Torch with such buffers, beside the best."""
    one.cold_baselines["torch_eager"] = _beside("torch_eager", one, cold, stop)


def _beside(name: str, one: Checked, measurer: Measurer, stop: Callable[[], bool]) -> BaselineSamples:
    samples = measurer.baseline(one.case, name, against=one.item(one.best), protocol="search", cancelled=stop)
    if samples.error is not None:
        raise Incomplete(samples.error)
    return samples


def _copied(timing: PhaseTiming | Rejected) -> float:
    if isinstance(timing, Rejected):
        raise Incomplete(f"rejected: {timing.document()}")
    return timing.median_seconds


ROUNDS: tuple[tuple[CacheContext, Mapping[str, Measure]], ...] = (
    ("warm", {"candidates": candidates, "finals": finals, "torch_eager": baseline("torch_eager"), "copy": copy}),
    ("cold", {"cold_best": cold_best, "cold_copy": cold_copy, "cold_torch_eager": cold_eager}),
    ("warm", {"torch_compile": baseline("torch_compile")}),
)
"""Each with a Measurer of its own, for all cases; those that matter most come first."""
PARTS = tuple(name for _, measures in ROUNDS for name in measures)
