"""What every lowering takes and gives. Data only; the Lowering Protocol is what one target implements.

A lowering runs in a child process (``python -m search.lowering.child``): the service process never holds TileLang.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, Protocol

from search.documents import HERE_ONLY
from search.outcome import Rejected

if TYPE_CHECKING:  # children that measure read these records, and plan nothing: a tenth of their start
    from search.planning.schedule import Schedule


@dataclass(frozen=True, kw_only=True)
class Argument:
    """One argument of a compiled kernel, in call order."""

    name: str
    kind: Literal["tensor", "dim"]
    """A tensor is passed as a pointer to its first element, a dim as int32 by value."""


@dataclass(frozen=True, kw_only=True)
class Emitted:
    """A schedule as TileLang Python text that a user can paste and run, with its kernel's symbol."""

    tilelang_text: str
    symbol: str


@dataclass(frozen=True, kw_only=True)
class Launch:
    """How a kernel is launched: one-dimensional, ceil(rows / ``rows_per_block``) blocks."""

    threads_per_block: int
    rows_per_block: int
    dynamic_shared_bytes: int


@dataclass(frozen=True, kw_only=True)
class Artifact:
    """A compiled kernel in the artifact store."""

    source_sha256: str
    """Of the final C/CUDA text with canonical symbol + header + flags."""
    artifact_sha256: str
    """Of the machine code: function bytes + symbolic relocations + constants; independent of batch and symbol name."""
    library_path: str = field(default="", compare=False, metadata=HERE_ONLY)
    """Absolute path, on this machine, of the shared library that holds it (a batch shares one); empty until it was
    located (``ArtifactCache.located``). No ledger keeps it: the next step may run on another machine."""
    library_sha256: str
    symbol: str
    arguments: tuple[Argument, ...]
    launch: Launch | None = None
    """On a GPU."""
    architecture: str | None = None
    """Of the GPU code (``sm_90``): the library is then a cubin."""

    def document(self) -> dict[str, Any]:
        """JSON form for other machines and other days, without the path; what only GPU code has is left out where there
        is none."""
        out = {**vars(self), "arguments": [vars(a) for a in self.arguments]}
        out["launch"] = None if self.launch is None else vars(self.launch)
        del out["library_path"]
        return {k: v for k, v in out.items() if v is not None or k not in ("launch", "architecture")}

    def located_document(self) -> dict[str, Any]:
        """JSON form for another process of this machine, with the path."""
        return {**self.document(), "library_path": self.library_path}

    @classmethod
    def from_document(cls, document: Mapping[str, Any]) -> Artifact:
        """Inverse of :meth:`document` and of :meth:`located_document`."""
        fields = dict(document)
        launch = fields.pop("launch", None)
        return cls(
            arguments=tuple(Argument(**a) for a in fields.pop("arguments")),
            launch=None if launch is None else Launch(**launch),
            **fields,
        )


def symbol_of(source_sha256: str) -> str:
    """A kernel's symbol in a library: by source, so equal sources of a batch are one function."""
    return f"k_{source_sha256[:24]}"


@dataclass(frozen=True, kw_only=True)
class CodeFacts:
    """Facts read from the object code, never inferred. None: the target does not have it."""

    source_sha256: str
    artifact_sha256: str
    static_instructions: int
    static_branches: int
    """Conditional branch sites."""
    stack_bytes: int
    widest_vector_bits: int
    """512 / 256 / 128 by the widest vector register named in the code, 0 when scalar."""
    code_bytes: int
    registers: int | None = None
    spill_bytes: int | None = None
    shared_bytes: int | None = None
    tilelang_sha256: str | None = None
    """Of the TileLang text, which can be emitted and compared where neither TileLang nor a compiler is installed."""
    numerics: Mapping[str, str] = field(default_factory=dict)
    """What the numbers may do, by name (``exp``, ``division``, ``sum reduction``, …)."""
    spill_store_bytes: int | None = None
    """Of the spill instructions in the code, counted once each; ``spill_bytes`` is stores and loads together."""
    spill_load_bytes: int | None = None
    static_shared_bytes: int | None = None
    """``shared_bytes`` is static and dynamic together."""
    dynamic_shared_bytes: int | None = None
    constant_bytes: int | None = None
    threads_per_block: int | None = None
    memory_instructions: Mapping[str, Mapping[str, int]] | None = None
    """Instruction → bits of one access → sites in the code: ``{"LDG": {"128": 8}}``."""
    planned_load_sites: int | None = None
    """Loads from global memory that the text has, loops unrolled as it says; with fewer ``LDG`` some were merged."""
    shuffle_instructions: int | None = None
    warp_reduction_instructions: int | None = None
    barrier_instructions: int | None = None
    collective: Literal["none", "warp_shuffle", "shared_memory"] | None = None
    """How threads combine values, by what is in the code."""
    occupancy: Mapping[str, Any] | None = None
    """Estimate: ``blocks_per_sm``, ``warps_per_sm``, ``fraction``, ``limited_by``."""

    def document(self) -> dict[str, Any]:
        """JSON form (the ``code`` object of a trial). What only a CUDA kernel has is left out where there is none."""
        shown = {k: v for k, v in vars(self).items() if v is not None or k not in _CUDA_FACTS}
        return {**shown, "numerics": dict(self.numerics)}

    @classmethod
    def from_document(cls, document: Mapping[str, Any]) -> CodeFacts:
        """Inverse of :meth:`document`; keys it does not know are ignored."""
        return cls(**{k: document[k] for k in cls.__dataclass_fields__ if k in document})


