"""Catalogs for tests, as large as asked, with entries of realistic size. Imported by path from several test folders."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from typing import Any

from catalogs import Catalog, DeviceIdentity, Entry, KernelRow, LookupKey, freeze, sha256_hex, this_device

TOOLCHAIN = {"compiler": "gcc 12.2.0", "flags": ["-O3"], "tilelang": "0.1.15"}
FINGERPRINT = sha256_hex(TOOLCHAIN)
OTHER_DEVICE = DeviceIdentity(kind="cpu", identity={"architecture": "x86_64", "model": "Another CPU"})
OTHER_FINGERPRINT = sha256_hex({"compiler": "gcc 99"})


def digest_of(text: str) -> str:
    """A sha256 that stands for a named thing."""
    return hashlib.sha256(text.encode()).hexdigest()


def row(name: str = "rms_norm", eps: float = 1e-6, **changes: Any) -> KernelRow:
    """The kernels row of a kernel with one param."""
    fields: dict[str, Any] = {
        "name": name,
        "params": {"eps": eps},
        "program_digest": digest_of(f"{name} {eps}"),
        "dtypes": {"x": "float32", "weight": "float32", "y": "float32"},
        "dims": ("rows", "cols"),
        "like": {"weight": "x", "y": "x"},
        "param_defaults": {"eps": 1e-6},
    }
    return KernelRow(**{**fields, **changes})


def entry(
    rows: int = 1024,
    cols: int = 4096,
    *,
    kernel: str = "rms_norm",
    eps: float = 1e-6,
    dtype: str = "float32",
    device: str | None = None,
    toolchain: str = FINGERPRINT,
    job: str = "job_1",
    trial: str = "trl_1",
    width: int = 32,
    key: dict[str, Any] | None = None,
    **changes: Any,
) -> Entry:
    """A winner with all its parts."""
    name = f"{kernel} {rows} {cols} {width}"
    fields: dict[str, Any] = {
        "key": LookupKey(
            program_digest=digest_of(f"{kernel} {eps}"),
            dims={"rows": rows, "cols": cols},
            dtypes={"x": dtype, "weight": dtype, "y": dtype},
            device=device or this_device().digest,
            toolchain=toolchain,
            **(key or {}),
        ),
        "kernel": kernel,
        "params": {"eps": eps},
        "candidate": {
            "width": width,
            "vector": 1,
            "unroll": 1,
            "partials": 1,
            "input": "reload",
            "fusion": "separate",
            "materialize": "private",
            "mapping": {"local_lanes": width, "row_block": 1, "simd_scope": "main", "nontemporal": False},
        },
        "plan": {
            "private_scalars": 0,
            "allocated_scalars": 0,
            "score": 262.0,
            "demand": {
                "available": True,
                "per_program": {"global_read_bytes": 12 * cols, "global_write_bytes": 4 * cols, "scalar_rounds": 256},
                "per_lane": {"scalar_rounds": 256, "collective_rounds": 5, "global_read_bytes": 1024},
            },
        },
        "code": {
            "source_sha256": digest_of(f"source {name}"),
            "artifact_sha256": digest_of(f"code {name}"),
            "static_instructions": 212,
            "static_branches": 9,
            "stack_bytes": 0,
            "numerics": {"exp": "polynomial", "division": "division", "sum reduction": "float32, 32 lanes"},
        },
        "protocol": {"name": "finals", "warm_up_seconds": 0.1, "samples": 9, "sample_seconds": 0.03},
        "numerics": {"exp": "polynomial", "division": "division"},
        "median_seconds": 1.25e-5,
        "samples_sha256": digest_of(f"samples {job} {trial}"),
        "tie_set": (trial,),
        "job_id": job,
        "trial_id": trial,
    }
    return Entry(**{**fields, **changes})


def catalog(
    entries: Iterable[Entry] | None = None,
    *,
    role: str = "candidate",
    kernels: Iterable[KernelRow] | None = None,
    device: DeviceIdentity | str | None = None,
    toolchain: Any = None,
) -> Catalog:
    """A catalog of this device: two shapes of rms_norm and one of softmax, unless told otherwise."""
    if entries is None:
        entries = [entry(), entry(512, 8192, trial="trl_2"), entry(kernel="softmax", trial="trl_3")]
    found = list(entries)
    if kernels is None:
        kernels = {row(e.kernel, e.params["eps"]).order: row(e.kernel, e.params["eps"]) for e in found}.values()
    return freeze(
        found,
        role=role,
        kernels=kernels,
        device=device or this_device(),
        toolchain=TOOLCHAIN if toolchain is None else toolchain,
    )


def large(count: int) -> Catalog:
    """A catalog of so many entries of one kernel."""
    return catalog([entry(rows=1 + n // 256, cols=16 * (1 + n % 256), trial=f"trl_{n}") for n in range(count)])
