"""The CPU lowering: requests in, artifacts out. Lowering the next kernels overlaps compiling the last ones."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path

from search.errors import InvalidInput
from search.lowering.contract import Artifact, BuildRequest, BuildResult, CodeFacts, Emitted, Source, symbol_of
from search.lowering.cpu.compile import Library, Member, compile_members
from search.lowering.cpu.dialect import HEADER_INCLUDE, Kernel, load, lower_text
from search.lowering.cpu.emit import emit
from search.lowering.cpu.expressions import UnsupportedError
from search.lowering.cpu.facts import FunctionFacts
from search.lowering.cpu.numerics import describe_numerics
from search.lowering.cpu.toolchain import COMPILE_FLAGS, HEADER, LIBRARIES, LINK_FLAGS, compiler
from search.lowering.store import ArtifactStore
from search.outcome import Rejected
from search.planning.build import build_schedule
from search.planning.schedule import Schedule
from search.program.resolve import resolve_case
from search.space.candidate import Candidate

BATCH = 6
"""Kernels per compiler call: most of the saving of a shared call, and still something to overlap with."""
COMPILE_TIMEOUT_SECONDS = 60.0
STACK_LIMIT_BYTES = 4 << 20
"""Half of the usual 8 MiB stack of a process; a kernel that wants more might not survive its first call."""


@dataclass(frozen=True, kw_only=True)
class _Lowered:
    """A request on its way: lowered, not compiled."""

    request: BuildRequest
    source: Source
    kernel: Kernel
    numerics: dict[str, str]
    lower_seconds: float

    @property
    def symbol(self) -> str:
        """Symbol in a library."""
        return symbol_of(self.source.source_sha256)


class CpuLowering:
    """Implements :class:`search.lowering.contract.Lowering` with TileLang's CPU dialect and a C compiler."""

    def emit(self, schedule: Schedule) -> Emitted:
        """The schedule as TileLang text. Raises UnsupportedError (a ValueError)."""
        return emit(schedule)

    def build(
        self,
        requests: Iterable[BuildRequest],
        store: str,
        *,
        fresh: bool = False,
        compile_timeout_seconds: float = COMPILE_TIMEOUT_SECONDS,
        progress: Callable[[], None] = lambda: None,
    ) -> Iterator[BuildResult]:
        """Results as they get ready, in any order; see :meth:`Lowering.build`. Raises ToolchainUnavailable, OSError."""
        kept = ArtifactStore(store)
        kept.folder.mkdir(parents=True, exist_ok=True)
        load()
        build = _Build(kept, fresh=fresh, timeout_seconds=compile_timeout_seconds, progress=progress)
        with ThreadPoolExecutor(max_workers=1, thread_name_prefix="compile") as compiling:
            running: list[Future[list[BuildResult]]] = []
            waiting: list[_Lowered] = []
            for request in requests:
                lowered = build.lowered(request)
                if isinstance(lowered, BuildResult):
                    yield lowered
                else:
                    waiting.append(lowered)
                # A fresh build is the witness that a batch's machine code is what a kernel alone would be.
                if fresh or len(waiting) >= BATCH:
                    running.append(compiling.submit(build.compiled, tuple(waiting)))
                    waiting.clear()
                while running and running[0].done():
                    yield from running.pop(0).result()
            if waiting:
                running.append(compiling.submit(build.compiled, tuple(waiting)))
            for future in running:
                yield from future.result()


