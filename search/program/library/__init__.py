"""The kernels that have names: the built-in ones, and those of installed packages.

A built-in kernel is one file here that defines ``KERNEL``; nothing else lists it. ``packages`` says how others come.
"""

from __future__ import annotations

import importlib
import pkgutil
from functools import cache

from search.program.library.kernel import Kernel, kernel_document
from search.program.library.packages import PackageKernels, PackageProblem, package_kernels
from search.program.library.torch_call import TorchCall

__all__ = ["Kernel", "PackageProblem", "TorchCall", "kernel_document", "kernel_named", "kernels", "package_problems"]


@cache
def _built_in() -> dict[str, Kernel]:
    modules = (importlib.import_module(f"{__name__}.{info.name}") for info in pkgutil.iter_modules(__path__))
    found = [module.KERNEL for module in modules if hasattr(module, "KERNEL")]
    return {kernel.name: kernel for kernel in found}


@cache
def _from_packages() -> PackageKernels:
    return package_kernels(_built_in())


@cache
def _found() -> dict[str, Kernel]:
    return dict(sorted({**_from_packages().kernels, **_built_in()}.items()))


def kernels() -> dict[str, Kernel]:
    """Name to kernel, sorted by name; the caller's own copy. Packages are looked for once in a process."""
    return dict(_found())


def kernel_named(name: str) -> Kernel | None:
    """The kernel of that name, None without one. For a built-in one no package is looked for, nor loaded: every process
    that measures asks."""
    return _built_in().get(name) or _from_packages().kernels.get(name)


def package_problems() -> tuple[PackageProblem, ...]:
    """Why entry points of installed packages give no kernel."""
    return _from_packages().problems
