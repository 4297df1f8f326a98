"""What CUDA candidates compute, simulated thread by thread on this CPU and compared with the float64 oracle."""

from __future__ import annotations

import random
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from search.measuring.protocol import MeasureResult
from search.measuring.simt.protocol import SimulationItem
from search.measuring.simt.run import Simulator
from search.planning.build import build_schedule
from search.planning.schedule import Schedule
from search.program.case import Case
from search.program.library import kernels
from search.program.resolve import resolve_case
from search.space.candidate import Candidate, CudaMapping

sys.path.append(str(Path(__file__).parent))
sys.path.append(str(Path(__file__).parents[2] / "bench"))
from cuda_lowering import lower_schedules
from cuda_matrix import configurations
from test_lowering_reducers import PROBES

pytestmark = pytest.mark.toolchain


def candidate(width: int, rows_per_block: int = 1, min_blocks: int = 0, **knobs: Any) -> Candidate:
    base = {"input": "reload", "fusion": "separate", "materialize": "private", "vector": 1, "unroll": 1, "partials": 1}
    mapping = CudaMapping(rows_per_block=rows_per_block, min_blocks=min_blocks)
    return Candidate(width=width, mapping=mapping, **(base | knobs))


def case_of(kernel: str, dtype: str | None = None, **dims: int) -> Case:
    document: dict[str, Any] = {"kernel": kernel, "dims": {"rows": 9, **dims}}
    if dtype is not None:
        document["dtypes"] = {"x": dtype}
    return resolve_case(document)


NORMS = ("softmax", "rms_norm", "layer_norm")
CACHE: dict[str, Any] = {"input": "cache"}
MATRIX: list[tuple[Case, list[Candidate]]] = [
    *(
        (
            case_of(kernel, cols=65),
            [candidate(32), candidate(64, 4, **CACHE), candidate(8, 2, unroll=2), candidate(128, **CACHE)],
        )
        for kernel in NORMS
    ),
    *(
        (
            case_of(kernel, cols=769),
            [
                candidate(32, 4),
                candidate(32, 1, partials=4, unroll=2),
                candidate(128, 2, **CACHE),
                candidate(256, **CACHE, fusion="fused"),
                candidate(1024),
            ],
        )
        for kernel in NORMS
    ),
    *(
        (
            case_of(kernel, cols=2048),
            [
                candidate(64, 4, vector=4, **CACHE),
                candidate(256, vector=4, unroll=4),
                candidate(128, 1, vector=2, partials=2, **CACHE, fusion="fused"),
                candidate(512, 2, vector=4),
                candidate(1024, **CACHE, min_blocks=2),
            ],
        )
        for kernel in NORMS
    ),
    *(
        (
            case_of(kernel, dtype, cols=768),
            [
                candidate(32, 2, vector=8, **CACHE),
                candidate(64, vector=8),
                candidate(32, unroll=3),
                candidate(128, vector=2, **CACHE, fusion="fused"),
            ],
        )
        for kernel, dtype in zip(NORMS, ("float16", "bfloat16", "bfloat16"), strict=True)
    ),
    (
        case_of("softmax", cols=769),
        [candidate(64, 2, algorithm="online"), candidate(32, algorithm="online", partials=2)],
    ),
    *(
        # One thread alone that keeps what it reads: one pass more than its accumulators divide, once refused.
        (case_of(kernel, cols=13), [candidate(1, partials=2, **CACHE), candidate(1, partials=4, unroll=2)])
        for kernel in NORMS
    ),
    (case_of("softmax", cols=130), [candidate(16, 2, materialize="output"), candidate(1), candidate(2, 16)]),
    (
        case_of("layer_norm", cols=769),
        [candidate(64, 2, algorithm="welford"), candidate(32, partials=4, algorithm="welford")],
    ),
]


def third(at: int, case: Case) -> bool:
    """Whether the candidate at this place of its list is run for this norm: each is on one, the full tests take all."""
    return (at + NORMS.index(case.kernel)) % len(NORMS) == 0


OF_ALL_NORMS = MATRIX[: 4 * len(NORMS)]
RUN = [
    *((case, [one for at, one in enumerate(made) if third(at, case)]) for case, made in OF_ALL_NORMS),
    *MATRIX[len(OF_ALL_NORMS) :],
]
EVERY_PROGRAM = [candidate(32, 2, partials=2), candidate(8, **CACHE, materialize="recompute")]
LANGUAGE = (
    "several sites, a seed, a condition, the row itself",
    "counts by an index from data, clamped and guarded",
    "strict arrays",
    "streaming over tiles, one collective",
)


def name(case: Case, made: Candidate) -> str:
    mapping = made.mapping
    assert isinstance(mapping, CudaMapping)
    knobs = {k: v for k, v in made.document().items() if k not in ("mapping",)}
    return f"{case.kernel} {dict(case.dims)} {dict(case.dtypes)} R={mapping.rows_per_block} {knobs}"


