"""A build call of any target: requests are lowered one after the other, while the last ones are being compiled.

A target says how a text is lowered, what a batch is compiled with, and what came of each kernel; what is found in the
store, who is rejected for what, and the order of things are the same for all.
"""

from __future__ import annotations

import hashlib
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Generic, TypeVar

from search.errors import InvalidInput
from search.lowering.contract import Artifact, BuildRequest, BuildResult, CodeFacts, Fetch, Source, symbol_of
from search.lowering.expressions import UnsupportedError
from search.lowering.modules import load
from search.lowering.store import ArtifactStore
from search.outcome import Rejected
from search.planning.build import build_schedule
from search.planning.schedule import Schedule
from search.program.resolve import resolve_case
from search.space.candidate import Candidate

K = TypeVar("K")
"""A target's lowered kernel."""


@dataclass(frozen=True, kw_only=True)
class Lowered(Generic[K]):
    """A request on its way: lowered, not compiled."""

    request: BuildRequest
    source: Source
    kernel: K
    numerics: dict[str, str]
    lower_seconds: float

    @property
    def symbol(self) -> str:
        """Symbol in a library."""
        return symbol_of(self.source.source_sha256)

    @property
    def text_sha256(self) -> str:
        """Of the TileLang text."""
        return _text_sha256(self.source)


@dataclass(frozen=True, kw_only=True)
class Built:
    """What came of one kernel: facts, and an artifact or a rejection."""

    facts: CodeFacts | None = None
    artifact: Artifact | None = None
    rejection: Rejected | None = None


