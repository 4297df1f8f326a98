"""Case × Candidate → Schedule, or the constraint that the candidate breaks."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from search.outcome import Rejected
from search.planning.choices import Choices
from search.planning.effects import reload_rejection
from search.planning.fusion import Admitted, admit
from search.planning.grouping import group_statements
from search.planning.materialize import Staging, stage_outputs, tiles_read_later
from search.planning.outline import Outline, outline
from search.planning.ownership import allocated, stripe, tree_rounds
from search.planning.schedule import (
    Collective,
    DistributedLoop,
    GlobalLoad,
    GlobalStore,
    PrivateTile,
    Schedule,
    SerialLoop,
    Step,
    flat_steps,
)
from search.program.algorithms import WRITTEN, AlgorithmWord, algorithms, rewritten
from search.program.case import Case
from search.program.desugar import desugar
from search.program.dtypes import INT, program_dtypes
from search.program.ir import DTYPE_BYTES, DType, Tile
from search.program.walk import statements
from search.space.candidate import Candidate, CpuMapping, CudaMapping
from search.space.tiles import crossing_tiles
from search.space.uses import cacheable_inputs, statement_uses, storable_inputs

STREAMED_ELEMENT_BYTES = 4
"""What a packet's lanes count as in the rule for every program; which stores stream goes by their own elements."""
STREAM_BYTES = 64
"""A streaming store writes whole 64-byte lines, so what it covers must fill them."""
MAX_BLOCK_THREADS = 1024


def build_schedule(case: Case, candidate: Candidate) -> Schedule | Rejected:
    """The schedule of one row of the case under the candidate; Rejected (stage ``constraints``) when it is illegal.

    Reasons: ``local_lanes_not_divisor``, ``nontemporal_width``, ``threads_per_block``, ``fusion_needs_cache``,
    ``input_not_cacheable``, ``fusion_illegal``, ``tile_crosses_lanes``, ``no_output_staging``,
    ``reload_across_effect``, ``vector_not_divisor``, ``algorithm_not_applicable``.
    The private budget is not checked here (``budget.py``). The program must be verified.
    """
    return ScheduleBuilder(case).build(candidate)


class ScheduleBuilder:
    """Builds many schedules of one case: the analysis of the program and the outlines are shared between them."""

    def __init__(self, case: Case) -> None:
        self._case = case
        self._program = desugar(case.program)
        dtypes = program_dtypes(self._program, case.dtypes)
        self._dtypes: dict[str, DType] = {n: "int32" if dtype == INT else dtype for n, dtype in dtypes.items()}
        self._uses = {inlined: statement_uses(self._program, inline_tiles=inlined) for inlined in (False, True)}
        self._groupings = {inlined: group_statements(self._program, uses) for inlined, uses in self._uses.items()}
        self._storable = {inlined: storable_inputs(case, uses) for inlined, uses in self._uses.items()}
        self._cacheable = cacheable_inputs(case, self._uses[False])
        self._outlines: dict[tuple[tuple[str, ...], str, str, frozenset[int]], Outline | Rejected] = {}
        self._variants: dict[AlgorithmWord, ScheduleBuilder] = {}
        """Builders of the program rewritten to other algorithms."""

    @property
    def cacheable(self) -> tuple[str, ...]:
        """Inputs that the word ``cache`` keeps in private storage."""
        return self._cacheable

    @property
    def has_tiles(self) -> bool:
        """True when ``materialize`` matters."""
        return any(isinstance(statement, Tile) for _, statement in statements(self._program.body))

    def build(self, candidate: Candidate) -> Schedule | Rejected:
        """As :func:`build_schedule`."""
        builder = self._variant(candidate.algorithm)
        if builder is None:
            allowed = list(algorithms(self._case.program))
            detail = {"algorithm": candidate.algorithm, "allowed": allowed}
            return Rejected(stage="constraints", reason="algorithm_not_applicable", detail=detail)
        return builder._build(candidate)

    def _variant(self, algorithm: AlgorithmWord) -> ScheduleBuilder | None:
        if algorithm == WRITTEN:
            return self
        if algorithm not in self._variants:
            program = rewritten(self._case.program, algorithm)
            if program is None:
                return None
            self._variants[algorithm] = ScheduleBuilder(replace(self._case, program=program))
        return self._variants[algorithm]

    def _build(self, candidate: Candidate) -> Schedule | Rejected:
        rejection = _mapping_rejection(candidate)
        if rejection is not None:
            return rejection
        cached = self._cached(candidate)
        if isinstance(cached, Rejected):
            return cached
        key = (cached, candidate.fusion, candidate.materialize, _streams(candidate))
        if key not in self._outlines:
            self._outlines[key] = self._outline(*key)
        made = self._outlines[key]
        if isinstance(made, Rejected):
            return made
        return _vector_rejection(made, candidate) or _spread(made, self._case, candidate)

    def _cached(self, candidate: Candidate) -> tuple[str, ...] | Rejected:
        """The inputs that the candidate keeps in private storage, in declaration order."""
        if isinstance(candidate.input, str):
            cached = self._cacheable if candidate.input == "cache" else ()
        else:
            named = {tensor for tensor, word in candidate.input if word == "cache"}
            cached = tuple(tensor.name for tensor in self._case.program.tensors if tensor.name in named)
        # Inlined tiles are read where their readers run, which may be over more axes than the tile's.
        storable = set(self._storable[False]) & set(self._storable[candidate.materialize == "recompute"])
        foreign = [name for name in cached if name not in storable]
        if foreign:
            detail: dict[str, Any] = {"tensors": foreign, "allowed": sorted(storable)}
            return Rejected(stage="constraints", reason="input_not_cacheable", detail=detail)
        if candidate.fusion == "fused" and not cached:
            detail = {"fusion": "fused", "input": candidate.document()["input"], "cacheable": list(self._cacheable)}
            return Rejected(stage="constraints", reason="fusion_needs_cache", detail=detail)
        return cached

    def _outline(
        self, cached: tuple[str, ...], fusion: str, materialize: str, streaming: frozenset[int]
    ) -> Outline | Rejected:
        recompute = materialize == "recompute"
        uses, grouping = self._uses[recompute], self._groupings[recompute]
        fused: dict[str, Admitted] = {}
        if fusion == "fused":
            for tensor in cached:
                admission = admit(self._case, uses, tensor)
                if not isinstance(admission, Admitted):
                    return admission.rejection()
                fused[tensor] = admission
        reloaded = reload_rejection(self._case, self._uses[False], uses, cached)
        if reloaded is not None:
            return reloaded
        crossing = {} if recompute else crossing_tiles(self._case, uses)
        if crossing:
            detail = {"tiles": crossing, "materialize": materialize, "allowed": ["recompute"]}
            return Rejected(stage="constraints", reason="tile_crosses_lanes", detail=detail)
        tiles = frozenset(use.statement.name for use in uses if isinstance(use.statement, Tile))
        staging = Staging(pairs=(), needless=frozenset())
        if materialize == "output":
            asked = stage_outputs(self._case, uses, tiles_read_later(uses, grouping), self._dtypes)
            if isinstance(asked, Rejected):
                return asked
            staging = asked
        choices = Choices(
            cached=cached,
            fused=fused,
            recompute=recompute,
            stored=frozenset() if recompute else tiles - staging.needless,
            staged=dict(staging.pairs),
            streaming=streaming,
        )
        return outline(self._case, self._program, uses, grouping, self._dtypes, choices)