_FACTS = tuple(CodeFacts.__dataclass_fields__)
_CUDA_FACTS = frozenset(_FACTS[_FACTS.index("numerics") + 1 :])
"""CPU documents keep the bytes that they had before there was CUDA."""


@dataclass(frozen=True, kw_only=True)
class BuildRequest:
    """One candidate of one case to build. ``id`` is the caller's (a trial id)."""

    id: str
    case: Mapping[str, Any]
    """``Case.document()``."""
    candidate: Mapping[str, Any]
    """``Candidate.document()``."""
    spills_allowed: bool = True
    """False: machine code that spills registers is rejected (stage ``resources``), where code facts tell spills."""

    def document(self) -> dict[str, Any]:
        """JSON form."""
        document = {"id": self.id, "case": dict(self.case), "candidate": dict(self.candidate)}
        return document if self.spills_allowed else {**document, "spills_allowed": False}

    @classmethod
    def from_document(cls, document: Mapping[str, Any]) -> BuildRequest:
        """Inverse of :meth:`document`."""
        return cls(**{k: document[k] for k in cls.__dataclass_fields__ if k in document})


@dataclass(frozen=True, kw_only=True)
class BuildResult:
    """What came of one request: an artifact with its facts, or a rejection (stage ``compile`` or ``resources``)."""

    id: str
    artifact: Artifact | None = None
    facts: CodeFacts | None = None
    rejection: Rejected | None = None
    lower_seconds: float = 0.0
    """Emission + TileLang lowering of this candidate alone."""
    compile_seconds: float = 0.0
    """This candidate's share of its batch's compiler call."""
    build_key: str | None = None
    """What the store remembers the build by."""

    def document(self) -> dict[str, Any]:
        """JSON form."""
        return {
            "id": self.id,
            "artifact": self.artifact and self.artifact.located_document(),
            "facts": self.facts and self.facts.document(),
            "rejection": self.rejection and self.rejection.document(),
            "lower_seconds": self.lower_seconds,
            "compile_seconds": self.compile_seconds,
            "build_key": self.build_key,
        }

    @classmethod
    def from_document(cls, document: Mapping[str, Any]) -> BuildResult:
        """Inverse of :meth:`document`."""
        artifact, facts, rejection = document["artifact"], document["facts"], document["rejection"]
        return cls(
            id=document["id"],
            artifact=None if artifact is None else Artifact.from_document(artifact),
            facts=None if facts is None else CodeFacts.from_document(facts),
            rejection=None if rejection is None else Rejected.from_document(rejection),
            lower_seconds=document["lower_seconds"],
            compile_seconds=document["compile_seconds"],
            build_key=document["build_key"],
        )


@dataclass(frozen=True, kw_only=True)
class Source:
    """Everything needed to rebuild one kernel by hand; stored by ``source_sha256``."""

    source_sha256: str
    tilelang_text: str
    c_text: str
    header_name: str
    header_text: str
    build_command: tuple[str, ...]
    """argv, with plain file names, to be run inside the exported folder."""
    files: Mapping[str, str] = field(default_factory=dict)
    """Further files of the export, by plain name."""

    @property
    def language(self) -> str:
        """Suffix of the text: ``c`` or ``cu``."""
        return "cu" if self.header_name.endswith(".cuh") else "c"


Fetch = Callable[[str], None]
"""Asks that what is known elsewhere under a build key be brought into the store directory, if anything is."""


class Lowering(Protocol):
    """One target. Deterministic: equal schedules give equal text."""

    def emit(self, schedule: Schedule) -> Emitted:
        """The schedule as TileLang text. Pure; imports no TileLang."""
        ...

    def build(
        self,
        requests: Iterable[BuildRequest],
        store: str,
        *,
        fresh: bool = False,
        compile_timeout_seconds: float = 60.0,
        progress: Callable[[], None] = lambda: None,
        fetch: Fetch | None = None,
    ) -> Iterator[BuildResult]:
        """Lower and compile a batch into the artifact store directory, yielding results as they get ready.

        ``fresh`` reads nothing from the store. ``compile_timeout_seconds`` bounds one compiler call; ``progress`` is
        called, from any thread, when one begins. ``fetch``: the store is shared with other machines. Runs only in the
        lowering child.
        """
        ...
