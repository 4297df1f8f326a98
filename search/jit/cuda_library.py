"""A compiled GPU kernel as a function that launches it on torch's current stream. Needs the ``cuda`` extra and a GPU.

A call enqueues one launch and returns: it allocates nothing on the device and waits for nothing, so it may be captured
in a CUDA graph. As with any operator, tensors made on another stream need torch's ``record_stream``.
"""

from __future__ import annotations

from typing import Any, NoReturn

from search.errors import DeviceUnavailable
from search.jit.errors import JitError, LaunchFailed, LoadFailed
from search.jit.gpu import Gpu
from search.jit.library import Function
from search.lowering.contract import Artifact, Launch
from search.measuring.gpu.cubins import read_cubin
from search.measuring.gpu.cuda_calls import cuda_packages, told
from search.measuring.gpu.cuda_kernel import CudaKernel, load_module, passed
from search.measuring.gpu.driver import DriverFault
from search.measuring.gpu.torch_clock import torch_fault
from search.measuring.loading import LoadProblem
from search.outcome import Rejected

_KEPT = 1024
"""Geometries, and streams, that are kept for the next call."""
_UNREADABLE = {
    "no_launch": "{symbol}: its record has no launch, so it is no GPU kernel",
    "artifact_missing": "{path}: cannot be loaded: {message}",
    "artifact_changed": "{path}: its sha256 is {sha256}, expected {expected}: it was damaged or edited",
}


def runs_on(code: str | None, device: str) -> bool:
    """Whether machine code of one architecture runs on a device of another: within a major version, upwards."""
    if code is None or not (code.startswith("sm_") and code[3:].isdigit()):
        return code == device
    made, present = divmod(int(code[3:]), 10), divmod(int(device[3:]), 10)
    return made[0] == present[0] and made[1] <= present[1]


def load_cuda(artifact: Artifact, *, gpu: Gpu, row_dim: str, rows: int) -> Function:
    """The artifact's kernel on a GPU. The function takes what the artifact's arguments say.

    LoadFailed when the file, its architecture, or the symbol is not right; DeviceUnavailable when the GPU is gone, or
    there is no way to it. ``rows``: where no argument is ``row_dim``.
    """
    if artifact.launch is not None and not runs_on(artifact.architecture, gpu.architecture):
        raise LoadFailed(f"{artifact.symbol}: built for {artifact.architecture}, and this GPU is {gpu.architecture}")
    try:
        data, launch = read_cubin(artifact)
    except LoadProblem as problem:
        raise LoadFailed(_words(problem.rejection)) from None
    try:
        return _Launcher(data, artifact, launch, gpu.index, row_dim, rows).launch
    except DriverFault as fault:
        _refuse(LoadFailed, f"{artifact.library_path}: {artifact.symbol}", fault)


class _Launcher:
    """One kernel on one device."""

    def __init__(self, cubin: bytes, artifact: Artifact, launch: Launch, index: int, row_dim: str, rows: int) -> None:
        core, api = cuda_packages()
        import torch

        self._torch, self._core, self._index, self._launch = torch, core, index, launch
        self._subject, self._arguments = artifact.symbol, artifact.arguments
        names = [argument.name for argument in artifact.arguments]
        self._row_place = names.index(row_dim) if row_dim in names else None
        self._rows = rows
        self._configs: dict[int, Any] = {}
        self._streams: dict[int, Any] = {}
        with torch.cuda.device(index):
            try:
                torch.cuda.current_stream().synchronize()  # makes torch's context, which is the one to load into
            except RuntimeError as error:
                raise torch_fault(error) from error
            with told():
                core.Device(index).set_current()
            self._kernel = CudaKernel(
                core,
                api,
                load_module(core, cubin),
                artifact.symbol,
                dynamic_shared_bytes=launch.dynamic_shared_bytes,
                device=index,
            )

    def launch(self, *values: int) -> int:
        """Enqueue one launch on torch's current stream of the device. LaunchFailed when the driver refuses it, or what
        ran before broke the context; DeviceUnavailable when the GPU is gone."""
        rows = self._rows if self._row_place is None else values[self._row_place]
        arguments = passed(self._arguments, values)
        try:
            if self._torch.cuda.current_device() == self._index:
                self._kernel.enqueue(self._stream(), self._config(rows), arguments)
            else:
                with self._torch.cuda.device(self._index):
                    self._kernel.enqueue(self._stream(), self._config(rows), arguments)
        except DriverFault as fault:
            _refuse(LaunchFailed, self._subject, fault)
        return 0

    def _config(self, rows: int) -> Any:
        if rows not in self._configs:
            if len(self._configs) >= _KEPT:
                self._configs.clear()
            blocks = -(-rows // self._launch.rows_per_block)
            self._configs[rows] = self._kernel.config(blocks=blocks, threads=self._launch.threads_per_block)
        return self._configs[rows]

    def _stream(self) -> Any:
        handle = self._torch.cuda.current_stream(self._index).cuda_stream
        if handle not in self._streams:
            if len(self._streams) >= _KEPT:
                self._streams.clear()
            self._streams[handle] = self._core.Stream.from_handle(handle)
        return self._streams[handle]


def _refuse(error: type[JitError], subject: str, fault: DriverFault) -> NoReturn:
    """Raise what a fault means to who serves."""
    if fault.kind == "lost":
        raise DeviceUnavailable(f"{subject}: there is no way to the GPU: {fault}") from fault
    if fault.kind == "poisoned":
        message = f"{subject}: {fault}: what ran before broke the CUDA context of this process; start another"
        raise error(message) from fault
    raise error(f"{subject}: {fault}") from fault


def _words(rejection: Rejected) -> str:
    """A cubin that cannot be read, in a sentence."""
    return _UNREADABLE[rejection.reason].format(**rejection.detail)
