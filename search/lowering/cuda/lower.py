"""The CUDA lowering: requests in, cubins out."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path

from search.errors import ToolchainUnavailable
from search.lowering.batched import BatchedBuild, Built, Lowered
from search.lowering.contract import Artifact, BuildRequest, BuildResult, CodeFacts, Emitted, Fetch, Source
from search.lowering.cuda.architectures import ARCHITECTURES, unknown_limits
from search.lowering.cuda.compile import BATCH, Member, compile_members
from search.lowering.cuda.compiler import CudaCompiler
from search.lowering.cuda.dialect import HEADER, CudaKernel, header_text, lower_text
from search.lowering.cuda.emit import emit
from search.lowering.cuda.facts import KernelFacts, code_facts
from search.lowering.cuda.mapping import MappingError, check_mapping
from search.lowering.cuda.numerics import describe_numerics
from search.lowering.cuda.nvcc import command_by_hand
from search.lowering.cuda.passes import planned_load_sites
from search.lowering.cuda.resources import resource_rejection, spill_rejection
from search.lowering.cuda.toolchain import cuda_compiler, failing, toolchain_key
from search.outcome import Rejected
from search.planning.schedule import Schedule

COMPILE_TIMEOUT_SECONDS = 60.0


class CudaLowering:
    """Implements :class:`search.lowering.contract.Lowering` for one GPU architecture, with nvcc or NVRTC."""

    def __init__(self, architecture: str) -> None:
        """Raises ToolchainUnavailable for an architecture whose limits are not known."""
        reason = unknown_limits(architecture)
        if reason is not None:
            raise ToolchainUnavailable(reason)
        self.architecture = architecture
        self._held: tuple[CudaCompiler, str] | None = None
        """The compiler, with what tells its toolchain from others."""

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
        compiler, toolchain = self._compiler(store)
        build = _Build(
            store,
            fresh=fresh,
            compile_timeout_seconds=compile_timeout_seconds,
            progress=progress,
            fetch=fetch,
            architecture=self.architecture,
            compiler=compiler,
            toolchain=toolchain,
        )
        yield from build.results(requests)

    def _compiler(self, store: str) -> tuple[CudaCompiler, str]:
        """The compiler of the last build, which may hold precompiled headers, unless another is installed by now."""
        found = cuda_compiler()
        try:
            toolchain = toolchain_key(found, self.architecture, Path(store))
        except BaseException:
            found.close()
            raise
        if self._held is not None and self._held[1] == toolchain:
            found.close()
            return self._held
        if self._held is not None:
            self._held[0].close()
        self._held = found, toolchain
        return self._held


class _Build(BatchedBuild[CudaKernel]):
    """One build call."""

    batch_size = BATCH

    def __init__(
        self,
        store: str,
        *,
        fresh: bool,
        compile_timeout_seconds: float,
        progress: Callable[[], None],
        fetch: Fetch | None,
        architecture: str,
        compiler: CudaCompiler,
        toolchain: str,
    ) -> None:
        super().__init__(
            store, fresh=fresh, compile_timeout_seconds=compile_timeout_seconds, progress=progress, fetch=fetch
        )
        self.architecture, self.compiler, self.toolchain = architecture, compiler, toolchain

    def emit(self, schedule: Schedule) -> str:
        return emit(schedule).tilelang_text

    def lower(self, tilelang_text: str, schedule: Schedule) -> CudaKernel | Rejected:
        kernel = lower_text(tilelang_text, self.architecture)
        try:
            check_mapping(kernel, schedule)
        except MappingError as error:
            return Rejected(stage="compile", reason="mapping_not_kept", detail={"message": str(error)})
        return replace(kernel, planned_load_sites=planned_load_sites(schedule))

    def numerics(self, schedule: Schedule) -> dict[str, str]:
        return describe_numerics(schedule)

    def source(self, tilelang_text: str, kernel: CudaKernel) -> Source:
        command = command_by_hand(self.architecture)
        parts = json.dumps([kernel.cuda_text, header_text(), command, vars(kernel.launch)])
        return Source(
            source_sha256=hashlib.sha256(parts.encode()).hexdigest(),
            tilelang_text=tilelang_text,
            c_text=kernel.exported,
            header_name=HEADER.name,
            header_text=header_text(),
            build_command=command,
        )

    def spills(self, facts: CodeFacts) -> Rejected | None:
        return spill_rejection(facts)

    def compile(self, kernels: Mapping[str, Lowered[CudaKernel]]) -> dict[str, Built]:
        members = [Member(symbol=symbol, cuda_text=one.kernel.renamed(symbol)) for symbol, one in kernels.items()]
        cubins, rejections = compile_members(
            members,
            architecture=self.architecture,
            compiler=self.compiler,
            timeout_seconds=self.compile_timeout_seconds,
            progress=self.progress,
            broken=self._broken,
        )
        built = {symbol: Built(rejection=rejection) for symbol, rejection in rejections.items()}
        for cubin, inside in cubins:
            sha256, path = self.store.save_library(cubin.data, suffix="cubin")
            for member in inside:
                built[member.symbol] = self._built(kernels[member.symbol], cubin.facts[member.symbol], path, sha256)
        return built

    def _broken(self) -> str | None:
        return failing(self.compiler, self.architecture, timeout_seconds=self.compile_timeout_seconds)

    def _built(self, one: Lowered[CudaKernel], facts: KernelFacts, path: str, sha256: str) -> Built:
        launch, limits = one.kernel.launch, ARCHITECTURES[self.architecture]
        # Equal code that is launched otherwise is another candidate's: it is timed by itself.
        parts = json.dumps([facts.artifact_sha256, vars(launch)])
        artifact_sha256 = hashlib.sha256(parts.encode()).hexdigest()
        shown = code_facts(
            replace(facts, artifact_sha256=artifact_sha256),
            source_sha256=one.source.source_sha256,
            tilelang_sha256=one.text_sha256,
            numerics=one.numerics,
            limits=limits,
            threads_per_block=launch.threads_per_block,
            dynamic_shared_bytes=launch.dynamic_shared_bytes,
            planned_load_sites=one.kernel.planned_load_sites,
        )
        rejected = resource_rejection(
            facts,
            limits=limits,
            threads_per_block=launch.threads_per_block,
            dynamic_shared_bytes=launch.dynamic_shared_bytes,
        )
        if rejected is not None:
            return Built(facts=shown, rejection=rejected)
        artifact = Artifact(
            source_sha256=one.source.source_sha256,
            artifact_sha256=artifact_sha256,
            library_path=path,
            library_sha256=sha256,
            symbol=one.symbol,
            arguments=one.kernel.arguments,
            launch=launch,
            architecture=self.architecture,
        )
        return Built(facts=shown, artifact=artifact)
