"""The driver boundary over cuda.core: modules and launches; memory, events and graphs through its bindings. Child side.

Needs the ``cuda`` extra and a driver. The process sees its one device through CUDA_VISIBLE_DEVICES, so it is device 0.
"""

from __future__ import annotations

import contextlib
import ctypes
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from search.lowering.contract import Argument
from search.measuring.gpu.driver import Call, DriverFault, fault_kind

_CODE = re.compile(r"CUDA_ERROR_\w+")
_DEFAULT_SHARED_BYTES = 48 << 10
"""Dynamic shared memory that a kernel may have without asking."""


class CudaDriver:
    """See ``driver.Driver``. ``uuid``: that of the device that must be found."""

    name = "cuda"

    def __init__(self, uuid: str) -> None:
        try:
            import cuda.core
            from cuda.bindings import driver
        except ImportError as error:
            raise DriverFault("CUDA_ERROR_NO_PACKAGE", "lost", f"cuda.core cannot be imported: {error}") from None
        self._core, self._api = cuda.core, driver
        try:
            self._device = cuda.core.Device(0)
            self._device.set_current()
            found = str(self._device.uuid)
            self._stream = self._device.create_stream()
            self._handle = driver.CUstream(int(self._stream.handle))
        except Exception as error:  # whatever it is: there is no device for us
            fault = _fault(error)
            raise DriverFault(fault.code, "lost", fault.message) from error
        if _bare(found) != _bare(uuid):
            message = f"the device that CUDA shows is {found}, and it should be {uuid}"
            raise DriverFault("CUDA_ERROR_INVALID_DEVICE", "lost", message)

    @property
    def last_level_cache_bytes(self) -> int:
        """See Driver."""
        with _told():
            return int(self._device.properties.l2_cache_size)

    def load(self, cubin: bytes) -> Any:
        """See Driver."""
        with _told():
            return self._core.ObjectCode.from_cubin(cubin)

    def function(self, module: Any, symbol: str, *, dynamic_shared_bytes: int) -> Any:
        """See Driver."""
        with _told():
            kernel = module.get_kernel(symbol)
            if dynamic_shared_bytes > _DEFAULT_SHARED_BYTES:
                attribute = self._api.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
                handle = self._api.CUkernel(int(kernel.handle))
                self._ask(self._api.cuKernelSetAttribute, attribute, dynamic_shared_bytes, handle, 0)
            return kernel

    def bind(
        self,
        function: Any,
        *,
        blocks: int,
        threads: int,
        dynamic_shared_bytes: int,
        arguments: Sequence[tuple[Argument, int]],
    ) -> Call:
        """See Driver."""
        config = self._core.LaunchConfig(grid=blocks, block=threads, shmem_size=dynamic_shared_bytes)
        # A plain int is an address; a dim is an int32 by value, which only a ctypes or numpy scalar says.
        values = [value if argument.kind == "tensor" else ctypes.c_int32(value) for argument, value in arguments]
        launch, stream = self._core.launch, self._stream

        def call() -> None:
            try:  # no context manager here: it would be part of what dispatch costs
                launch(stream, config, function, *values)
            except Exception as error:
                raise _fault(error) from error

        return call

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
        return self._ask(self._api.cuEventCreate, self._api.CUevent_flags.CU_EVENT_DEFAULT)

    def record(self, event: Any) -> None:
        """See Driver."""
        self._ask(self._api.cuEventRecord, event, self._handle)

    def elapsed_seconds(self, start: Any, end: Any) -> float:
        """See Driver. The driver's own resolution is half a microsecond."""
        return float(self._ask(self._api.cuEventElapsedTime, start, end)) * 1e-3

    def synchronize(self) -> None:
        """See Driver."""
        self._ask(self._api.cuCtxSynchronize)

    def close(self) -> None:
        """See Driver. The context is the process's and ends with it."""

    def _ask(self, function: Callable[..., Any], *arguments: Any) -> Any:
        return _ask(self._api, function, *arguments)


class _Graph:
    """An instantiated graph, destroyed with this object."""

    def __init__(self, api: Any, executable: Any, stream: Any) -> None:
        self._api, self._executable, self._stream = api, executable, stream

    def __call__(self) -> None:
        _ask(self._api, self._api.cuGraphLaunch, self._executable, self._stream)

    def __del__(self) -> None:
        with contextlib.suppress(Exception):  # a poisoned context takes its graphs with it
            self._api.cuGraphExecDestroy(self._executable)


def _ask(api: Any, function: Callable[..., Any], *arguments: Any) -> Any:
    """A call of the bindings: its value, or DriverFault."""
    status, *values = function(*arguments)
    if status != api.CUresult.CUDA_SUCCESS:
        code = str(status.name)
        raise DriverFault(code, fault_kind(code), function.__name__)
    return values[0] if len(values) == 1 else values or None


@contextlib.contextmanager
def _told() -> Iterator[None]:
    """What cuda.core raises as DriverFault, by the driver's name in its message."""
    try:
        yield
    except DriverFault:
        raise
    except Exception as error:
        raise _fault(error) from error


def _fault(error: Exception) -> DriverFault:
    found = _CODE.search(str(error))
    code = found.group() if found else f"CUDA_ERROR_BY_{type(error).__name__}"
    return DriverFault(code, fault_kind(code), str(error)[:800])


def _bare(uuid: str) -> str:
    return uuid.lower().removeprefix("gpu-").replace("-", "")
