"""Translated kernels → shared libraries: one compiler call for a batch; a bad member is found singly."""

from __future__ import annotations

import errno
import os
import re
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from search.errors import ToolchainUnavailable
from search.lowering.command import CommandTimeout
from search.measuring.simt.source import Translation
from search.measuring.simt.toolchain import SimulationToolchain
from search.outcome import Rejected

_KILLED = re.compile(r"^killed by SIG|fatal error: Killed signal", re.MULTILINE)
"""What is said of a compiler, or of a program that g++ starts, that somebody else ended."""


@dataclass(frozen=True, kw_only=True)
class Built:
    """Where each kernel of a batch is, by symbol, and why the others are nowhere."""

    libraries: Mapping[str, str]
    rejections: Mapping[str, Rejected]


def build(
    translations: Sequence[Translation],
    toolchain: SimulationToolchain,
    folder: Path,
    *,
    timeout_seconds: float,
    cancelled: Callable[[], bool],
) -> Built:
    """Libraries of a batch in ``folder``, one for each preamble. Equal symbols are one kernel.

    Nothing but a compiler that ran and refused, or twice did not get to its end, is held against a kernel, and only if
    it still compiles a trivial program, before the first kernel is blamed and after the last. A compiler that does not,
    or cannot be started, raises ToolchainUnavailable, a full disk OSError. Raises Cancelled.
    """

    def doubt() -> None:
        if (reason := toolchain.failing(folder, timeout_seconds=timeout_seconds, cancelled=cancelled)) is not None:
            raise ToolchainUnavailable(reason)

    groups: dict[str, dict[str, Translation]] = {}
    for translation in translations:
        groups.setdefault(translation.preamble, {})[translation.symbol] = translation
    libraries: dict[str, str] = {}
    rejections: dict[str, Rejected] = {}
    for members in groups.values():
        pending, killed_once = [list(members.values())], set[str]()
        while pending:
            batch = pending.pop()
            library, failure = _library(batch, toolchain, folder, timeout_seconds, cancelled)
            if failure is None:
                libraries |= {member.symbol: library for member in batch}
            elif len(batch) > 1:
                pending += [[member] for member in batch]
            elif _KILLED.search(failure) and batch[0].symbol not in killed_once:
                killed_once.add(batch[0].symbol)
                pending.append(batch)
            else:
                if not rejections:
                    doubt()  # before every other kernel has waited for a compiler that hangs
                # The CUDA compiler may well take it: it is the simulation that does not know something.
                rejections[batch[0].symbol] = Rejected(
                    stage="correctness", reason="not_simulated", detail={"constructs": ["unknown"], "message": failure}
                )
    if len(rejections) > 1:
        doubt()
    return Built(libraries=libraries, rejections=rejections)


def _library(
    members: Sequence[Translation],
    toolchain: SimulationToolchain,
    folder: Path,
    timeout_seconds: float,
    cancelled: Callable[[], bool],
) -> tuple[str, str | None]:
    """The path of a library of all members, and the reason why there is none. Raises as :func:`build` does."""
    place = Path(tempfile.mkdtemp(dir=folder))
    source, object_file, library = (str(place / name) for name in ("kernels.cc", "kernels.o", "kernels.so"))
    texts = ['#include "simt.h"', members[0].preamble, *(member.text for member in members)]
    Path(source).write_text("\n".join(texts))
    for command in (toolchain.compile_command(source, object_file), toolchain.link_command(object_file, library)):
        try:
            done = toolchain.run(command, timeout_seconds=timeout_seconds, cancelled=cancelled, folder=place)
        except CommandTimeout as error:
            return library, str(error)
        if done.failure is not None:
            if os.strerror(errno.ENOSPC) in done.stderr:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(folder))
            return library, done.failure
    return library, None