def _mapping_rejection(candidate: Candidate) -> Rejected | None:
    """The rule of the mapping that the candidate breaks, whatever the program."""
    mapping, width = candidate.mapping, candidate.width
    if isinstance(mapping, CudaMapping):
        if width * mapping.rows_per_block <= MAX_BLOCK_THREADS:
            return None
        detail = {"width": width, "rows_per_block": mapping.rows_per_block, "limit": MAX_BLOCK_THREADS}
        return Rejected(stage="constraints", reason="threads_per_block", detail=detail)
    if width % mapping.local_lanes:
        detail = {"local_lanes": mapping.local_lanes, "width": width}
        return Rejected(stage="constraints", reason="local_lanes_not_divisor", detail=detail)
    if not mapping.nontemporal:
        return None
    if width * STREAMED_ELEMENT_BYTES % STREAM_BYTES:
        detail = {"width": width, "packet_bytes": width * STREAMED_ELEMENT_BYTES, "multiple_of_bytes": STREAM_BYTES}
        return Rejected(stage="constraints", reason="nontemporal_width", detail=detail)
    return None


def _vector_rejection(made: Outline, candidate: Candidate) -> Rejected | None:
    """A GPU's lane accesses V scalars at once only where they are aligned in every row: V divides the extent.

    Narrower accesses would be another candidate's code under this one's name.
    """
    if not isinstance(candidate.mapping, CudaMapping) or candidate.vector == 1:
        return None
    for step, _ in flat_steps(made.steps):
        if not isinstance(step, DistributedLoop) or step.extent % candidate.vector == 0:
            continue
        if any(isinstance(op, GlobalLoad | GlobalStore) for op in step.ops):
            detail = {
                "vector": candidate.vector,
                "axes": list(step.axes),
                "extent": step.extent,
                "allowed": [v for v in (1, 2, 4, 8, 16) if step.extent % v == 0],
            }
            return Rejected(stage="constraints", reason="vector_not_divisor", detail=detail)
    return None


def _streams(candidate: Candidate) -> frozenset[int]:
    """Sizes (bytes) of the elements of which one row's lanes write whole lines in one pass: what can be streamed.

    Rows do not lie side by side, so with L < W a pass may be too short for a line; its stores are then ordinary ones.
    """
    mapping = candidate.mapping
    if not isinstance(mapping, CpuMapping) or not mapping.nontemporal:
        return frozenset()
    scalars = mapping.local_lanes * candidate.vector
    return frozenset(size for size in set(DTYPE_BYTES.values()) if scalars * size % STREAM_BYTES == 0)


def _spread(made: Outline, case: Case, candidate: Candidate) -> Schedule:
    """Divide an outline over the candidate's lanes."""
    lanes = candidate.lanes_per_row
    return Schedule(
        case=case,
        candidate=candidate,
        lanes_per_row=lanes,
        reducers=made.reducers,
        private_tiles=tuple(
            PrivateTile(
                name=tile.name,
                kind=tile.kind,
                dtype=tile.dtype,
                axes=tile.axes,
                extent=tile.extent,
                stripe_scalars=stripe(tile.extent, lanes),
                allocated_scalars=allocated(tile.extent, lanes, candidate.vector),
            )
            for tile in made.storage
        ),
        staged_tiles=made.staged,
        steps=tuple(_spread_step(step, lanes) for step in made.steps),
        scalar_dtypes=made.scalar_dtypes,
        arrays=made.arrays,
    )


def _spread_step(step: Step, lanes: int) -> Step:
    match step:
        case DistributedLoop():
            return replace(step, stripe_scalars=stripe(step.extent, lanes))
        case Collective():
            return replace(step, rounds=0 if step.strict else step.elements * tree_rounds(lanes))
        case SerialLoop():
            return replace(step, steps=tuple(_spread_step(inner, lanes) for inner in step.steps))
        case _:
            return step
