"""The driver boundary over cuda.core: modules and launches; memory, events and graphs through its bindings. Child side.

Needs the ``cuda`` extra and a driver. The process sees its one device through CUDA_VISIBLE_DEVICES, so it is device 0.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from typing import Any

from search.lowering.contract import Argument
from search.measuring.gpu.cuda_calls import ask, cuda_packages, driver_fault, told
from search.measuring.gpu.cuda_kernel import CudaKernel, load_module, passed
from search.measuring.gpu.driver import Call, DriverFault


class CudaDriver:
    """See ``driver.Driver``. ``uuid``: that of the device that must be found."""

    name = "cuda"

    def __init__(self, uuid: str) -> None:
        self._core, self._api = cuda_packages()
        try:
            self._device = self._core.Device(0)
            self._device.set_current()
            found = str(self._device.uuid)
            self._stream = self._device.create_stream()
            self._handle = self._api.CUstream(int(self._stream.handle))
        except Exception as error:
            fault = driver_fault(error)
            if fault is None and not isinstance(error, RuntimeError | OSError):  # those: no driver's library, say
                raise
            code = fault.code if fault is not None else "CUDA_ERROR_NOT_OPENED"
            raise DriverFault(code, "lost", str(error)[:800]) from error
        if _bare(found) != _bare(uuid):
            message = f"the device that CUDA shows is {found}, and it should be {uuid}"
            raise DriverFault("CUDA_ERROR_INVALID_DEVICE", "lost", message)

    @property
    def last_level_cache_bytes(self) -> int:
        """See Driver."""
        with told():
            return int(self._device.properties.l2_cache_size)

    def load(self, cubin: bytes) -> Any:
        """See Driver."""
        return load_module(self._core, cubin)

    def function(self, module: Any, symbol: str, *, dynamic_shared_bytes: int) -> Any:
        """See Driver."""
        return CudaKernel(self._core, self._api, module, symbol, dynamic_shared_bytes=dynamic_shared_bytes)

    def bind(
        self,
        function: Any,
        *,
        blocks: int,
        threads: int,
        arguments: Sequence[tuple[Argument, int]],
    ) -> Call:
        """See Driver."""
        config = function.config(blocks=blocks, threads=threads)
        values = passed([argument for argument, _ in arguments], [value for _, value in arguments])
        enqueue, stream = function.enqueue, self._stream
        return lambda: enqueue(stream, config, values)

    def bind_copy(self, target: int, source: int, size_bytes: int) -> Call:
        """See Driver."""
        return lambda: self._ask(self._api.cuMemcpyDtoDAsync, target, source, size_bytes, self._handle)

    def capture(self, calls: Sequence[Call]) -> Call:
        """See Driver."""
        api = self._api
        mode = api.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_THREAD_LOCAL
        self._ask(api.cuStreamBeginCapture, self._handle, mode)
        try:
            for call in calls:
                call()
        finally:
            graph = self._ask(api.cuStreamEndCapture, self._handle)
        executable = self._ask(api.cuGraphInstantiate, graph, 0)
        self._ask(api.cuGraphDestroy, graph)
        return _Graph(api, executable, self._handle)

    def allocate(self, size_bytes: int) -> int:
        """See Driver."""
        return int(self._ask(self._api.cuMemAlloc, size_bytes))

    def free(self, address: int) -> None:
        """See Driver."""
        self._ask(self._api.cuMemFree, address)

    def upload(self, address: int, host_address: int, size_bytes: int) -> None:
        """See Driver."""
        self.synchronize()
        self._ask(self._api.cuMemcpyHtoD, address, host_address, size_bytes)
        self.synchronize()

    def download(self, host_address: int, address: int, size_bytes: int) -> None:
        """See Driver."""
        self.synchronize()
        self._ask(self._api.cuMemcpyDtoH, host_address, address, size_bytes)

    def event(self) -> Any:
        """See Driver."""
        return _Event(self._api, self._ask(self._api.cuEventCreate, self._api.CUevent_flags.CU_EVENT_DEFAULT))

    def record(self, event: Any) -> None:
        """See Driver."""
        self._ask(self._api.cuEventRecord, event.handle, self._handle)

    def elapsed_seconds(self, start: Any, end: Any) -> float:
        """See Driver. The driver's own resolution is half a microsecond."""
        return float(self._ask(self._api.cuEventElapsedTime, start.handle, end.handle)) * 1e-3

    def synchronize(self) -> None:
        """See Driver."""
        self._ask(self._api.cuCtxSynchronize)

    def close(self) -> None:
        """See Driver. The context is the process's and ends with it."""

    def _ask(self, function: Callable[..., Any], *arguments: Any) -> Any:
        return ask(self._api, function, *arguments)


class _Event:
    """A timing event, destroyed with this object."""

    def __init__(self, api: Any, handle: Any) -> None:
        self._api, self.handle = api, handle

    def __del__(self) -> None:
        with contextlib.suppress(Exception):  # a poisoned context takes its events with it
            self._api.cuEventDestroy(self.handle)


class _Graph:
    """An instantiated graph, destroyed with this object."""

    def __init__(self, api: Any, executable: Any, stream: Any) -> None:
        self._api, self._executable, self._stream = api, executable, stream

    def __call__(self) -> None:
        ask(self._api, self._api.cuGraphLaunch, self._executable, self._stream)

    def __del__(self) -> None:
        with contextlib.suppress(Exception):  # a poisoned context takes its graphs with it
            self._api.cuGraphExecDestroy(self._executable)


def _bare(uuid: str) -> str:
    return uuid.lower().removeprefix("gpu-").replace("-", "")
