"""Generated CUDA kernels, and the simulator that runs them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from search.lowering.contract import Argument, Launch
from search.measuring.simt.protocol import SimulationItem
from search.measuring.simt.run import Simulator
from search.measuring.simt.toolchain import SimulationToolchain, prepare
from search.program.case import Case
from search.program.resolve import resolve_case

FIXTURES = Path(__file__).parent / "fixtures"


@pytest.fixture(scope="session")
def work_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Shared by the workers of one run: the header is compiled once."""
    base = tmp_path_factory.getbasetemp()
    return (base.parent if base.name.startswith("popen-") else base) / "simulations"


@pytest.fixture(scope="session")
def toolchain(work_dir: Path) -> SimulationToolchain:
    work_dir.mkdir(exist_ok=True)
    return prepare(work_dir)


@pytest.fixture(scope="session")
def simulator(work_dir: Path, toolchain: SimulationToolchain) -> Iterator[Simulator]:
    with Simulator(work_dir) as one:
        yield one


def cuda_text(fixture: str) -> str:
    """The generated source of a fixture."""
    return (FIXTURES / f"{fixture}.cu").read_text()


def item(id_: str, text: str, tensors: str, launch: Launch) -> SimulationItem:
    """A kernel under a symbol of its own, so that many can share a library."""
    own = "k_" + re.sub(r"\W", "_", id_)
    arguments = tuple(Argument(name=name, kind="tensor") for name in tensors.split())
    renamed = re.sub(r"\bmain_kernel\b", own, text)
    return SimulationItem(id=id_, cuda_text=renamed, symbol=own, arguments=arguments, launch=launch)


def launch(threads: int, rows: int = 1, shared: int = 0) -> Launch:
    """A launch of so many threads, rows and bytes of dynamic shared memory in a block."""
    return Launch(threads_per_block=threads, rows_per_block=rows, dynamic_shared_bytes=shared)


def case_of(kernel: str, rows: int, cols: int, **more: Any) -> Case:
    return resolve_case({"kernel": kernel, "dims": {"rows": rows, "cols": cols}, **more})
