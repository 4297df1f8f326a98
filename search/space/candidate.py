"""A Candidate: one point of the joint space. Frozen, hashable, JSON in and out, with a canonical order."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias, cast

from search.program.algorithms import WRITTEN, AlgorithmWord

InputWord = Literal["reload", "cache"]
FusionWord = Literal["separate", "fused"]
MaterializeWord = Literal["private", "output", "recompute"]
SimdScope = Literal["none", "main", "all"]
TargetKind = Literal["cpu", "cuda"]


@dataclass(frozen=True, kw_only=True)
class CpuMapping:
    """How a packet of ``width`` SIMD lanes is laid over rows and columns.

    ``local_lanes`` lanes share one program instance (width = packet-local, 1 = whole-program), so a packet runs
    ``width / local_lanes`` rows; ``row_block`` such groups of rows are interleaved by one packet.
    """

    local_lanes: int
    row_block: int = 1
    simd_scope: SimdScope = "none"
    nontemporal: bool = False


@dataclass(frozen=True, kw_only=True)
class CudaMapping:
    """``rows_per_block`` rows of ``width`` threads each in one block, and a launch-bounds hint."""

    rows_per_block: int = 1
    min_blocks: int = 0


Mapping_: TypeAlias = CpuMapping | CudaMapping


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """Width × algorithm × input × fusion × materialize × vector × unroll × partials × mapping."""

    width: int
    input: InputWord | tuple[tuple[str, InputWord], ...]
    """One word for every cacheable input, or (tensor, word) pairs sorted by tensor."""
    fusion: FusionWord
    materialize: MaterializeWord
    vector: int
    unroll: int
    partials: int
    mapping: Mapping_
    algorithm: AlgorithmWord = WRITTEN

    @property
    def target(self) -> TargetKind:
        """Which target's mapping this is."""
        return "cpu" if isinstance(self.mapping, CpuMapping) else "cuda"

    @property
    def lanes_per_row(self) -> int:
        """L: lanes that share one program instance."""
        return self.mapping.local_lanes if isinstance(self.mapping, CpuMapping) else self.width

    @property
    def row_block(self) -> int:
        """Rows whose private tiles one lane holds at a time (1 on CUDA)."""
        return self.mapping.row_block if isinstance(self.mapping, CpuMapping) else 1

    def input_word(self, tensor: str) -> InputWord:
        """What happens to one cacheable input: reload or cache."""
        if isinstance(self.input, str):
            return self.input
        return dict(self.input).get(tensor, "reload")

    def document(self) -> dict[str, Any]:
        """JSON form, with the mapping's knobs inside ``mapping``; ``algorithm`` only if it is not as written."""
        chosen = {} if self.algorithm == WRITTEN else {"algorithm": self.algorithm}
        return {
            **chosen,
            "width": self.width,
            "vector": self.vector,
            "unroll": self.unroll,
            "partials": self.partials,
            "input": self.input if isinstance(self.input, str) else dict(self.input),
            "fusion": self.fusion,
            "materialize": self.materialize,
            "mapping": dict(vars(self.mapping)),
        }

    @classmethod
    def from_document(cls, document: Mapping[str, Any]) -> Candidate:
        """Inverse of :meth:`document`; for our own records, not for user input (see ``space.knobs``)."""
        fields = dict(document)
        mapping = dict(fields.pop("mapping"))
        word = fields.pop("input")
        return cls(
            input=cast(InputWord, word) if isinstance(word, str) else tuple(sorted(word.items())),
            mapping=CpuMapping(**mapping) if "local_lanes" in mapping else CudaMapping(**mapping),
            **fields,
        )

    @property
    def digest(self) -> str:
        """sha256 (hex) of the canonical JSON form."""
        text = json.dumps(self.document(), sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()
