"""From an artifact to launches: verify the cubin, load it, bind a kernel to addresses. Child side; no numpy."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from search.lowering.contract import Artifact, Launch
from search.measuring.gpu.driver import Call, Driver
from search.measuring.loading import LoadProblem
from search.outcome import Rejected


class Cubins:
    """The cubins that are loaded; a batch of kernels shares one."""

    def __init__(self, driver: Driver) -> None:
        self._driver = driver
        self._modules: dict[tuple[str, str], Any] = {}

    def kernel(self, artifact: Artifact, dims: Mapping[str, int], *, rows: int) -> BoundKernel:
        """The artifact's kernel. LoadProblem if the file or the launch is wrong; DriverFault."""
        launch = artifact.launch
        if launch is None:
            raise _problem("no_launch", symbol=artifact.symbol, message="the artifact is no GPU kernel")
        function = self._driver.function(
            self._module(artifact), artifact.symbol, dynamic_shared_bytes=launch.dynamic_shared_bytes
        )
        return BoundKernel(self._driver, function, artifact, launch, dims, rows)

    def _module(self, artifact: Artifact) -> Any:
        key = (artifact.library_path, artifact.library_sha256)
        if key not in self._modules:
            try:
                data = Path(artifact.library_path).read_bytes()
            except OSError as error:
                raise _problem("artifact_missing", path=artifact.library_path, message=str(error)) from None
            found = hashlib.sha256(data).hexdigest()
            if found != artifact.library_sha256:
                raise _problem(
                    "artifact_changed", path=artifact.library_path, sha256=found, expected=artifact.library_sha256
                )
            self._modules[key] = self._driver.load(data)
        return self._modules[key]


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
            dynamic_shared_bytes=self._launch.dynamic_shared_bytes,
            arguments=arguments,
        )


def _problem(reason: str, **detail: object) -> LoadProblem:
    return LoadProblem(Rejected(stage="runtime", reason=reason, detail=detail))
