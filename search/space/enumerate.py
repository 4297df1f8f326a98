"""The Space: the lists of every knob for one case, and its candidates in canonical order."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

from search.space.candidate import Candidate, CpuMapping, CudaMapping, InputWord, TargetKind
from search.space.knobs import WIDTH_WORD, target_knobs

MAX_CANDIDATES_PER_CASE = 20_000

InputValue: TypeAlias = InputWord | tuple[tuple[str, InputWord], ...]


@dataclass(frozen=True, kw_only=True)
class Space:
    """A finite joint space over one case. Made by ``resolve_space``; lists are in domain order, without duplicates."""

    target: TargetKind
    lists: Mapping[str, tuple[Any, ...]]
    """Knob name to values, a knob per entry in canonical order; inert knobs hold one value. ``input`` holds words and
    (tensor, word) pairs, ``local_lanes`` may hold ``"width"``."""
    inert_knobs: tuple[str, ...]
    """Knobs that cannot matter for the program."""

    @property
    def size(self) -> int:
        """Number of candidates, by arithmetic."""
        others = math.prod(len(values) for name, values in self.lists.items() if name not in ("width", "local_lanes"))
        if "local_lanes" not in self.lists:
            return others * len(self.lists["width"])
        return others * sum(len(self._local_lanes(width)) for width in self.lists["width"])

    def candidates(self) -> Iterator[Candidate]:
        """Every candidate once, lazily, in canonical order: knobs nest as ``knobs.KNOBS`` lists them.

        Order of the caller's lists and keys does not matter. Illegal combinations are included: planning rejects them.
        """
        names = [knob.name for knob in target_knobs(self.target) if knob.name != "width"]
        mapping_names = {knob.name for knob in target_knobs(self.target) if knob.in_mapping}
        for width in self.lists["width"]:
            lists = [self._local_lanes(width) if name == "local_lanes" else self.lists[name] for name in names]
            for values in itertools.product(*lists):
                chosen = dict(zip(names, values, strict=True))
                mapping = {name: chosen.pop(name) for name in mapping_names}
                made = CpuMapping(**mapping) if self.target == "cpu" else CudaMapping(**mapping)
                yield Candidate(width=width, mapping=made, **chosen)

    def document(self) -> dict[str, list[Any]]:
        """JSON form: the resolved lists, inert knobs collapsed."""
        return {
            name: [dict(value) if isinstance(value, tuple) else value for value in values]
            for name, values in self.lists.items()
        }

    def _local_lanes(self, width: int) -> tuple[int, ...]:
        """The lanes that share a row at this width, ascending; ``"width"`` and an equal number are one value."""
        return tuple(sorted({width if value == WIDTH_WORD else value for value in self.lists["local_lanes"]}))
