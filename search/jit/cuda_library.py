"""A compiled GPU kernel as a function that launches it on torch's current stream. Needs the ``cuda`` extra and a GPU.

A call enqueues one launch and returns: it allocates nothing on the device and waits for nothing, so it may be captured
in a CUDA graph. As with any operator, tensors made on another stream need torch's ``record_stream``.
"""

from __future__ import annotations

import ctypes
import hashlib
from pathlib import Path
from typing import Any

from search.errors import DeviceUnavailable
from search.jit.errors import LaunchFailed, LoadFailed
from search.jit.gpu import Gpu
from search.jit.library import Function
from search.lowering.contract import Artifact, Launch

_BLOCKS_KEPT = 1024


def runs_on(code: str | None, device: str) -> bool:
    """Whether machine code of one architecture runs on a device of another: within a major version, upwards."""
    if code is None or not (code.startswith("sm_") and code[3:].isdigit()):
        return code == device
    made, present = divmod(int(code[3:]), 10), divmod(int(device[3:]), 10)
    return made[0] == present[0] and made[1] <= present[1]


def load_cuda(artifact: Artifact, *, gpu: Gpu, row_dim: str, rows: int) -> Function:
    """The artifact's kernel on a GPU. The function takes what the artifact's arguments say.

    LoadFailed when the file, its architecture, or the symbol is not right. ``rows``: where no argument is ``row_dim``.
    """
    launch = artifact.launch
    if launch is None:
        raise LoadFailed(f"{artifact.symbol}: its record has no launch, so it is no GPU kernel")
    if not runs_on(artifact.architecture, gpu.architecture):
        raise LoadFailed(f"{artifact.symbol}: built for {artifact.architecture}, and this GPU is {gpu.architecture}")
    try:
        data = Path(artifact.library_path).read_bytes()
    except OSError as error:
        raise LoadFailed(f"{artifact.library_path}: cannot be loaded: {error}") from None
    found = hashlib.sha256(data).hexdigest()
    if found != artifact.library_sha256:
        raise LoadFailed(
            f"{artifact.library_path}: its sha256 is {found}, expected {artifact.library_sha256}: "
            "it was damaged or edited"
        )
    try:
        import cuda.core as core
    except ImportError as error:
        raise DeviceUnavailable(f"GPU kernels need the extra 'cuda': cuda.core cannot be imported: {error}") from None
    return _Launcher(core, data, artifact, launch, gpu.index, row_dim, rows).launch


class _Launcher:
    """One kernel on one device."""

    def __init__(
        self, core: Any, cubin: bytes, artifact: Artifact, launch: Launch, index: int, row_dim: str, rows: int
    ) -> None:
        import torch

        self._torch, self._core, self._index, self._launch = torch, core, index, launch
        self._subject = artifact.symbol
        self._kinds = tuple(argument.kind for argument in artifact.arguments)
        names = [argument.name for argument in artifact.arguments]
        self._row_place = names.index(row_dim) if row_dim in names else None
        self._rows = rows
        self._configs: dict[int, Any] = {}
        self._streams: dict[int, Any] = {}
        try:
            with torch.cuda.device(index):
                torch.cuda.current_stream().synchronize()  # makes torch's context, which is the one to load into
                core.Device(index).set_current()
                self._module = core.ObjectCode.from_cubin(cubin)
                self._kernel = self._module.get_kernel(artifact.symbol)
                self._load_now()
        except Exception as error:
            raise LoadFailed(f"{artifact.library_path}: {artifact.symbol}: {error}") from error

    def launch(self, *values: int) -> int:
        """Enqueue one launch on torch's current stream of the device. LaunchFailed when the driver refuses it."""
        rows = self._rows if self._row_place is None else values[self._row_place]
        arguments = [
            value if kind == "tensor" else ctypes.c_int32(value)
            for kind, value in zip(self._kinds, values, strict=True)
        ]
        try:
            if self._torch.cuda.current_device() == self._index:
                self._core.launch(self._stream(), self._config(rows), self._kernel, *arguments)
            else:
                with self._torch.cuda.device(self._index):
                    self._core.launch(self._stream(), self._config(rows), self._kernel, *arguments)
        except Exception as error:
            raise LaunchFailed(f"{self._subject}: {error}") from error
        return 0

    def _config(self, rows: int) -> Any:
        if rows not in self._configs:
            if len(self._configs) >= _BLOCKS_KEPT:
                self._configs.clear()
            self._configs[rows] = self._core.LaunchConfig(
                grid=-(-rows // self._launch.rows_per_block),
                block=self._launch.threads_per_block,
                shmem_size=self._launch.dynamic_shared_bytes,
            )
        return self._configs[rows]

    def _stream(self) -> Any:
        handle = self._torch.cuda.current_stream(self._index).cuda_stream
        if handle not in self._streams:
            self._streams[handle] = self._core.Stream.from_handle(handle)
        return self._streams[handle]

    def _load_now(self) -> None:
        """Into the context, and with its shared memory: neither may happen while a graph is captured."""
        from cuda.bindings import driver

        kernel = driver.CUkernel(int(self._kernel.handle))
        status, _ = driver.cuKernelGetFunction(kernel)
        if status == driver.CUresult.CUDA_SUCCESS and self._launch.dynamic_shared_bytes > 48 << 10:
            attribute = driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
            (status,) = driver.cuKernelSetAttribute(attribute, self._launch.dynamic_shared_bytes, kernel, self._index)
        if status != driver.CUresult.CUDA_SUCCESS:
            raise RuntimeError(str(status.name))
