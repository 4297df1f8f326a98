"""What checks candidates on a device that times nothing."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Protocol

from search.errors import ArtifactLost, ChildFailed, InvalidInput
from search.lowering.artifact_cache import ArtifactCache
from search.lowering.cuda.texts import complete_source
from search.measuring.protocol import MeasureItem, MeasureResult
from search.measuring.simt.protocol import SimulationItem
from search.measuring.simt.run import Simulator
from search.measuring.workbench import Asked
from search.program.case import Case


class Checker(Protocol):
    """Compares compiled candidates with the oracle. One check at a time."""

    def check(self, case: Case, items: Sequence[MeasureItem], *, cancelled: Asked) -> Iterator[MeasureResult]:
        """One result for each item, in any order: checks, or a rejection.

        Raises Cancelled, ToolchainUnavailable, ArtifactLost, ChildFailed, ArtifactsUnavailable.
        """
        ...

    def close(self) -> None:
        """Ends its children. Idempotent."""
        ...


class SimulationChecker:
    """Checks CUDA artifacts by simulating the text that they were compiled from; see ``search.measuring.simt``."""

    def __init__(
        self,
        artifacts: Path | ArtifactCache,
        work_dir: Path,
        *,
        cpus: Sequence[int] = (),
        child_timeout_seconds: float = 60.0,
    ) -> None:
        """``artifacts``: the store that they were built into, or a cache in front of it."""
        self._artifacts = artifacts if isinstance(artifacts, ArtifactCache) else ArtifactCache(artifacts)
        self._simulator = Simulator(work_dir, cpus=cpus, child_timeout_seconds=child_timeout_seconds)

    def __enter__(self) -> SimulationChecker:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def check(self, case: Case, items: Sequence[MeasureItem], *, cancelled: Asked) -> Iterator[MeasureResult]:
        """See :meth:`Checker.check`. Nothing is timed."""
        yield from self._simulator.check(case, [self._item(item) for item in items], cancelled=cancelled)

    def close(self) -> None:
        """Ends its children. Idempotent."""
        self._simulator.close()

    def _item(self, item: MeasureItem) -> SimulationItem:
        artifact = item.artifact
        if artifact.launch is None:
            raise ChildFailed(f"the artifact of {item.id} has no launch: it is no CUDA kernel")
        try:
            source = self._artifacts.load_source(artifact.source_sha256)
        except InvalidInput:
            raise ArtifactLost(f"the artifact store lost the source {artifact.source_sha256} of {item.id}") from None
        return SimulationItem(
            id=item.id,
            cuda_text=complete_source(source, artifact.symbol),
            symbol=artifact.symbol,
            arguments=artifact.arguments,
            launch=artifact.launch,
        )
