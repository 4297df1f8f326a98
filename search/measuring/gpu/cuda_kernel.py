"""One kernel of a cubin in the current context, and launches of it: for what measures and for what serves alike."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

from search.lowering.contract import Argument
from search.measuring.gpu.cuda_calls import ask, driver_fault, told

_DEFAULT_SHARED_BYTES = 48 << 10
"""Dynamic shared memory that a kernel may have without asking."""


class CudaKernel:
    """Loaded into the context and allowed its shared memory at once: neither may happen while a graph is captured."""

    def __init__(
        self, core: Any, api: Any, module: Any, symbol: str, *, dynamic_shared_bytes: int, device: int = 0
    ) -> None:
        """``module``: :func:`load_module`'s; it stays loaded as long as this does. Raises DriverFault."""
        self._launch, self._config, self._shared_bytes = core.launch, core.LaunchConfig, dynamic_shared_bytes
        self._module = module
        with told():
            self._kernel = module.get_kernel(symbol)
            handle = api.CUkernel(int(self._kernel.handle))
        ask(api, api.cuKernelGetFunction, handle)
        if dynamic_shared_bytes > _DEFAULT_SHARED_BYTES:
            attribute = api.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
            ask(api, api.cuKernelSetAttribute, attribute, dynamic_shared_bytes, handle, device)

    def config(self, *, blocks: int, threads: int) -> Any:
        """A launch's geometry, for :meth:`enqueue`."""
        return self._config(grid=blocks, block=threads, shmem_size=self._shared_bytes)

    def enqueue(self, stream: Any, config: Any, values: Sequence[Any]) -> None:
        """Enqueue one launch; ``values``: :func:`passed`'s. Raises DriverFault."""
        try:  # no context manager here: it would be part of what dispatch costs
            self._launch(stream, config, self._kernel, *values)
        except Exception as error:
            if (fault := driver_fault(error)) is None:
                raise
            raise fault from error


def load_module(core: Any, cubin: bytes) -> Any:
    """The cubin's kernels; unloaded with the last reference to it. Raises DriverFault."""
    with told():
        return core.ObjectCode.from_cubin(cubin)


def passed(arguments: Sequence[Argument], values: Sequence[int]) -> list[Any]:
    """Addresses and dims as cuda.core takes them: a plain int is an address, and a dim is an int32 by value, which only
    a ctypes or numpy scalar says."""
    return [
        value if argument.kind == "tensor" else ctypes.c_int32(value)
        for argument, value in zip(arguments, values, strict=True)
    ]
