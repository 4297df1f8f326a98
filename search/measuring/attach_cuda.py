"""Which compile-only devices this machine can build for, and why not. The compiler is tried, files are hashed once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from search.device.probe import compile_only
from search.device.spec import DeviceSpec
from search.errors import ToolchainUnavailable
from search.lowering.cuda import toolchain
from search.lowering.cuda.architectures import limits_document
from search.lowering.cuda.headers import cuda_folders
from search.measuring.simt.toolchain import SimulationToolchain, cxx_compiler


def compile_only_devices(
    names: Sequence[str], work_dir: str | Path, *, cancelled: Callable[[], bool] = lambda: False
) -> tuple[DeviceSpec, ...]:
    """The devices of these names (``cuda-sm_90``), each with its toolchain, and the reason where it cannot be used.

    ``work_dir`` keeps the cache of file hashes. Takes seconds: one trivial kernel is built, for the first architecture
    that the compiler knows; a compiler that hangs is given up. Raises Cancelled when ``cancelled()`` says so; nothing
    that was started stays.
    """
    work = Path(work_dir)
    work.mkdir(parents=True, exist_ok=True)
    found, tried, unsimulated = [], _Tried(cancelled), _simulation_missing(work, cancelled)
    silent: dict[str, Any] | None = None
    for name in names:
        architecture = name.removeprefix("cuda-")
        # A compiler that does not even say its version is not asked again: it may hang once more.
        if silent is None:
            described = toolchain.fingerprint(architecture, cache_dir=work, cancelled=cancelled)
        else:
            described = {**silent, "architecture": architecture}
        if "unavailable" in described["compiler"]:
            silent = described
        found.append(
            compile_only(
                name,
                toolchain=described,
                unavailable=described["compiler"].get("unavailable") or unsimulated or tried.reason(architecture),
                limits=limits_document(architecture),
            )
        )
    return tuple(found)


def _simulation_missing(work: Path, cancelled: Callable[[], bool]) -> str | None:
    """What the simulation of a kernel lacks on this machine. The compiler is tried with one line."""
    try:
        compiler = SimulationToolchain(compiler=cxx_compiler(), include_folders=(), prelude_folder=work)
        cuda_folders()
        reason = compiler.failing(work, cancelled=cancelled)
    except ToolchainUnavailable as error:
        reason = str(error)
    return None if reason is None else f"its simulation cannot be built: {reason}"


class _Tried:
    """What came of trying the toolchain, once for all architectures that it knows."""

    def __init__(self, cancelled: Callable[[], bool]) -> None:
        self._cancelled = cancelled
        self._known: tuple[str, ...] | None = None
        self._reason: str | None = None

    def reason(self, architecture: str) -> str | None:
        """Why an architecture cannot be built for, or None."""
        if self._known is None:
            self._known, self._reason = self._try(architecture)
        if self._reason is not None or architecture in self._known:
            return self._reason
        return toolchain.check(architecture, cancelled=self._cancelled)  # says which ones there are

    def _try(self, architecture: str) -> tuple[tuple[str, ...], str | None]:
        try:
            known = toolchain.known_architectures(cancelled=self._cancelled)
        except ToolchainUnavailable as error:
            return (), str(error)
        first = architecture if architecture in known or not known else known[0]
        return known, toolchain.check(first, cancelled=self._cancelled)
