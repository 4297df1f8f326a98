"""NVIDIA's packages as this project calls them: imported when needed, what they raise told as DriverFault."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterator
from typing import Any

from search.measuring.gpu.driver import DriverFault, fault_kind

_CODE = re.compile(r"CUDA_ERROR_\w+")


def cuda_packages() -> tuple[Any, Any]:
    """``cuda.core`` and the driver's bindings. DriverFault of kind ``lost`` where the extra ``cuda`` is missing."""
    try:
        import cuda.core
        from cuda.bindings import driver
    except ImportError as error:
        raise DriverFault(
            "CUDA_ERROR_NO_PACKAGE", "lost", f"the extra 'cuda' is needed: cuda.core cannot be imported: {error}"
        ) from None
    return cuda.core, driver


def ask(api: Any, function: Callable[..., Any], *arguments: Any) -> Any:
    """A call of the bindings: its value, or DriverFault."""
    status, *values = function(*arguments)
    if status != api.CUresult.CUDA_SUCCESS:
        code = str(status.name)
        raise DriverFault(code, fault_kind(code), function.__name__)
    return values[0] if len(values) == 1 else values or None


def driver_fault(error: Exception) -> DriverFault | None:
    """What cuda.core raised as a DriverFault, by the driver's name in its message; None for an error of ours.

    Arguments that cuda.core itself refuses (TypeError, ValueError…) never reached the driver: no candidate made them.
    """
    found = _CODE.search(str(error))
    if found is None and not any(kind.__name__ == "CUDAError" for kind in type(error).__mro__):
        return None
    code = found.group() if found else "CUDA_ERROR_UNNAMED"
    return DriverFault(code, fault_kind(code), str(error)[:800])


@contextlib.contextmanager
def told() -> Iterator[None]:
    """Around calls of cuda.core: what the driver answered as DriverFault, everything else as it is."""
    try:
        yield
    except DriverFault:
        raise
    except Exception as error:
        if (fault := driver_fault(error)) is None:
            raise
        raise fault from error
