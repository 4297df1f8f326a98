"""Entries and catalogs of kernels that were really built, for the tests of the JIT side. Imported by path."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from catalogs import (
    Catalog,
    Entry,
    LookupKey,
    Manifest,
    ManifestEntry,
    Store,
    freeze,
    sha256_hex,
    this_device,
)
from search.jit import Kernel
from search.lowering.cpu.emit import emit
from search.planning.plan import plan_candidate
from search.program.case import Case
from search.program.digest import program_digest
from search.program.reference import evaluate
from search.selection.freeze import kernel_row

TOOLCHAIN = {"compiler": "this machine's"}
SCALED = {
    "name": "scaled_rows",
    "params": {"factor": 3.0},
    "dims": ["rows", "cols"],
    "axes": {"row": {"dim": "rows", "kind": "row"}, "col": {"dim": "cols", "kind": "column"}},
    "tensors": {
        "x": {"axes": ["row", "col"], "role": "input", "dtype": "float32"},
        "scaled": {"axes": ["row", "col"], "role": "output", "like": "x"},
        "total": {"axes": ["row"], "role": "output", "like": "x"},
    },
    "body": [
        {"reduce": {"into": "s", "op": "sum", "over": ["col"], "value": "x"}},
        {"store": {"tensor": "scaled", "over": ["col"], "value": "x * factor"}},
        {"store": {"tensor": "total", "over": [], "value": "s"}},
    ],
}
"""A program that is not built in, with two outputs."""


def entry_of(kernel: Kernel, **changes: Any) -> Entry:
    """The entry that freezing this kernel would give, with its library."""
    built, artifact = kernel.built, kernel.built.artifact
    planned = plan_candidate(built.case, built.candidate, budget_scalars=None)
    assert planned.plan is not None
    assert planned.schedule is not None
    fields: dict[str, Any] = {
        "key": LookupKey(
            program_digest=program_digest(built.case.program, built.case.params),
            dims=dict(built.case.dims),
            dtypes=dict(built.case.dtypes),
            device=this_device().digest,
            toolchain=sha256_hex(TOOLCHAIN),
        ),
        "kernel": built.case.kernel,
        "params": dict(built.case.params),
        "candidate": built.candidate.document(),
        "plan": planned.plan.document(),
        "code": {
            "source_sha256": artifact.source_sha256,
            "artifact_sha256": artifact.artifact_sha256,
            "tilelang_sha256": hashlib.sha256(emit(planned.schedule).tilelang_text.encode()).hexdigest(),
        },
        "protocol": {"name": "finals"},
        "numerics": {},
        "median_seconds": 1e-5,
        "samples_sha256": "0" * 64,
        "tie_set": ("trl_1",),
        "job_id": "job_1",
        "trial_id": "trl_1",
        "artifact": {
            "library_sha256": artifact.library_sha256,
            "symbol": artifact.symbol,
            "arguments": [vars(argument) for argument in artifact.arguments],
        },
    }
    return Entry(**{**fields, **changes})


def catalog_of(*kernels: Kernel, **changes: Any) -> Catalog:
    """A frozen catalog of these kernels."""
    return freeze(
        [entry_of(kernel, **changes) for kernel in kernels],
        role="candidate",
        kernels=[kernel_row(kernel.built.case) for kernel in kernels],
        device=this_device(),
        toolchain=TOOLCHAIN,
    )


def pulled_store(folder: Path, catalog: Catalog, *kernels: Kernel) -> Store:
    """A store as ``pull(artifacts=True)`` leaves it."""
    store = Store(folder)
    target = ManifestEntry(device=catalog.device, toolchain=catalog.toolchain, digest=store.put(catalog))
    store.set_alias(Manifest(alias="prod", entries=(target,)))
    for kernel in kernels:
        artifact = kernel.built.artifact
        store.put_artifact(
            Path(artifact.library_path).read_bytes(), sha256=artifact.library_sha256, device=catalog.device
        )
    return store


def inputs_of(kernel: Kernel, *, rows: int | None = None, seed: int = 0) -> dict[str, npt.NDArray[Any]]:
    """Random inputs."""
    random = np.random.default_rng(seed)
    specs = [kernel.signature.tensors[place] for place in kernel.signature.inputs]
    count = kernel.signature.rows if rows is None else rows
    return {spec.name: random.standard_normal(spec.shape(count), dtype=np.float32) for spec in specs}


def oracle(kernel: Kernel, inputs: dict[str, npt.NDArray[Any]], *, rows: int | None = None) -> dict[str, Any]:
    """What the outputs are, in float64."""
    case = kernel.built.case
    dims = {**case.dims, kernel.signature.row_dim: kernel.signature.rows if rows is None else rows}
    return evaluate(Case(**{**vars(case), "dims": dims}), inputs)