class _Build:
    """One build call: what its steps share."""

    def __init__(
        self, store: ArtifactStore, *, fresh: bool, timeout_seconds: float, progress: Callable[[], None]
    ) -> None:
        self.store, self.fresh, self.cc = store, fresh, compiler()
        self.timeout_seconds, self.progress = timeout_seconds, progress
        self.header = HEADER.read_text()
        self.toolchain = _toolchain_key(self.cc)

    def lowered(self, request: BuildRequest) -> _Lowered | BuildResult:
        """The request's C text; or its result already, when it is illegal, refused by TileLang, or in the store."""
        started = time.perf_counter()
        try:
            case = resolve_case(request.case, admitted=True)
            schedule = build_schedule(case, Candidate.from_document(request.candidate))
            if isinstance(schedule, Rejected):
                return BuildResult(id=request.id, rejection=schedule)
            text = emit(schedule).tilelang_text
            numerics = describe_numerics(schedule)
        except InvalidInput as error:
            return _rejected(request, "invalid_request", {"errors": [problem.document() for problem in error.problems]})
        except UnsupportedError as error:
            return _rejected(request, "unsupported", {"message": str(error)})
        try:
            kernel = lower_text(text)
        except Exception as error:  # whatever TileLang raises is this candidate's, and only this candidate's
            return _rejected(request, "tilelang_error", {"type": type(error).__name__, "message": str(error)[-2000:]})
        source = self._source(text, kernel)
        seconds = time.perf_counter() - started
        self.store.save_source(source)
        found = None if self.fresh else self.store.find_build(self._key(source))
        if found is not None:
            # equal C may come from other text
            facts = replace(found[1], tilelang_sha256=_text_sha256(source))
            return BuildResult(id=request.id, artifact=found[0], facts=facts, lower_seconds=seconds)
        return _Lowered(request=request, source=source, kernel=kernel, numerics=numerics, lower_seconds=seconds)

    def compiled(self, batch: Sequence[_Lowered]) -> list[BuildResult]:
        """One compiler call for the batch (equal sources once), then a result for each member."""
        started = time.perf_counter()
        members = {one.symbol: Member(symbol=one.symbol, kernel=one.kernel) for one in batch}
        libraries, rejections = compile_members(
            list(members.values()), timeout_seconds=self.timeout_seconds, cc=self.cc, progress=self.progress
        )
        placed: dict[str, tuple[Library, str, str]] = {}
        for library, inside in libraries:
            sha256, path = self.store.save_library(library.data)
            placed |= {member.symbol: (library, sha256, path) for member in inside}
        seconds = (time.perf_counter() - started) / len(batch)
        return [self._result(one, placed, rejections, seconds) for one in batch]

    def _result(
        self,
        one: _Lowered,
        placed: dict[str, tuple[Library, str, str]],
        rejections: dict[str, Rejected],
        seconds: float,
    ) -> BuildResult:
        result = BuildResult(id=one.request.id, lower_seconds=one.lower_seconds, compile_seconds=seconds)
        if one.symbol in rejections:
            return replace(result, rejection=rejections[one.symbol])
        library, library_sha256, library_path = placed[one.symbol]
        function = library.facts[one.symbol]
        facts = _code_facts(one, function)
        if function.stack_bytes > STACK_LIMIT_BYTES:
            detail = {"stack_bytes": function.stack_bytes, "limit_bytes": STACK_LIMIT_BYTES}
            return replace(
                result, facts=facts, rejection=Rejected(stage="resources", reason="stack_limit", detail=detail)
            )
        artifact = Artifact(
            source_sha256=one.source.source_sha256,
            artifact_sha256=function.artifact_sha256,
            library_path=library_path,
            library_sha256=library_sha256,
            symbol=one.symbol,
            arguments=one.kernel.arguments,
        )
        self.store.save_build(self._key(one.source), artifact, facts)
        return replace(result, artifact=artifact, facts=facts)

    def _source(self, tilelang_text: str, kernel: Kernel) -> Source:
        c_text = HEADER_INCLUDE + "\n" + kernel.c_text
        flags = (*COMPILE_FLAGS, *LINK_FLAGS, *LIBRARIES)
        parts = json.dumps([c_text, self.header, flags])
        command = ("gcc", *COMPILE_FLAGS, *LINK_FLAGS, "kernel.c", "-o", "kernel.so", *LIBRARIES)
        return Source(
            source_sha256=hashlib.sha256(parts.encode()).hexdigest(),
            tilelang_text=tilelang_text,
            c_text=c_text,
            header_name=HEADER.name,
            header_text=self.header,
            build_command=command,
        )

    def _key(self, source: Source) -> str:
        return hashlib.sha256(f"{source.source_sha256} {self.toolchain}".encode()).hexdigest()


def _toolchain_key(cc: str) -> str:
    """What tells one compiler from another for the store: path, size, time of change."""
    stat = Path(cc).resolve().stat()
    return f"{Path(cc).resolve()} {stat.st_size} {stat.st_mtime_ns}"


def _code_facts(one: _Lowered, function: FunctionFacts) -> CodeFacts:
    source = one.source
    return CodeFacts(
        source_sha256=source.source_sha256,
        tilelang_sha256=_text_sha256(source),
        numerics=one.numerics,
        **vars(function),
    )


def _text_sha256(source: Source) -> str:
    return hashlib.sha256(source.tilelang_text.encode()).hexdigest()


def _rejected(request: BuildRequest, reason: str, detail: dict[str, object]) -> BuildResult:
    return BuildResult(id=request.id, rejection=Rejected(stage="compile", reason=reason, detail=detail))
