"""The service's side of lowering: a child process that builds, and can be killed at any moment."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from pathlib import Path
from typing import Any

from search.children.child import Child, ChildGone, ChildTimeout
from search.children.environment import passed_on
from search.errors import Cancelled, ChildFailed, ToolchainUnavailable
from search.lowering.artifact_cache import ArtifactCache
from search.lowering.contract import BuildRequest, BuildResult
from search.lowering.warm import WARM
from search.outcome import Rejected
from search.space.candidate import TargetKind

COMPILE_TIMEOUT_SECONDS = 60.0
"""One compiler call, at most."""
_COMPILE_SHARE = 0.8
"""Of the silence that is tolerated: a slow compiler is the child's to stop, so that only the guilty are rejected."""
_STARTS = 2


class Builder:
    """Builds candidates in a child that it owns; one build at a time. Close it, or the child stays until this ends.

    The artifact store directory is shared with whoever reads sources or loads libraries (see ``store.py``); a cache in
    front of a store that machines share is asked before anything is compiled, and told of what was.
    """

    def __init__(
        self,
        store_dir: str | Path | ArtifactCache,
        *,
        cpus: Sequence[int] | None = None,
        target: TargetKind = "cpu",
        architecture: str | None = None,
    ) -> None:
        self._cache = store_dir if isinstance(store_dir, ArtifactCache) else ArtifactCache(store_dir)
        self.store_dir = self._cache.store.folder
        self._cpus, self._target, self._architecture = tuple(cpus or ()), target, architecture
        self._child: Child | None = None
        self._child_key: Hashable = None
        """What the child was started with, but for the folder that TileLang may write to."""
        self._busy = False
        """True while the child has answers to come."""

    def build(
        self,
        requests: Sequence[BuildRequest],
        *,
        timeout_seconds: float,
        cancelled: Callable[[], bool],
        fresh: bool = False,
    ) -> Iterator[BuildResult]:
        """One result for each request, as they get ready, in any order.

        ``timeout_seconds`` is the longest silence of the child; then the request in flight is tried once more alone,
        and rejected ``compile``/``compile_timeout`` if it hangs again. A crash does the same with
        ``compiler_crashed``. ``fresh`` uses a new process and reads nothing from the store. What a result names is in
        the shared store, where there is one. Raises Cancelled, ToolchainUnavailable, ChildFailed, ArtifactsUnavailable,
        ArtifactTooLarge.
        """
        pending = {request.id: request for request in requests}
        if len(pending) != len(requests):
            raise ValueError("request ids must differ")
        suspects: list[BuildRequest] = []
        failed_starts = 0
        kept, self._child = (self._child, None) if fresh else (None, self._child)
        try:
            while pending or suspects:
                alone = not pending
                batch = [suspects.pop(0)] if alone else list(pending.values())
                in_flight: str | None = None
                try:
                    for kind, value in self._answers(batch, fresh, timeout_seconds, cancelled):
                        failed_starts = 0
                        if kind == "lowering":
                            in_flight = value
                        elif kind == "result":
                            result = BuildResult.from_document(value)
                            pending.pop(result.id, None)
                            batch = [request for request in batch if request.id != result.id]
                            self._cache.publish(result)
                            yield result
                    if batch:
                        raise ChildFailed(f"the lowering child left out {[request.id for request in batch]}")
                except _Ended as end:
                    if in_flight is None:
                        failed_starts += 1
                        if failed_starts >= _STARTS:
                            raise ChildFailed(f"the lowering child does not start: {end.detail}") from None
                        suspects = batch + suspects if alone else suspects
                    elif alone:
                        rejected = Rejected(stage="compile", reason=end.reason, detail=end.detail)
                        for request in batch:
                            yield BuildResult(id=request.id, rejection=rejected)
                    elif pending:
                        # Nobody is blamed before it has failed alone. When the one in flight was answered already,
                        # it was the compiler's call for others that ended the child: try the oldest.
                        suspect = in_flight if in_flight in pending else next(iter(pending))
                        suspects.append(pending.pop(suspect))
        finally:
            if fresh or self._busy:
                self._stop()
            if fresh:
                self._child = kept  # warm for the next build: a start imports the lowering, seconds

    def close(self) -> None:
        """Kill the child. The builder may be used again; it then starts another."""
        self._stop()

    def release(self) -> None:
        """As :meth:`close`, but leave the child to whoever builds next in this process, if that is soon."""
        child = self._child
        if child is None or self._busy or not child.alive:
            self._stop()
            return
        self._child = None
        WARM.keep(self._child_key, child)

    def _answers(
        self, batch: Sequence[BuildRequest], fresh: bool, timeout_seconds: float, cancelled: Callable[[], bool]
    ) -> Iterator[tuple[str, Any]]:
        """The child's answers to one command. Raises _Ended (the child is gone then) and what :meth:`build` raises."""
        if self._child is None or not self._child.alive:
            self._stop()
            # What was asked of others before is nothing to a build that reads the store, and too much for a fresh one.
            key = (self._cpus, *sorted(passed_on().items()))
            if fresh:
                self._child = self._start()
            else:
                self._child, self._child_key = WARM.take(key) or self._start(), key
        child = self._child
        command = {
            "requests": [request.document() for request in batch],
            "target": self._target,
            "architecture": self._architecture,
            "store": str(self.store_dir),
            "fresh": fresh,
            "shared": self._cache.is_shared,
            "compile_timeout_seconds": min(COMPILE_TIMEOUT_SECONDS, _COMPILE_SHARE * timeout_seconds),
        }
        self._busy = True
        try:
            child.send(command)
            while True:
                answer = child.receive(timeout_seconds=timeout_seconds, cancelled=cancelled)
                if cancelled():
                    raise Cancelled("build cancelled")
                kind, value = next(iter(answer.items()))
                if kind == "unavailable":
                    raise ToolchainUnavailable(value)
                if kind == "failed":
                    raise ChildFailed(value)
                if kind == "done":
                    self._busy = False
                    return
                if kind == "wanted":
                    self._cache.fetch_build(value)
                    child.send({"fetched": value})
                    continue
                yield kind, value
        except ChildTimeout:
            self._stop()
            raise _Ended("compile_timeout", {"limit_seconds": timeout_seconds}) from None
        except ChildGone as gone:
            self._stop()
            raise _Ended("compiler_crashed", gone.exit.document()) from None

    def _start(self) -> Child:
        # TileLang wants a place to write to when it is imported, and a service may have no home.
        cache = {"TILELANG_CACHE_DIR": str(self.store_dir / "tilelang")}
        return Child.start("search.lowering.child", cpus=self._cpus, environment=cache)

    def _stop(self) -> None:
        child, self._child, self._busy = self._child, None, False
        if child is not None:
            child.kill()


class _Ended(Exception):  # noqa: N818 - an event of the conversation, handled next to the call
    """The child ended, or was ended because it fell silent."""

    def __init__(self, reason: str, detail: dict[str, Any]) -> None:
        self.reason, self.detail = reason, detail
        super().__init__(reason)
