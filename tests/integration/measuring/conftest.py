"""Hand-written C kernels, good and bad, compiled with gcc into artifacts as a lowering would make them."""

from __future__ import annotations

import hashlib
import subprocess
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from search.device.spec import DeviceSpec
from search.lowering.contract import Argument, Artifact
from search.measuring.protocol import MeasureItem
from search.measuring.run import Measurer
from search.program.case import Case
from search.program.resolve import resolve_case

PRELUDE = """
#define _GNU_SOURCE
#include <math.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>
static float largest(const float *x) {
    float m = -INFINITY;
    for (int c = 0; c < COLS; c++) m = (x[c] != x[c] || m != m) ? NAN : (x[c] > m ? x[c] : m);
    return m;
}
static void softmax(const float *x, float *y, int rows) {
    for (int r = 0; r < rows; r++, x += COLS, y += COLS) {
        float m = largest(x), total = 0;
        for (int c = 0; c < COLS; c++) total += y[c] = expf(x[c] - m);
        for (int c = 0; c < COLS; c++) y[c] /= total;
    }
}
"""
GOOD = "softmax(x, y, rows); return 0;"
ARGUMENTS = (
    Argument(name="x", kind="tensor"),
    Argument(name="y", kind="tensor"),
    Argument(name="rows", kind="dim"),
)

Build = Callable[..., MeasureItem]


def a_device(name: str = "cpu:test", cpus: tuple[int, ...] = ()) -> DeviceSpec:
    """A CPU device as the probe would describe it; no pinning unless asked, so that tests may share the machine."""
    return DeviceSpec(
        id=name,
        kind="cpu",
        target="cpu",
        name="test",
        identity={},
        identity_digest="",
        toolchain={},
        toolchain_fingerprint="",
        available=True,
        measure_cpus=cpus,
    )


def softmax_case(rows: int = 5, cols: int = 65) -> Case:
    """The case that the C kernels of this folder compute."""
    return resolve_case({"kernel": "softmax", "dims": {"rows": rows, "cols": cols}})


@pytest.fixture(scope="session")
def libraries(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("libraries")


@pytest.fixture(scope="session")
def build(libraries: Path) -> Build:
    """``build(id, body)`` compiles ``int32_t kernel(float *x, float *y, int32_t rows) { body }``; memoised by text."""
    lock = threading.Lock()

    def compiled(
        name: str,
        body: str = GOOD,
        *,
        cols: int = 65,
        outside: str = "",
        flags: tuple[str, ...] = (),
        signature: str = "float *x, float *y, int32_t rows",
        arguments: tuple[Argument, ...] = ARGUMENTS,
    ) -> MeasureItem:
        text = f"#define COLS {cols}\n{PRELUDE}\n{outside}\nint32_t kernel({signature}) {{ {body} }}\n"
        key = hashlib.sha256("\0".join((text, *flags)).encode()).hexdigest()
        library = libraries / f"{key}.so"
        with lock:
            if not library.exists():
                source = libraries / f"{key}.c"
                source.write_text(text)
                command = ["gcc", "-O2", "-w", "-fPIC", "-shared", "-o", str(library), str(source), "-lm", *flags]
                subprocess.run(command, check=True, timeout=60)
        return MeasureItem(
            id=name,
            artifact=Artifact(
                source_sha256=key,
                artifact_sha256=key,
                library_path=str(library),
                library_sha256=hashlib.sha256(library.read_bytes()).hexdigest(),
                symbol="kernel",
                arguments=arguments,
            ),
        )

    return compiled


@pytest.fixture(scope="session")
def work_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("work")


@pytest.fixture
def make_measurer(work_dir: Path, tmp_path: Path) -> Callable[..., Measurer]:
    """``make_measurer(**options)``: a Measurer of the device "cpu:test", whose locks lie under ``tmp_path``."""

    def made(**options: object) -> Measurer:
        return Measurer(a_device(), work_dir, lock_dir=tmp_path / "locks", child_timeout_seconds=30.0, **options)

    return made


@pytest.fixture
def measurer(work_dir: Path, tmp_path: Path) -> Iterator[Measurer]:
    with Measurer(a_device(), work_dir, lock_dir=tmp_path / "locks", child_timeout_seconds=30.0) as one:
        yield one


@pytest.fixture
def impatient(work_dir: Path, tmp_path: Path) -> Iterator[Measurer]:
    """A Measurer that waits two seconds (and a little, for its own work) for a candidate."""
    with Measurer(a_device(), work_dir, lock_dir=tmp_path / "locks", child_timeout_seconds=2.0) as one:
        yield one


@pytest.fixture
def case() -> Case:
    return softmax_case()
