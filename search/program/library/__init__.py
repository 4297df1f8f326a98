"""The built-in kernels. A kernel is one file here that defines ``KERNEL``; nothing else lists it."""

from __future__ import annotations

import importlib
import pkgutil
from functools import cache

from search.program.library.kernel import Kernel, kernel_document
from search.program.library.torch_call import TorchCall

__all__ = ["Kernel", "TorchCall", "kernel_document", "kernels"]


@cache
def _found() -> dict[str, Kernel]:
    modules = (importlib.import_module(f"{__name__}.{info.name}") for info in pkgutil.iter_modules(__path__))
    found = [module.KERNEL for module in modules if hasattr(module, "KERNEL")]
    return {kernel.name: kernel for kernel in sorted(found, key=lambda kernel: kernel.name)}


def kernels() -> dict[str, Kernel]:
    """Name to kernel, sorted by name; the caller's own copy."""
    return dict(_found())
