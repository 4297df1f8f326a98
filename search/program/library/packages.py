"""Kernels of installed packages, through the entry point group ``tuner.kernels``.

A package declares ``[project.entry-points."tuner.kernels"]`` with ``name = "module:KERNEL"``; the object is a Kernel or
a sequence of kernels. Whoever installs a package lets its code run in the service and its children; requests only name
kernels. A package that fails is left out, with a problem that says why, and takes nothing else down.
"""

from __future__ import annotations

import contextlib
import io
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from search.program.library.kernel import Kernel
from search.program.library.torch_call import call_problems
from search.program.report import shown_text
from search.program.verify import verify

if TYPE_CHECKING:
    from importlib import metadata

GROUP = "tuner.kernels"


@dataclass(frozen=True, kw_only=True)
class PackageProblem:
    """Why an entry point gives no kernel."""

    package: str
    entry_point: str
    message: str

    def __str__(self) -> str:
        return f"{self.package}, entry point {self.entry_point!r}: {self.message}"


@dataclass(frozen=True, kw_only=True)
class PackageKernels:
    """What the installed packages add, by name, and what they failed at."""

    kernels: Mapping[str, Kernel]
    problems: tuple[PackageProblem, ...]


def package_kernels(built_in: Mapping[str, Kernel]) -> PackageKernels:
    """Load every entry point of the group. A name that is built in, or that two entry points give, is refused."""
    from importlib import metadata  # a tenth of what a measuring child imports, and most need no package

    found: dict[str, list[tuple[Kernel, str, str]]] = {}
    problems: list[PackageProblem] = []
    for distribution in metadata.distributions():
        package, points = _points(distribution, problems)
        for point in points:
            for kernel in _loaded(package, point, problems):
                found.setdefault(kernel.name, []).append((replace(kernel, package=package), package, point.name))
    kernels: dict[str, Kernel] = {}
    for name, given in found.items():
        if name in built_in:
            message = f"{name!r} is a built-in kernel; choose another name"
        elif len(given) > 1:
            others = ", ".join(sorted(f"{package} ({point})" for _, package, point in given))
            message = f"{name!r} is given more than once: {others}; uninstall all but one"
        else:
            kernels[name] = given[0][0]
            continue
        problems += [PackageProblem(package=package, entry_point=point, message=message) for _, package, point in given]
    return PackageKernels(kernels=kernels, problems=tuple(sorted(problems, key=str)))


def _points(
    distribution: metadata.Distribution, problems: list[PackageProblem]
) -> tuple[str, tuple[metadata.EntryPoint, ...]]:
    try:
        points = tuple(distribution.entry_points.select(group=GROUP))
        return (f"{distribution.name} {distribution.version}" if points else "", points)
    except Exception as error:
        where = str(getattr(distribution, "_path", "a package"))
        problems.append(PackageProblem(package=where, entry_point="", message=_told("its metadata", error)))
        return where, ()


def _loaded(package: str, point: metadata.EntryPoint, problems: list[PackageProblem]) -> list[Kernel]:
    def refuse(message: str) -> None:
        problems.append(PackageProblem(package=package, entry_point=point.name, message=message))

    try:
        # A child answers on its standard output: what a package prints must not stand between.
        with contextlib.redirect_stdout(io.StringIO()):
            loaded = point.load()
        given = [loaded] if isinstance(loaded, Kernel | str | bytes) else list(loaded)
    except (Exception, SystemExit) as error:
        refuse(_told(f"{point.value} cannot be loaded", error))
        return []
    fit = []
    for kernel in given:
        if not isinstance(kernel, Kernel):
            refuse(f"{point.value} gives {shown_text(type(kernel).__name__)}, not a search.program.library.Kernel")
        elif wrong := _wrong(kernel):
            refuse(f"kernel {shown_text(kernel.name)}: {wrong[0]}")
        else:
            fit.append(kernel)
    return fit


def _wrong(kernel: Kernel) -> list[str]:
    try:
        if kernel.name != kernel.program.name:
            return [f"its program is called {shown_text(kernel.program.name)}"]
        problems: Iterable[object] = verify(kernel.program)
        return [str(problem) for problem in problems] or call_problems(kernel.program, kernel.baseline)
    except Exception as error:  # whatever a package built by hand
        return [_told("it cannot be checked", error)]


def _told(what: str, error: BaseException) -> str:
    return f"{what}: {type(error).__name__}: {shown_text(str(error))}"
