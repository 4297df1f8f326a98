"""The built-in kernels: what planning and the catalogs count on."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from search.errors import InvalidInput
from search.program.document import dump_program
from search.program.ir import Reducer, Tile
from search.program.library import Kernel, kernel_document, kernels
from search.program.library.torch_call import TorchCall, bound, call_problems, call_references, references
from search.program.resolve import resolve_case
from search.program.verify import verify
from search.program.walk import children, loads, placed, statements, walk

DIGESTS = {
    "add_rms_norm": "5d63f2e8a2e3997df4ff08ae76804694439fb4742342ea43b20418ca87d4e8ce",
    "cross_entropy": "a7fde59c02697ae9c1dd960639453cabc5c6e4fb23ce55c869f2a8ba5c0117a6",
    "dot": "db6983955b1e13c9dbf69835b50e178286a4f129484e0c9cc8f3f8ecf168df6b",
    "gelu_residual": "9ebf43ec2091c11571728640e6280a3b107e42878b915feb78a5cf361213b105",
    "gelu_tanh_residual": "3ce6c797d8891c901af4a62e2383dcbd09f5fe89cf5874b2961d13fe549d062b",
    "gemv": "875c5a1aa2ac3c43f13f3671833a2a1cddfc49a5d27c03c709c34649f3649f72",
    "l2_normalize": "3496d8b74fc4ff1e7cca6af81f327e50d9690ab179b9339ba73d8455f6ef0419",
    "layer_norm": "2132ff5c15f6f070a5fee8f05111e4821bf6cf2817e89726b11c2e328cb9e844",
    "log_softmax": "2878e737a94c20d2ccfa7e717fe8ba2baae08d04cd94e6ed97aa7c502746b5c3",
    "masked_softmax": "a7317764b98509fb6339f8a41fd5cfaf83a184e8504faea2821e8f7069311489",
    "rms_norm": "1674e707fe262969d58004021dcb949dc97dbd31a9f4e604391ea370611ef7b1",
    "rope": "d65d95b964aeee73e614dbbb3340534ee0c618d08ac827a26c5a3422a5b2151f",
    "row_bitwise_and": "38e6ffb8d2a771b30c668685c98b0fd34c4133a472132fef3d8072980bc3615e",
    "row_bitwise_or": "164accbc8f652baa8623001c21ef0b9e71e9d93af1df19e25da24cfd6978d9d3",
    "row_bitwise_xor": "ac210a5adea84ca05fae4befe451d6897ff3d0f5d16237dddd9e6cbaaa1ff85f",
    "row_logsumexp": "dae5a59b525546f16a7dd9e152f22dc32699186f4868735e6fa9a13340e94604",
    "row_max": "557131526a9d897d4205ea77965ccc61d58fba20569317e9458dfc2d4e215cba",
    "row_mean": "3a4751b59926d6e87689cbf6cd2dc02bf29b6c93a2363488e8dc116b0e8a1de5",
    "row_min": "6a4e2f5a37d9cbdc0c88c8261d67150e9dc6c26c7b68fcb7bd938728ef449595",
    "row_product": "cfc37e5c8a087885142fc54d89a49ae8016d51998b36e72ba58ec591520a31e3",
    "row_sum": "4161cb45fd626dd516be49350189d54b11668624bda4b1e0b38314d51e8e35d1",
    "row_variance": "4b57a0153fbc678bb2f370c7c24ed12c29c7338c4b391f7bb1d3fa918e00a06c",
    "softmax": "30bb770ca209977d9025236c9998a16797326fdeef3fcc491e70f3e2d6ef3ea2",
    "swiglu": "5a7a7a42b583900f6b446fd551c35af763067e0508c1e4174e34235b2b719f53",
}
TILES = {"layer_norm": ["centered"], "rms_norm": [], "softmax": ["e"]}


@pytest.fixture(params=sorted(DIGESTS))
def kernel(request: pytest.FixtureRequest) -> Kernel:
    return kernels()[request.param]


def test_the_registry_is_found_in_the_folder() -> None:
    assert list(kernels()) == sorted(DIGESTS)
    kernels().clear()
    assert list(kernels()) == sorted(DIGESTS)


def test_digests_never_change_unnoticed(kernel: Kernel) -> None:
    # catalogs are keyed by these: a change orphans every entry of that kernel
    assert kernel_document(kernel)["program_digest"] == DIGESTS[kernel.name]


@pytest.mark.parametrize("name", TILES)
def test_tiles_and_reads(name: str) -> None:
    kernel = kernels()[name]
    body = list(statements(kernel.program.body))
    assert [s.name for _, s in body if isinstance(s, Tile)] == TILES[kernel.name]
    parts = [part for where, s in body for part in placed(s, where)]
    reading = [part.pointer for part in parts if "x" in {load.tensor for load in loads(part.expr)}]
    assert len(reading) == 2
    assert not any(isinstance(s, Reducer) for _, s in body)


def test_a_kernel_is_legal(kernel: Kernel) -> None:
    assert verify(kernel.program) == ()


def test_baselines_name_only_what_exists(kernel: Kernel) -> None:
    assert call_problems(kernel.program, kernel.baseline) == []
    used = {name for call in kernel.baseline for name in call_references(call)}
    outputs = {tensor.name for tensor in kernel.program.tensors if tensor.role == "output"}
    assert {call.into for call in kernel.baseline} - outputs <= used, "a result that nothing uses"
    for call in kernel.baseline:
        assert json.loads(json.dumps(call.document()))["into"] == call.into


@pytest.mark.parametrize(
    ("call", "word"),
    [
        (TorchCall(function="os.system", into="y"), "os.system is no public function"),
        (TorchCall(function="torch._C", into="y"), "no public function"),
        (TorchCall(function="torch.nn.Module", into="y"), "no public function"),
        (TorchCall(function="torch.exp", keywords={"input": ["$z"]}, into="y"), "reads z, which nothing gives"),
        (TorchCall(function="torch.exp", arguments=("$x",), into="x"), "gives x, which is taken"),
        (TorchCall(function="torch.exp", arguments=("$x",), into="e", out="out"), "e is no output"),
        (TorchCall(function="torch.exp", arguments=("$x",), into="e"), "no call computes y"),
    ],
)
def test_what_is_wrong_with_a_baseline_is_said(call: TorchCall, word: str) -> None:
    assert any(word in problem for problem in call_problems(kernels()["softmax"].program, (call,)))


def test_arguments_are_bound_in_lists_too() -> None:
    assert bound(["$x", ["$y", 2], "text"], {"x": 1, "y": (3,)}) == [1, [(3,), 2], "text"]
    assert references(["$x", ("$y", 2), "x"]) == ["x", "y"]
    with pytest.raises(KeyError):
        bound("$nothing", {})


def test_the_text_of_a_call_is_what_somebody_would_write() -> None:
    (call,) = kernels()["softmax"].baseline
    assert call.text() == "torch.softmax(input=$x, dim=-1, out=$y)"
    first = kernels()["rope"].baseline[0]
    assert first.text(named=True) == "first = torch.select(input=$x, dim=1, index=0)"
    assert kernels()["rope"].baseline[-1].text() == "torch.stack(tensors=[$left, $right], dim=1, out=$y)"


def test_who_owns_the_memory_of_a_result_is_said() -> None:
    owners = {name: kernel_document(kernels()[name])["baseline"]["allocation"] for name in DIGESTS}
    assert owners["softmax"] == "preallocated"
    assert owners["layer_norm"] == "allocated_by_torch"
    assert owners["add_rms_norm"] == "preallocated: h"


def test_rope_takes_two_parts_and_nothing_else() -> None:
    assert resolve_case({"kernel": "rope", "dims": {"rows": 17, "parts": 2, "half": 33}}).dims["half"] == 33
    for parts in (1, 3):
        with pytest.raises(InvalidInput) as caught:
            resolve_case({"kernel": "rope", "dims": {"rows": 17, "parts": parts, "half": 33}})
        (problem,) = caught.value.problems
        assert problem.field == "/dims"
        assert "x[-part + 1]" in problem.message
        assert "outside axis 'part'" in problem.message


def test_the_document_shows_what_may_be_chosen() -> None:
    document = kernel_document(kernels()["rms_norm"])
    assert document["params"] == {"eps": 1e-6}
    assert document["dims"] == ["rows", "cols"]
    assert document["dtypes"]["weight"] == {"default": None, "like": "x", "allowed": ["float32", "float16", "bfloat16"]}
    assert document["program"] == dump_program(kernels()["rms_norm"].program)
    assert document["baseline"]["calls"][0]["out"] is None


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
