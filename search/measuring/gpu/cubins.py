"""From an artifact to launches: verify the cubin, load it, bind a kernel to addresses. No numpy."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from search.lowering.contract import Artifact, Launch
from search.measuring.gpu.driver import Call, Driver
from search.measuring.loading import LoadProblem
from search.outcome import Rejected

MOST_LOADED = 64
"""Cubins that stay loaded for the next kernel of their batch."""


def read_cubin(artifact: Artifact) -> tuple[bytes, Launch]:
    """The artifact's cubin, whole, and its launch. LoadProblem when the record or the file is not right."""
    if artifact.launch is None:
        raise _problem("no_launch", symbol=artifact.symbol, message="the artifact is no GPU kernel")
    try:
        data = Path(artifact.library_path).read_bytes()
    except OSError as error:
        raise _problem("artifact_missing", path=artifact.library_path, message=str(error)) from None
    found = hashlib.sha256(data).hexdigest()
    if found != artifact.library_sha256:
        raise _problem("artifact_changed", path=artifact.library_path, sha256=found, expected=artifact.library_sha256)
    return data, artifact.launch


class Cubins:
    """The cubins that are loaded, the last ones used; a batch of kernels shares one."""

    def __init__(self, driver: Driver) -> None:
        self._driver = driver
        self._modules: dict[tuple[str, str], Any] = {}

    def kernel(self, artifact: Artifact, dims: Mapping[str, int], *, rows: int) -> BoundKernel:
        """The artifact's kernel. LoadProblem if the file or the launch is wrong; DriverFault."""
        key = (artifact.library_path, artifact.library_sha256)
        module, launch = self._modules.pop(key, None), artifact.launch
        if module is None or launch is None:
            data, launch = read_cubin(artifact)
            module = self._driver.load(data)
        self._modules[key] = module  # the last one used is the last one to go
        while len(self._modules) > MOST_LOADED:
            del self._modules[next(iter(self._modules))]
        function = self._driver.function(module, artifact.symbol, dynamic_shared_bytes=launch.dynamic_shared_bytes)
        return BoundKernel(self._driver, function, artifact, launch, dims, rows)

    def clear(self) -> None:
        """Unload those that no kernel needs any more."""
        self._modules.clear()


class BoundKernel:
    """A kernel with its dims and grid; addresses are still to come."""

    def __init__(
        self, driver: Driver, function: Any, artifact: Artifact, launch: Launch, dims: Mapping[str, int], rows: int
    ) -> None:
        self._driver, self._function, self._artifact, self._launch = driver, function, artifact, launch
        self._dims = dims
        self._blocks = -(-rows // launch.rows_per_block)

    def at(self, addresses: Mapping[str, int]) -> Call:
        """A launch over tensors at these addresses. LoadProblem for an argument that the case does not have."""
        arguments = []
        for argument in self._artifact.arguments:
            known = addresses if argument.kind == "tensor" else self._dims
            if argument.name not in known:
                raise _problem("unknown_argument", argument=argument.name, kind=argument.kind, allowed=sorted(known))
            arguments.append((argument, known[argument.name]))
        return self._driver.bind(
            self._function,
            blocks=self._blocks,
            threads=self._launch.threads_per_block,
            arguments=arguments,
        )


def _problem(reason: str, **detail: object) -> LoadProblem:
    return LoadProblem(Rejected(stage="runtime", reason=reason, detail=detail))
