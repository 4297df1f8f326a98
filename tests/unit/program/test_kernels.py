"""The built-in kernels: what planning and the catalogs count on."""

from __future__ import annotations

import subprocess
import sys

import pytest

from search.program.document import dump_program
from search.program.ir import Reducer, Tile
from search.program.library import Kernel, kernel_document, kernels
from search.program.walk import children, loads, placed, statements, walk

DIGESTS = {
    "layer_norm": "2132ff5c15f6f070a5fee8f05111e4821bf6cf2817e89726b11c2e328cb9e844",
    "rms_norm": "1674e707fe262969d58004021dcb949dc97dbd31a9f4e604391ea370611ef7b1",
    "softmax": "30bb770ca209977d9025236c9998a16797326fdeef3fcc491e70f3e2d6ef3ea2",
}
TILES = {"layer_norm": ["centered"], "rms_norm": [], "softmax": ["e"]}


@pytest.fixture(params=["layer_norm", "rms_norm", "softmax"])
def kernel(request: pytest.FixtureRequest) -> Kernel:
    return kernels()[request.param]


def test_the_registry_is_found_in_the_folder() -> None:
    assert list(kernels()) == ["layer_norm", "rms_norm", "softmax"]
    kernels().clear()
    assert len(kernels()) == 3


def test_digests_never_change_unnoticed(kernel: Kernel) -> None:
    # catalogs are keyed by these: a change orphans every entry of that kernel
    assert kernel_document(kernel)["program_digest"] == DIGESTS[kernel.name]


def test_tiles_and_reads(kernel: Kernel) -> None:
    body = list(statements(kernel.program.body))
    assert [s.name for _, s in body if isinstance(s, Tile)] == TILES[kernel.name]
    parts = [part for where, s in body for part in placed(s, where)]
    reading = [part.pointer for part in parts if "x" in {load.tensor for load in loads(part.expr)}]
    assert len(reading) == 2
    assert not any(isinstance(s, Reducer) for _, s in body)


def test_baselines_name_only_what_exists(kernel: Kernel) -> None:
    program = kernel.program
    names = {t.name: t.name for t in program.tensors} | kernel.params | dict.fromkeys(program.dims, 7)
    bound = kernel.baseline.bound(names)
    assert bound["input"] == "x"
    assert "$" not in str(bound)
    assert program.tensor(kernel.baseline.fills).role == "output"
    with pytest.raises(KeyError):
        kernel.baseline.bound({})


def test_the_document_shows_what_may_be_chosen() -> None:
    document = kernel_document(kernels()["rms_norm"])
    assert document["params"] == {"eps": 1e-6}
    assert document["dims"] == ["rows", "cols"]
    assert document["dtypes"]["weight"] == {"default": None, "like": "x", "allowed": ["float32"]}
    assert document["program"] == dump_program(kernels()["rms_norm"].program)
    assert document["baseline"]["out"] is None
    assert kernel_document(kernels()["softmax"])["baseline"]["allocation"] == "preallocated"


def test_walks_reach_every_node() -> None:
    (part,) = placed(*reversed(list(statements(kernels()["rms_norm"].program.body))[1]))
    nodes = list(walk(part.expr))
    assert len(nodes) == 1 + sum(len(children(node)) for node in nodes)


def test_nothing_here_needs_numpy_or_torch() -> None:
    code = (
        "import sys; from search.program.resolve import resolve_case;"
        "resolve_case({'kernel': 'softmax', 'dims': {'rows': 1, 'cols': 1}});"
        "print(sorted({'numpy', 'torch', 'tilelang'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