def simulated(
    matrix: Sequence[tuple[Case, Sequence[Candidate]]], folder: Path, work_dir: Path | None = None
) -> dict[str, MeasureResult]:
    """What came of every candidate that planning admits; ``work_dir`` may hold the simulator's header already."""
    schedules, cases = [], []
    for case, candidates in matrix:
        for made in candidates:
            schedule = build_schedule(case, made)
            if isinstance(schedule, Schedule):
                schedules.append(schedule)
                cases.append(case)
    kernels = lower_schedules(schedules, folder)
    out: dict[str, MeasureResult] = {}
    with Simulator(work_dir or folder / "simulator") as simulator:
        for case in {id(case): case for case in cases}.values():
            items = [
                SimulationItem(
                    id=name(case, schedule.candidate),
                    cuda_text=kernel.renamed(f"k_{at}"),
                    symbol=f"k_{at}",
                    arguments=kernel.arguments,
                    launch=kernel.launch,
                )
                for at, (schedule, kernel, its) in enumerate(zip(schedules, kernels, cases, strict=True))
                if its is case
            ]
            for result in simulator.check(case, items):
                out[result.id] = result
    return out


def all_right(results: dict[str, MeasureResult], *, at_least: int) -> None:
    """So many candidates were simulated, elements of all were compared on three input sets, and nothing was wrong."""
    wrong = {
        key: result.rejection.document() if result.rejection is not None else "not checked"
        for key, result in results.items()
        if result.rejection is not None or result.checks is None or not result.checks.passed
    }
    assert wrong == {}
    for key, result in results.items():
        assert result.checks is not None
        assert result.checks.simulated_rows, key
        assert len(result.checks.inputs) == 3, key
        assert all(one.elements_checked > 0 for one in result.checks.inputs), key
    assert len(results) >= at_least


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> dict[str, MeasureResult]:
    """The matrix and a few programs together: TileLang is imported once, and every test of this run that simulates
    shares one header."""
    programs = [(PROBES[key].case(), EVERY_PROGRAM) for key in LANGUAGE]
    base = tmp_path_factory.getbasetemp()
    shared = (base.parent if base.name.startswith("popen-") else base) / "simulations"
    return simulated([*RUN, *programs], tmp_path_factory.mktemp("simulated"), shared)


def test_candidates_of_the_norms_compute_what_the_oracle_says(results: dict[str, MeasureResult]) -> None:
    norms = {key: result for key, result in results.items() if key.startswith(NORMS)}
    all_right(norms, at_least=28)


def test_programs_of_the_whole_language_compute_what_the_oracle_says(results: dict[str, MeasureResult]) -> None:
    programs = {key: result for key, result in results.items() if key.startswith("probe")}
    all_right(programs, at_least=len(EVERY_PROGRAM) * len(LANGUAGE))


@pytest.mark.full
def test_the_other_norms_of_every_candidate_compute_what_the_oracle_says(tmp_path: Path) -> None:
    left = [(case, [one for at, one in enumerate(made) if not third(at, case)]) for case, made in OF_ALL_NORMS]
    all_right(simulated(left, tmp_path), at_least=32)


@pytest.mark.full
def test_every_kernel_of_the_library_computes_what_the_oracle_says(tmp_path: Path) -> None:
    made = [candidate(32, 2), candidate(8, 4, vector=2, partials=2, **CACHE)]
    matrix = []
    for kernel in kernels():
        dims = {"parts": 2, "half": 50} if "half" in kernels()[kernel].program.dims else {}
        dims = dims or {dim: 100 if dim == "cols" else 24 for dim in kernels()[kernel].program.dims if dim != "rows"}
        matrix.append((case_of(kernel, **dims), made))
    all_right(simulated(matrix, tmp_path), at_least=2 * len(kernels()) - 1)


def small_spaces() -> list[tuple[Case, list[Candidate]]]:
    """A random part of the small spaces of three kernels: few lanes, few elements, every other knob."""
    knobs = {
        "partials": (1, 2, 4, 8),
        "vector": (1, 2, 4),
        "unroll": (1, 2),
        "input": ("reload", "cache"),
        "materialize": ("private", "recompute", "output"),
    }
    drawn = random.Random(5)
    cases = [(case_of(kernel, cols=cols), list[Candidate]()) for kernel in NORMS for cols in (1, 5, 8, 12, 33)]
    for _ in range(420):
        case, made = drawn.choice(cases)
        chosen = {name: drawn.choice(values) for name, values in knobs.items()}
        one = candidate(drawn.choice((1, 1, 2, 32)), drawn.choice((1, 1, 2)), **chosen)
        if one not in made and isinstance(build_schedule(case, one), Schedule):
            made.append(one)
    return cases


@pytest.mark.full
def test_small_spaces_lower_and_compute_what_the_oracle_says(tmp_path: Path) -> None:
    all_right(simulated(small_spaces(), tmp_path), at_least=200)


@pytest.mark.full
def test_every_reducer_program_computes_what_the_oracle_says(tmp_path: Path) -> None:
    results = simulated([(one.case(), EVERY_PROGRAM) for one in PROBES.values()], tmp_path)
    all_right(results, at_least=len(PROBES))


@pytest.mark.full
def test_the_whole_matrix_computes_what_the_oracle_says(tmp_path: Path) -> None:
    by_case: dict[int, tuple[Case, list[Candidate]]] = {}
    for one in configurations(list(NORMS), [65, 769, 2048, 4096]):
        by_case.setdefault(id(one.case), (one.case, []))[1].append(one.candidate)
    results = simulated(list(by_case.values()), tmp_path)
    all_right(results, at_least=300)
