"""TileLang text → CUDA text. Runs TileLang: only the lowering child may call this module."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from search.lowering import names
from search.lowering.contract import Argument, Launch
from search.lowering.cuda.monoid_code import monoid_code
from search.lowering.cuda.preamble import PASS_CONFIG
from search.lowering.cuda.texts import HEADER_INCLUDE, HEADER_NAME, SYMBOL, complete_text
from search.lowering.modules import execute

HEADER = Path(__file__).with_name(HEADER_NAME)
_PRINTED = f"{SYMBOL}_kernel"
"""TileLang's name for the device function of ``kernel``."""
_SIGNATURE = re.compile(rf'^extern "C" __global__ void[^\n]*\b{_PRINTED}\(([^)]*)\) \{{', re.MULTILINE)


@dataclass(frozen=True, kw_only=True)
class CudaKernel:
    """Canonical CUDA of one kernel, whose own function is named ``kernel``."""

    includes: str
    """TileLang's includes."""
    body: str
    """The kernel: declaration and definition."""
    arguments: tuple[Argument, ...]
    launch: Launch
    symbol: str = SYMBOL
    planned_load_sites: int | None = None
    """Of the schedule that it was made from."""

    @property
    def cuda_text(self) -> str:
        """One complete text, its function named ``kernel``."""
        return self.renamed(SYMBOL)

    @property
    def exported(self) -> str:
        """The text with our header beside it."""
        return f"{self.includes}\n{HEADER_INCLUDE}\n{self.body}"

    def renamed(self, symbol: str) -> str:
        """The complete text with the function under another name, for a batch."""
        return complete_text(self.exported, header_text(), symbol)


def lower_text(tilelang_text: str, architecture: str) -> CudaKernel:
    """Run an emitted module and lower its ``kernel``. Raises whatever TileLang raises."""
    from tilelang import tvm
    from tilelang.engine import lower

    target = tvm.target.Target({"kind": "cuda", "arch": architecture})
    with tvm.transform.PassContext(opt_level=3, config=PASS_CONFIG), target:
        module = execute(tilelang_text)
        artifact = lower(module[SYMBOL], target=target)
        (function,) = artifact.device_mod.functions.values()
        launch = launch_of(dict(function.attrs), rows_per_block=module["ROWS_PER_BLOCK"])
        return canonical(artifact.kernel_source, launch)


@lru_cache(maxsize=1)
def header_text() -> str:
    """The header as it is exported: ``tuner.cuh`` and, behind it, the structured monoids."""
    return f"{HEADER.read_text()}\n{monoid_code()}"


def canonical(source: str, launch: Launch) -> CudaKernel:
    """TileLang's CUDA without our header's include, its function named ``kernel``.

    Raises ValueError when the text has not the expected form.
    """
    match = _SIGNATURE.search(source)
    if match is None or HEADER_INCLUDE.strip() not in source:
        raise ValueError("TileLang's CUDA text has no kernel function of the expected form")
    arguments = []
    for parameter in match.group(1).split(","):
        kind, name = parameter.strip().rsplit(" ", 1)
        arguments.append(Argument(name=names.plain(name), kind="tensor" if "*" in kind else "dim"))
    start = source.index('extern "C" __global__')
    return CudaKernel(
        includes=source[:start].replace(HEADER_INCLUDE.strip(), "").strip(),
        body=re.sub(rf"\b{_PRINTED}\(", f"{SYMBOL}(", source[start:]).rstrip() + "\n",
        arguments=tuple(arguments),
        launch=launch,
    )


def launch_of(attributes: Mapping[str, Any], *, rows_per_block: int) -> Launch:
    """Threads and dynamic shared memory, from the attributes of a lowered device function."""
    threads = {str(tag): extent for tag, extent in attributes["thread_extent"].items()}
    return Launch(
        threads_per_block=int(threads["threadIdx.x"]),
        rows_per_block=rows_per_block,
        dynamic_shared_bytes=int(attributes.get("dyn_shared_memory_buf", 0)),
    )
