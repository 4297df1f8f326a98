"""The CPU lowering: requests in, artifacts out."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cache
from pathlib import Path

from catalogs import sha256_hex, this_device
from search.lowering.batched import BatchedBuild, Built, Lowered
from search.lowering.contract import Artifact, BuildRequest, BuildResult, CodeFacts, Emitted, Fetch, Source
from search.lowering.cpu.compile import Member, compile_members
from search.lowering.cpu.dialect import HEADER_INCLUDE, Kernel, lower_text
from search.lowering.cpu.emit import emit
from search.lowering.cpu.numerics import describe_numerics
from search.lowering.cpu.toolchain import COMPILE_FLAGS, HEADER, LIBRARIES, LINK_FLAGS, check, compiler, fingerprint
from search.outcome import Rejected
from search.planning.schedule import Schedule

COMPILE_TIMEOUT_SECONDS = 60.0
STACK_LIMIT_BYTES = 4 << 20
"""Half of the usual 8 MiB stack of a process; a kernel that wants more might not survive its first call."""


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
        fetch: Fetch | None = None,
    ) -> Iterator[BuildResult]:
        """Results as they get ready, in any order; see :meth:`Lowering.build`. Raises ToolchainUnavailable, OSError."""
        build = _Build(
            store, fresh=fresh, compile_timeout_seconds=compile_timeout_seconds, progress=progress, fetch=fetch
        )
        yield from build.results(requests)


class _Build(BatchedBuild[Kernel]):
    """One build call."""

    batch_size = 6
    """Most of the saving of a shared call, and still something to overlap with."""

    def __init__(
        self,
        store: str,
        *,
        fresh: bool,
        compile_timeout_seconds: float,
        progress: Callable[[], None],
        fetch: Fetch | None,
    ) -> None:
        super().__init__(
            store, fresh=fresh, compile_timeout_seconds=compile_timeout_seconds, progress=progress, fetch=fetch
        )
        self.cc = compiler()
        self.header = HEADER.read_text()
        here = _toolchain_key(self.cc)
        self.toolchain = here if fetch is None else _shared_toolchain_key(here, self.store.folder)

    def emit(self, schedule: Schedule) -> str:
        return emit(schedule).tilelang_text

    def lower(self, tilelang_text: str, schedule: Schedule) -> Kernel:
        return lower_text(tilelang_text)

    def numerics(self, schedule: Schedule) -> dict[str, str]:
        return describe_numerics(schedule)

    def source(self, tilelang_text: str, kernel: Kernel) -> Source:
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

    def compile(self, kernels: Mapping[str, Lowered[Kernel]]) -> dict[str, Built]:
        members = [Member(symbol=symbol, kernel=one.kernel) for symbol, one in kernels.items()]
        libraries, rejections = compile_members(
            members, timeout_seconds=self.compile_timeout_seconds, cc=self.cc, progress=self.progress, broken=check
        )
        built = {symbol: Built(rejection=rejection) for symbol, rejection in rejections.items()}
        for library, inside in libraries:
            sha256, path = self.store.save_library(library.data)
            for member in inside:
                function, one = library.facts[member.symbol], kernels[member.symbol]
                facts = CodeFacts(source_sha256=one.source.source_sha256, **vars(function))
                if function.stack_bytes > STACK_LIMIT_BYTES:
                    detail = {"stack_bytes": function.stack_bytes, "limit_bytes": STACK_LIMIT_BYTES}
                    rejected = Rejected(stage="resources", reason="stack_limit", detail=detail)
                    built[member.symbol] = Built(facts=facts, rejection=rejected)
                    continue
                artifact = Artifact(
                    source_sha256=one.source.source_sha256,
                    artifact_sha256=function.artifact_sha256,
                    library_path=path,
                    library_sha256=sha256,
                    symbol=member.symbol,
                    arguments=one.kernel.arguments,
                )
                built[member.symbol] = Built(facts=facts, artifact=artifact)
        return built


def _toolchain_key(cc: str) -> str:
    """What tells one compiler from another for the store of one machine: path, size, time of change."""
    stat = Path(cc).resolve().stat()
    return f"{Path(cc).resolve()} {stat.st_size} {stat.st_mtime_ns}"


@cache
def _shared_toolchain_key(_here: str, cache_dir: Path) -> str:
    """What tells one from another among machines: everything in the fingerprint, and the CPU that ``native`` means.

    Asked once for each compiler that this process finds (``_here``): it takes some questions to the compiler.
    """
    return sha256_hex({"toolchain": fingerprint(cache_dir=cache_dir), "cpu": this_device().digest})
