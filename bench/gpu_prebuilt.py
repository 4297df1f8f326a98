"""What ``gpu_check --prebuild`` compiled, carried to a machine that has the GPU and neither TileLang nor a compiler.

``prebuilt-<architecture>.json`` in the work directory names the result of each request; cubins lie in its artifact
store. It counts for the lowering sources that it was made with, and for no others.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from bench.gpu_cases import Build
from catalogs import sha256_hex
from search.lowering.contract import BuildRequest, BuildResult
from search.lowering.sources import lowering_sha256


def keep_built(
    work_dir: Path, architecture: str, requests: Sequence[BuildRequest], results: Mapping[str, BuildResult]
) -> Path:
    """Write down what each request became; the file."""
    documents = {_key(one): results[one.id].document() for one in requests if one.id in results}
    path = _path(work_dir, architecture)
    path.write_text(json.dumps({"lowering_sha256": lowering_sha256("cuda"), "results": documents}))
    return path


def carried(work_dir: Path, architecture: str, compile_rest: Build, say: Callable[[str], None] = print) -> Build:
    """A Build that takes what was carried here, whole, and compiles the rest."""

    def build(requests: Sequence[BuildRequest]) -> Iterator[BuildResult]:
        known = _known(work_dir, architecture, say)
        rest: list[BuildRequest] = []
        for request in requests:
            document = known.get(_key(request))
            result = None if document is None else _here(work_dir, request, BuildResult.from_document(document))
            if result is None:
                rest.append(request)
            else:
                yield result
        say(f"{len(requests) - len(rest)} of {len(requests)} were carried here")
        if rest:
            yield from compile_rest(rest)

    return build


def _known(work_dir: Path, architecture: str, say: Callable[[str], None]) -> Mapping[str, Any]:
    try:
        kept = json.loads(_path(work_dir, architecture).read_bytes())
    except FileNotFoundError:
        return {}
    if kept["lowering_sha256"] != lowering_sha256("cuda"):
        say(f"{_path(work_dir, architecture)} was made by other sources: everything is compiled anew")
        return {}
    results: Mapping[str, Any] = kept["results"]
    return results


def _here(work_dir: Path, request: BuildRequest, result: BuildResult) -> BuildResult | None:
    """The result with its cubin where it lies now; None when it was not carried. Who loads it verifies it."""
    artifact = result.artifact
    if artifact is None:
        return replace(result, id=request.id)
    path = (work_dir / "artifacts" / "libraries" / Path(artifact.library_path).name).resolve()
    return replace(result, id=request.id, artifact=replace(artifact, library_path=str(path))) if path.exists() else None


def _key(request: BuildRequest) -> str:
    return sha256_hex({"case": dict(request.case), "candidate": dict(request.candidate)})


def _path(work_dir: Path, architecture: str) -> Path:
    return work_dir / f"prebuilt-{architecture}.json"
