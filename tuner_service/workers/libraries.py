"""Where the library of a built kernel is on this machine; one that every store lost is built again."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace

from search.errors import ArtifactLost, InvalidInput
from search.lowering.artifact_cache import ArtifactCache
from search.lowering.builder import Builder
from search.lowering.contract import Artifact, BuildRequest

log = logging.getLogger(__name__)


class Libraries:
    """Of one device. Callable as ``search.perform.Located``, for as long as ``cancelled`` does not say so."""

    def __init__(
        self,
        artifacts: ArtifactCache,
        builder: Callable[[], Builder],
        *,
        sources: bool,
        compile_timeout_seconds: float,
        cancelled: Callable[[], bool],
    ) -> None:
        """``builder`` makes a new one for the device. ``sources``: what is built is then simulated from its source."""
        self._artifacts, self._builder, self._sources = artifacts, builder, sources
        self._timeout_seconds, self._cancelled = compile_timeout_seconds, cancelled

    def __call__(self, request: BuildRequest, artifact: Artifact) -> Artifact:
        """The artifact with a path. ArtifactLost when it is nowhere and a new build is not the same machine code;
        Cancelled, ToolchainUnavailable, ChildFailed, ArtifactsUnavailable."""
        found = self._artifacts.located(artifact)
        if found is not None and (not self._sources or self._has_source(artifact)):
            return found
        log.warning("artifact %s of %s is in no store, whole: building it again", artifact.library_sha256, request.id)
        return self._rebuilt(request, artifact)

    def _has_source(self, artifact: Artifact) -> bool:
        try:
            self._artifacts.load_source(artifact.source_sha256)
        except InvalidInput:
            return False
        return True

    def _rebuilt(self, request: BuildRequest, artifact: Artifact) -> Artifact:
        """In a new process, the stores bypassed: what they remember of this build led nowhere."""
        builder = self._builder()
        try:
            (result,) = builder.build(
                [request], timeout_seconds=self._timeout_seconds, cancelled=self._cancelled, fresh=True
            )
        finally:
            builder.close()
        lost = f"the artifact stores lost the library {artifact.library_sha256} of {request.id}, and a new build"
        if result.artifact is None:
            raise ArtifactLost(f"{lost} is rejected: {result.rejection and result.rejection.document()}")
        if result.artifact.artifact_sha256 != artifact.artifact_sha256:
            raise ArtifactLost(
                f"{lost} has the machine code {result.artifact.artifact_sha256}, not {artifact.artifact_sha256}"
            )
        return replace(result.artifact, source_sha256=artifact.source_sha256)
