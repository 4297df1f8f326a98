"""A device's untuned default: what one would run without a search. Measured in every case."""

from __future__ import annotations

from search.outcome import Rejected
from search.planning.budget import DEFAULT_BUDGET_SCALARS, check_budget
from search.planning.build import ScheduleBuilder
from search.program.case import Case
from search.space.candidate import Candidate, CpuMapping, CudaMapping, InputWord, MaterializeWord, TargetKind

CPU_WIDTH = 32
CUDA_WIDTH = 256


def default_candidate(case: Case, target: TargetKind, *, builder: ScheduleBuilder | None = None) -> Candidate:
    """The default of a target for a case.

    CPU: W=32, reload, tiles staged in outputs where legal, else recomputed; where a shared buffer forbids both, the
    first that is legal of private tiles, then the same with cached inputs. CUDA: W=256, private tiles, the input
    cached if that fits the default budget, else reloaded. Knobs that are inert for the program have the value they
    collapse to. ``builder`` is the case's, to share its analysis.
    """
    builder = builder or ScheduleBuilder(case)
    if target == "cpu":
        return _cpu(builder)
    cached = _cuda("cache", "private")
    if not builder.has_tiles or _legal(builder, _cuda("reload", "private")):
        return cached if builder.cacheable and _fits(builder, cached) else _cuda("reload", "private")
    return _cuda("reload", "recompute")


def _cpu(builder: ScheduleBuilder) -> Candidate:
    places: tuple[MaterializeWord, ...] = ("output", "recompute", "private") if builder.has_tiles else ("private",)
    words: tuple[InputWord, ...] = ("reload", "cache") if builder.cacheable else ("reload",)
    candidates = [_cpu_candidate(word, place) for word in words for place in places]
    usual = _cpu_candidate("reload", "recompute" if builder.has_tiles else "private")
    return next((candidate for candidate in candidates if _legal(builder, candidate)), usual)


def _cpu_candidate(word: InputWord, materialize: MaterializeWord) -> Candidate:
    return Candidate(
        width=CPU_WIDTH,
        input=word,
        fusion="separate",
        materialize=materialize,
        vector=1,
        unroll=1,
        partials=1,
        mapping=CpuMapping(local_lanes=CPU_WIDTH),
    )


def _cuda(word: InputWord, materialize: MaterializeWord) -> Candidate:
    return Candidate(
        width=CUDA_WIDTH,
        input=word,
        fusion="separate",
        materialize=materialize,
        vector=1,
        unroll=1,
        partials=1,
        mapping=CudaMapping(),
    )


def _legal(builder: ScheduleBuilder, candidate: Candidate) -> bool:
    return not isinstance(builder.build(candidate), Rejected)


def _fits(builder: ScheduleBuilder, candidate: Candidate) -> bool:
    built = builder.build(candidate)
    return not isinstance(built, Rejected) and check_budget(built, DEFAULT_BUDGET_SCALARS) is None