class BatchedBuild(ABC, Generic[K]):
    """One build call. ``fresh`` reads nothing from the store and compiles every kernel alone."""

    batch_size: int
    toolchain: str
    """What tells one compiler, with its flags, from another in the store."""

    def __init__(
        self,
        store: str,
        *,
        fresh: bool,
        compile_timeout_seconds: float,
        progress: Callable[[], None],
        fetch: Fetch | None,
    ) -> None:
        self.store = ArtifactStore(store)
        self.fresh, self.compile_timeout_seconds, self.progress = fresh, compile_timeout_seconds, progress
        self.fetch = fetch

    @abstractmethod
    def emit(self, schedule: Schedule) -> str:
        """The schedule as TileLang text. Raises UnsupportedError."""

    @abstractmethod
    def lower(self, tilelang_text: str, schedule: Schedule) -> K | Rejected:
        """The text as the target's code. Raises whatever TileLang raises."""

    @abstractmethod
    def numerics(self, schedule: Schedule) -> dict[str, str]:
        """What the numbers may do, by name."""

    @abstractmethod
    def source(self, tilelang_text: str, kernel: K) -> Source:
        """Everything needed to build the kernel by hand."""

    def spills(self, facts: CodeFacts) -> Rejected | None:
        """The rejection of code that spills, where spills are forbidden; None when it does not, or nobody can tell."""
        return None

    @abstractmethod
    def compile(self, kernels: Mapping[str, Lowered[K]]) -> dict[str, Built]:
        """One compiler call for kernels by symbol; what came of each."""

    def results(self, requests: Iterable[BuildRequest]) -> Iterator[BuildResult]:
        """Results as they get ready, in any order. Raises ToolchainUnavailable, OSError."""
        self.store.folder.mkdir(parents=True, exist_ok=True)
        load()
        with ThreadPoolExecutor(max_workers=1, thread_name_prefix="compile") as compiling:
            running: list[Future[list[BuildResult]]] = []
            waiting: list[Lowered[K]] = []
            for request in requests:
                lowered = self._lowered(request)
                if isinstance(lowered, BuildResult):
                    yield lowered
                else:
                    waiting.append(lowered)
                # A fresh build is the witness that a batch's machine code is what a kernel alone would be.
                if waiting and (self.fresh or len(waiting) >= self.batch_size):
                    running.append(compiling.submit(self._compiled, tuple(waiting)))
                    waiting.clear()
                while running and running[0].done():
                    yield from running.pop(0).result()
            if waiting:
                running.append(compiling.submit(self._compiled, tuple(waiting)))
            for future in running:
                yield from future.result()

    def _lowered(self, request: BuildRequest) -> Lowered[K] | BuildResult:
        """The request's code; or its result already, when it is illegal, refused by TileLang, or in the store."""
        started = time.perf_counter()
        try:
            case = resolve_case(request.case, admitted=True)
            schedule = build_schedule(case, Candidate.from_document(request.candidate))
            if isinstance(schedule, Rejected):
                return BuildResult(id=request.id, rejection=schedule)
            text = self.emit(schedule)
            numerics = self.numerics(schedule)
        except InvalidInput as error:
            return _rejected(request, "invalid_request", {"errors": [problem.document() for problem in error.problems]})
        except UnsupportedError as error:
            return _rejected(request, "unsupported", {"message": str(error)})
        try:
            kernel = self.lower(text, schedule)
        except Exception as error:  # whatever TileLang raises is this candidate's, and only this candidate's
            return _rejected(request, "tilelang_error", {"type": type(error).__name__, "message": str(error)[-2000:]})
        if isinstance(kernel, Rejected):
            return BuildResult(id=request.id, rejection=kernel)
        source = self.source(text, kernel)
        seconds = time.perf_counter() - started
        self.store.save_source(source)
        key = self._key(source)
        found = None if self.fresh else self._found(key)
        if found is not None:
            # equal code may come from other text
            facts = replace(found[1], tilelang_sha256=_text_sha256(source))
            rejection = self._forbidden(request, facts)
            artifact = found[0] if rejection is None else None
            return BuildResult(
                id=request.id,
                artifact=artifact,
                facts=facts,
                rejection=rejection,
                lower_seconds=seconds,
                build_key=key,
            )
        return Lowered(request=request, source=source, kernel=kernel, numerics=numerics, lower_seconds=seconds)

    def _found(self, key: str) -> tuple[Artifact, CodeFacts] | None:
        """What was built under this key, here or on another machine."""
        found = self.store.find_build(key)
        if found is None and self.fetch is not None:
            self.fetch(key)
            found = self.store.find_build(key)
        return found

    def _compiled(self, batch: Sequence[Lowered[K]]) -> list[BuildResult]:
        """One compiler call for the batch (equal sources once), then a result for each member."""
        started = time.perf_counter()
        built = self.compile({one.symbol: one for one in batch})
        seconds = (time.perf_counter() - started) / len(batch)
        return [self._result(one, built[one.symbol], seconds) for one in batch]

    def _result(self, one: Lowered[K], built: Built, seconds: float) -> BuildResult:
        facts = built.facts and replace(built.facts, tilelang_sha256=one.text_sha256, numerics=one.numerics)
        key = self._key(one.source)
        rejection, artifact = built.rejection, built.artifact
        if artifact is not None:
            assert facts is not None
            self.store.save_build(key, artifact, facts)  # for whoever allows spills
            rejection = self._forbidden(one.request, facts)
        return BuildResult(
            id=one.request.id,
            artifact=artifact if rejection is None else None,
            facts=facts,
            rejection=rejection,
            lower_seconds=one.lower_seconds,
            compile_seconds=seconds,
            build_key=key,
        )

    def _forbidden(self, request: BuildRequest, facts: CodeFacts) -> Rejected | None:
        return None if request.spills_allowed else self.spills(facts)

    def _key(self, source: Source) -> str:
        return hashlib.sha256(f"{source.source_sha256} {self.toolchain}".encode()).hexdigest()


def _text_sha256(source: Source) -> str:
    return hashlib.sha256(source.tilelang_text.encode()).hexdigest()


def _rejected(request: BuildRequest, reason: str, detail: dict[str, object]) -> BuildResult:
    return BuildResult(id=request.id, rejection=Rejected(stage="compile", reason=reason, detail=detail))
