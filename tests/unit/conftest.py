"""Cases and candidates for unit tests, through the same door as a caller's."""

import re

import pytest

from search.program.resolve import resolve_case
from search.space.candidate import Candidate, CpuMapping, CudaMapping

AXES = {
    "row": {"dim": "rows", "kind": "row"},
    "col": {"dim": "cols", "kind": "column"},
    "k": {"dim": "ks", "kind": "column"},
}


@pytest.fixture
def kernel_case():
    """A library kernel at a shape."""

    def make(kernel, rows=4, cols=4096):
        return resolve_case({"kernel": kernel, "dims": {"rows": rows, "cols": cols}})

    return make


@pytest.fixture
def program_case():
    """A program from its body; inputs x, r: row,col, weight: col, bias: row; outputs y, z: row,col, s: row.

    Tensors that the body does not name are left out. Axis ``k`` exists when the body names it.
    """
    tensors = {
        "x": (["row", "col"], "input"),
        "r": (["row", "col"], "input"),
        "weight": (["col"], "input"),
        "bias": (["row"], "input"),
        "t3": (["row", "col", "k"], "input"),
        "y": (["row", "col"], "output"),
        "z": (["row", "col"], "output"),
        "y3": (["row", "col", "k"], "output"),
        "s": (["row"], "output"),
    }

    def make(*body, rows=3, cols=10, ks=4):

        words = set(re.findall(r"[A-Za-z_][A-Za-z0-9_]*", repr(body)))
        used = {name: declared for name, declared in tensors.items() if name in words}
        axes = {name for declared, _ in used.values() for name in declared} | {"row"}
        axes |= words & set(AXES)
        document = {
            "name": "probe",
            "dims": [AXES[a]["dim"] for a in AXES if a in axes],
            "axes": {a: AXES[a] for a in AXES if a in axes},
            "tensors": {
                name: {"axes": declared, "role": role, "dtype": "float32"} for name, (declared, role) in used.items()
            },
            "body": list(body),
        }
        dims = {"rows": rows, "cols": cols, "ks": ks}
        return resolve_case({"program": document, "dims": {dim: dims[dim] for dim in document["dims"]}})

    return make


@pytest.fixture
def cpu():
    """A CPU candidate, packet-local unless told otherwise."""

    def make(width=8, *, local_lanes=None, row_block=1, simd_scope="none", nontemporal=False, **knobs):
        fields = {
            "input": "reload",
            "fusion": "separate",
            "materialize": "private",
            "vector": 1,
            "unroll": 1,
            "partials": 1,
        }
        mapping = CpuMapping(
            local_lanes=width if local_lanes is None else local_lanes,
            row_block=row_block,
            simd_scope=simd_scope,
            nontemporal=nontemporal,
        )
        return Candidate(width=width, mapping=mapping, **(fields | knobs))

    return make


@pytest.fixture
def cuda():
    """A CUDA candidate."""

    def make(width=256, *, rows_per_block=1, **knobs):
        fields = {
            "input": "reload",
            "fusion": "separate",
            "materialize": "private",
            "vector": 1,
            "unroll": 1,
            "partials": 1,
        }
        return Candidate(width=width, mapping=CudaMapping(rows_per_block=rows_per_block), **(fields | knobs))

    return make
