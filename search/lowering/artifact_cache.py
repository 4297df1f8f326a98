"""This machine's artifact store in front of one that machines share, so that a step may run where nothing was built.

::

    texts/<sha256>        header texts, which thousands of sources have in common
    sources/<source sha256>
    libraries/<library sha256>
    built/<build key>     what a source became under one toolchain on one kind of CPU

Everything is verified when it comes from there. What is damaged counts as missing, and is put anew when it was built
again. Without a shared store this is the machine's own alone.
"""

from __future__ import annotations

import hashlib
import json
import logging
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from search.errors import ArtifactTooLarge, InvalidInput
from search.lowering.blobs import Blobs
from search.lowering.contract import Artifact, BuildRequest, BuildResult, CodeFacts, Source
from search.lowering.sealing import most_sealed_bytes, sealed, unsealed
from search.lowering.store import ArtifactStore

log = logging.getLogger(__name__)

Located = Callable[[BuildRequest, Artifact], Artifact]
"""An artifact, and the request that it came from → the same with a path on this machine. ArtifactLost, and what a
Builder raises."""
LIMIT_BYTES = 256 << 20
"""Of one artifact; a library of six kernels has some 50 kB."""
MOST_NAMES_KNOWN = 200_000
"""Names of blobs that are known to be in the shared store: 20 MB of memory at most."""
KNOWN_SECONDS = 3600.0
"""What this process put counts as there for so long; put again, it is young again, and nobody sweeps it away. A blob
that it only read is put too: it is about to be referred to, and may be old."""


class ArtifactCache:
    """Thread-safe; any number of processes may use the same folder and the same shared store.

    Methods that look into the shared store raise what :class:`Blobs` raises.
    """

    def __init__(self, folder: str | Path, shared: Blobs | None = None, *, limit_bytes: int = LIMIT_BYTES) -> None:
        self.store = ArtifactStore(folder)
        self._shared, self._limit_bytes = shared, limit_bytes
        self._lock = threading.Lock()
        self._there: dict[str, float] = {}

    @property
    def is_shared(self) -> bool:
        """Whether other machines see what is built here."""
        return self._shared is not None

    @property
    def shared(self) -> Blobs | None:
        """The store that machines share, if there is one."""
        return self._shared

    def fetch_build(self, key: str) -> None:
        """Brings what another machine built under this key into this machine's store, if it is whole."""
        record = self._get(f"built/{key}")
        if record is None:
            return
        try:
            document = json.loads(record)
            artifact = Artifact.from_document(document["artifact"])
            facts = CodeFacts.from_document(document["facts"])
        except (ValueError, KeyError, TypeError):
            log.warning("the shared artifact store has a damaged record of the build %s", key)
            return
        if self.located(artifact) is not None:
            self.store.save_build(key, artifact, facts)

    def located(self, artifact: Artifact) -> Artifact | None:
        """The artifact with the path of its library on this machine, verified; None when no store has it, whole."""
        suffix = "cubin" if artifact.architecture else "so"
        data = self.store.load_library(artifact.library_sha256) or self._fetched_library(artifact.library_sha256)
        if data is None:
            return None
        _, path = self.store.save_library(data, suffix=suffix)
        return replace(artifact, library_path=path)

    def load_library(self, sha256: str) -> bytes | None:
        """A library's bytes, verified; None when no store has it, whole."""
        return self.store.load_library(sha256) or self._fetched_library(sha256)

    def load_source(self, source_sha256: str) -> Source:
        """A source. InvalidInput when no store has it."""
        try:
            return self.store.load_source(source_sha256)
        except InvalidInput:
            source = self._fetched_source(source_sha256)
            if source is None:
                raise
        try:
            self.store.save_source(source)
        except OSError as error:  # a full disk: whoever reads needs no copy
            log.warning("a source could not be kept on this machine: %s", error)
        return source

    def publish(self, result: BuildResult) -> None:
        """Puts what a build left in this machine's store into the shared one. ArtifactTooLarge; nothing is put then.

        The record of the build comes last, so that it names nothing that is not there.
        """
        artifact, key = result.artifact, result.build_key
        if self._shared is None or artifact is None or key is None:
            return
        data = self.store.load_library(artifact.library_sha256)
        if data is None:
            raise OSError(f"the library {artifact.library_sha256} that was just built is not in {self.store.folder}")
        source = asdict(self.store.load_source(artifact.source_sha256))
        header = source.pop("header_text").encode()
        source["header_sha256"] = hashlib.sha256(header).hexdigest()
        record = {"artifact": artifact.document(), "facts": result.facts and result.facts.document()}
        self._put(
            {
                f"libraries/{artifact.library_sha256}": data,
                f"texts/{source['header_sha256']}": header,
                f"sources/{artifact.source_sha256}": _encode(source),
                f"built/{key}": _encode(record),
            }
        )

    def close(self) -> None:
        """Lets go of the shared store's connections. Idempotent."""
        if self._shared is not None:
            self._shared.close()

    def _fetched_library(self, sha256: str) -> bytes | None:
        data = self._get(f"libraries/{sha256}")
        if data is not None and hashlib.sha256(data).hexdigest() != sha256:
            self._damaged(f"libraries/{sha256}")
            return None
        return data

    def _fetched_source(self, source_sha256: str) -> Source | None:
        name = f"sources/{source_sha256}"
        data = self._get(name)
        if data is None:
            return None
        try:
            fields = json.loads(data)
            header = self._get(f"texts/{fields.pop('header_sha256')}")
            if header is None or fields["source_sha256"] != source_sha256:
                return None
            command = tuple(fields.pop("build_command"))
            return Source(**fields, header_text=header.decode(), build_command=command)
        except (ValueError, KeyError, TypeError):
            self._damaged(name)
            return None

    def _get(self, name: str) -> bytes | None:
        if self._shared is None or not _is_name(name):
            return None
        blob = self._shared.get(name, limit_bytes=most_sealed_bytes(self._limit_bytes))
        data = None if blob is None else unsealed(blob, limit_bytes=self._limit_bytes)
        if blob is not None and data is None:
            self._damaged(name)
        if data is None:
            with self._lock:
                self._there.pop(name, None)
        return data

    def _put(self, data: Mapping[str, bytes]) -> None:
        assert self._shared is not None
        for name, one in data.items():
            if len(one) > self._limit_bytes:
                raise ArtifactTooLarge(f"{name} has {len(one)} bytes, and the artifact store takes {self._limit_bytes}")
        with self._lock:
            oldest = time.monotonic() - KNOWN_SECONDS
            new = {name: sealed(one) for name, one in data.items() if self._there.get(name, oldest) <= oldest}
        if not new:
            return
        self._shared.put(new)
        with self._lock:
            if len(self._there) > MOST_NAMES_KNOWN:
                self._there.clear()
            self._there.update(dict.fromkeys(new, time.monotonic()))

    def _damaged(self, name: str) -> None:
        log.warning("the shared artifact store has damaged bytes under %s; they count as missing", name)
        with self._lock:
            self._there.pop(name, None)


def built_here(_: BuildRequest, artifact: Artifact) -> Artifact:
    """``Located`` of a driver that does everything in one process: the path is the one that the build gave."""
    return artifact


def _is_name(name: str) -> bool:
    """Whether it is one of ours: a kind and a sha256 in hex."""
    key = name.partition("/")[2]
    return len(key) == 64 and set(key) <= set("0123456789abcdef")


def _encode(document: Mapping[str, Any]) -> bytes:
    return json.dumps(document, sort_keys=True, separators=(",", ":")).encode()
