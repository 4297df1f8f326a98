"""What was built before: an artifact store with records of what each request became, shared by many processes.

::

    jit/<key>.json      the Artifact that a request became; the key says all that could change it
    libraries/…         the artifact store (search.lowering.store)

A frozen winner is found by its case and candidate together with its source and machine code, whatever compiler this
machine has now: the hashes alone are what the entry says of itself, and an edited one may name another's. Explicit
parameters are found by case, candidate and the toolchain's fingerprint.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from pathlib import Path
from typing import Any

from catalogs import sha256_hex
from catalogs.placing import place
from search.lowering.contract import Artifact, BuildRequest
from search.lowering.cpu import toolchain

CACHE_VARIABLE = "TUNER_JIT_CACHE"


def default_folder() -> Path:
    """``TUNER_JIT_CACHE``, else ``tuner/jit`` in the user's cache folder."""
    named = os.environ.get(CACHE_VARIABLE)
    if named:
        return Path(named)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "tuner" / "jit"


def frozen_key(request: BuildRequest, *, program_digest: str, source_sha256: str, artifact_sha256: str) -> str:
    """Key of the machine code that this request, with the program of that digest, once became by way of this source."""
    described: dict[str, Any] = {"case": dict(request.case), "candidate": dict(request.candidate)}
    return sha256_hex({**described, "program": program_digest, "source": source_sha256, "code": artifact_sha256})


class Cache:
    """One cache folder, which is an artifact store too. Any number of processes may use it."""

    def __init__(self, folder: str | os.PathLike[str] | None = None) -> None:
        self.folder = Path(folder if folder is not None else default_folder()).expanduser().resolve()

    def request_key(self, request: BuildRequest, *, architecture: str | None = None) -> str:
        """Key of a request under the toolchain that this machine has now, or that of a GPU architecture named."""
        self.folder.mkdir(parents=True, exist_ok=True)
        described: dict[str, Any] = {"case": dict(request.case), "candidate": dict(request.candidate)}
        return sha256_hex({**described, "toolchain": self._fingerprint(architecture)})

    def _fingerprint(self, architecture: str | None) -> dict[str, Any]:
        if architecture is None:
            return toolchain.fingerprint(cache_dir=self.folder)
        from search.lowering.cuda.toolchain import fingerprint  # not what a CPU kernel needs

        return fingerprint(architecture, cache_dir=self.folder)

    def find(self, key: str) -> Artifact | None:
        """What was kept under a key, if its library is there, whole. A damaged library is removed, to be built anew."""
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
            artifact = Artifact.from_document(json.loads(self._record(key).read_bytes()))
            # the record may come from before the folder was moved
            suffix = "so" if artifact.architecture is None else "cubin"
            path = self.folder / "libraries" / f"{artifact.library_sha256}.{suffix}"
            if hashlib.sha256(path.read_bytes()).hexdigest() == artifact.library_sha256:
                return Artifact(**{**vars(artifact), "library_path": str(path)})
            path.unlink()
        return None

    def keep(self, key: str, artifact: Artifact) -> None:
        """Remember what a request became."""
        place(self._record(key), json.dumps(artifact.document(), sort_keys=True).encode())

    def _record(self, key: str) -> Path:
        return self.folder / "jit" / f"{key}.json"
