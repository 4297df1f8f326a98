"""Translated kernels → shared libraries: one compiler call for a batch; a bad member is found singly."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from search.errors import ToolchainUnavailable
from search.lowering.command import run_command
from search.measuring.simt.source import Translation
from search.measuring.simt.toolchain import SimulationToolchain
from search.outcome import Rejected


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
    """Libraries of a batch in ``folder``, one for each preamble. Equal symbols are one kernel. Raises Cancelled."""
    groups: dict[str, dict[str, Translation]] = {}
    for translation in translations:
        groups.setdefault(translation.preamble, {})[translation.symbol] = translation
    libraries: dict[str, str] = {}
    rejections: dict[str, Rejected] = {}
    for members in groups.values():
        pending = [list(members.values())]
        while pending:
            batch = pending.pop()
            library, failure = _library(batch, toolchain, folder, timeout_seconds, cancelled)
            if failure is None:
                libraries |= {member.symbol: library for member in batch}
            elif len(batch) == 1:
                # The CUDA compiler may well take it: it is the simulation that does not know something.
                rejections[batch[0].symbol] = Rejected(
                    stage="correctness", reason="not_simulated", detail={"constructs": ["unknown"], "message": failure}
                )
            else:
                pending += [[member] for member in batch]
    return Built(libraries=libraries, rejections=rejections)


def _library(
    members: Sequence[Translation],
    toolchain: SimulationToolchain,
    folder: Path,
    timeout_seconds: float,
    cancelled: Callable[[], bool],
) -> tuple[str, str | None]:
    """The path of a library of all members, and the reason why there is none."""
    place = Path(tempfile.mkdtemp(dir=folder))
    source, object_file, library = (str(place / name) for name in ("kernels.cc", "kernels.o", "kernels.so"))
    texts = ['#include "simt.h"', members[0].preamble, *(member.text for member in members)]
    Path(source).write_text("\n".join(texts))
    for command in (toolchain.compile_command(source, object_file), toolchain.link_command(object_file, library)):
        try:
            failure = run_command(command, timeout_seconds=timeout_seconds, cancelled=cancelled).failure
        except ToolchainUnavailable as error:
            failure = str(error)
        if failure is not None:
            return library, failure
    return library, None
