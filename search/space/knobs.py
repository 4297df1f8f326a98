"""The knobs: one declaration each, with domain and default lists per target.

A new knob is one entry here plus the lowerings that implement it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

from search.program.algorithms import ALGORITHMS, WRITTEN
from search.program.case import Case
from search.space.candidate import TargetKind
from search.space.tiles import fits_no_output

Value: TypeAlias = int | str | bool
"""A value of a knob. ``input`` takes maps too, see ``space.resolve``."""

WIDTH_WORD = "width"
"""The value of ``local_lanes`` that means: as many as the packet is wide."""

_POWERS = tuple(2**exponent for exponent in range(11))


@dataclass(frozen=True, kw_only=True)
class Knob:
    """One axis of the joint space."""

    name: str
    meaning: str
    domain: tuple[Value, ...]
    """Every legal value, in canonical order."""
    defaults: Mapping[TargetKind, tuple[Value, ...]]
    """Default list per target; a target that is missing does not have the knob."""
    inert: Value
    """The value to which it collapses for a program where it cannot matter."""
    in_mapping: bool = False
    """True for the knobs that a candidate keeps inside ``mapping``."""
    narrow_defaults: Mapping[TargetKind, tuple[Value, ...]] | None = None
    """Default list where some of the case's elements are 16 bits wide, if it differs."""
    homeless_defaults: Mapping[TargetKind, tuple[Value, ...]] | None = None
    """Default list where some tile fits no output, if it differs."""

    def allowed(self, value: Any) -> bool:
        """True for a value of the domain; a bool is no number and 8.0 is not 8."""
        return any(type(value) is type(member) and value == member for member in self.domain)

    def default(self, target: TargetKind, case: Case) -> tuple[Value, ...]:
        """The list that a missing knob takes."""
        if self.narrow_defaults is not None and target in self.narrow_defaults and case.has_16_bits:
            return self.narrow_defaults[target]
        if self.homeless_defaults is not None and target in self.homeless_defaults and fits_no_output(case):
            return self.homeless_defaults[target]
        return self.defaults[target]

    def document(self, target: TargetKind) -> dict[str, Any]:
        """JSON form: name, meaning, domain and the target's default list."""
        return {
            "name": self.name,
            "meaning": self.meaning,
            "domain": list(self.domain),
            "default": list(self.defaults[target]),
        }


KNOBS: tuple[Knob, ...] = (
    Knob(
        name="width",
        meaning="lanes of a packet: SIMD lanes on a CPU, threads per row on a GPU",
        domain=_POWERS,
        defaults={"cpu": (8, 16, 32, 64), "cuda": (32, 64, 128, 256, 512, 1024)},
        inert=1,
    ),
    Knob(
        name="algorithm",
        meaning="written: the program as it stands; online: maximum and sum of exponentials in one pass; "
        "welford: mean and squared deviations in one pass; where the program has what they replace",
        domain=ALGORITHMS,
        defaults={"cpu": (WRITTEN,), "cuda": (WRITTEN,)},
        inert=WRITTEN,
    ),
    Knob(
        name="input",
        meaning="reload: every phase reads global memory; cache: read once into private storage; or a map of tensors",
        domain=("reload", "cache"),
        defaults={"cpu": ("reload", "cache"), "cuda": ("reload", "cache")},
        inert="reload",
    ),
    Knob(
        name="fusion",
        meaning="fused (cache only): the first reduction reads global memory itself and keeps the snapshot on the way",
        domain=("separate", "fused"),
        defaults={"cpu": ("separate",), "cuda": ("separate",)},
        inert="separate",
    ),
    Knob(
        name="materialize",
        meaning="where tiles live: private storage, an output's storage, or nowhere (recomputed at each use)",
        domain=("private", "output", "recompute"),
        defaults={"cpu": ("private", "output"), "cuda": ("private", "recompute")},
        # A tile is float32, so an output of 16 bits holds none.
        narrow_defaults={"cpu": ("private", "output", "recompute")},
        homeless_defaults={"cpu": ("private", "output", "recompute")},
        inert="private",
    ),
    Knob(
        name="vector",
        meaning="contiguous scalars per lane access",
        domain=(1, 2, 4, 8, 16),
        defaults={"cpu": (1,), "cuda": (1, 4)},
        narrow_defaults={"cuda": (1, 8)},
        inert=1,
    ),
    Knob(
        name="unroll",
        meaning="unroll factor of the pass loop",
        domain=tuple(range(1, 17)),
        defaults={"cpu": (1,), "cuda": (1,)},
        inert=1,
    ),
    Knob(
        name="partials",
        meaning="independent accumulators per lane",
        domain=(1, 2, 4, 8),
        defaults={"cpu": (1,), "cuda": (1,)},
        inert=1,
    ),
    Knob(
        name="local_lanes",
        meaning='lanes that share one row: "width" is packet-local, 1 is whole-program; must divide the width',
        domain=(*_POWERS, WIDTH_WORD),
        defaults={"cpu": (WIDTH_WORD,)},
        inert=WIDTH_WORD,
        in_mapping=True,
    ),
    Knob(
        name="row_block",
        meaning="rows interleaved by one packet",
        domain=(1, 2, 4),
        defaults={"cpu": (1,)},
        inert=1,
        in_mapping=True,
    ),
    Knob(
        name="simd_scope",
        meaning="where #pragma omp simd stands: nowhere, on the main lane loops, on all lane loops",
        domain=("none", "main", "all"),
        defaults={"cpu": ("none", "main", "all")},
        inert="none",
        in_mapping=True,
    ),
    Knob(
        name="nontemporal",
        meaning="streaming stores of the outputs (width × 4 bytes a multiple of 64)",
        domain=(False, True),
        defaults={"cpu": (False, True)},
        inert=False,
        in_mapping=True,
    ),
    Knob(
        name="rows_per_block",
        meaning="rows that a block works on, width lanes each (width × rows_per_block <= 1024)",
        domain=(1, 2, 4, 8, 16, 32),
        defaults={"cuda": (1, 4)},
        inert=1,
        in_mapping=True,
    ),
    Knob(
        name="min_blocks",
        meaning="launch-bounds hint: blocks per multiprocessor, 0 gives none",
        domain=(0, 1, 2, 4, 8),
        defaults={"cuda": (0,)},
        inert=0,
        in_mapping=True,
    ),
)
"""Every knob, in canonical order."""


def target_knobs(target: TargetKind) -> tuple[Knob, ...]:
    """The knobs that a target has, in canonical order."""
    return tuple(knob for knob in KNOBS if target in knob.defaults)


def default_lists(target: TargetKind) -> dict[str, list[Value]]:
    """JSON of a target's default space (that of 32-bit elements), as ``GET /v1/kernels`` shows it."""
    return {knob.name: list(knob.defaults[target]) for knob in target_knobs(target)}
