"""Cases for space tests, through the same door as a caller's."""

import re

import pytest

from search.program.resolve import resolve_case

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
