"""A kernel's call: how tensors may be given, what is refused and in which words, and what native code is handed."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from search.errors import InvalidInput
from search.jit.errors import KernelFailed
from search.jit.kernel import Built, Kernel
from search.jit.signature import row_bound
from search.lowering.contract import Argument, Artifact
from search.planning.default import default_candidate
from search.program.resolve import resolve_case

AXES = {"row": {"dim": "rows", "kind": "row"}, "col": {"dim": "cols", "kind": "column"}}
TWO_OUTPUTS = {
    "name": "two_outputs",
    "dims": ["rows", "cols"],
    "axes": AXES,
    "tensors": {
        "x": {"axes": ["row", "col"], "role": "input", "dtype": "float32"},
        "y": {"axes": ["row", "col"], "role": "output", "like": "x"},
        "total": {"axes": ["row"], "role": "output", "like": "x"},
    },
    "body": [
        {"reduce": {"into": "s", "op": "sum", "over": ["col"], "value": "x"}},
        {"store": {"tensor": "y", "over": ["col"], "value": "x - s"}},
        {"store": {"tensor": "total", "over": [], "value": "s"}},
    ],
}


class Recorder:
    """Native code as the kernel sees it: arguments come in, a code goes out."""

    def __init__(self, code: int = 0) -> None:
        self.calls: list[tuple[int, ...]] = []
        self.code = code

    def __call__(self, *arguments: int) -> int:
        self.calls.append(arguments)
        return self.code


def kernel_of(
    function: Recorder, document: dict[str, Any], arguments: tuple[str, ...], *, any_rows: bool = False
) -> Kernel:
    case = resolve_case(document)
    artifact = Artifact(
        source_sha256="0" * 64,
        artifact_sha256="1" * 64,
        library_path="",
        library_sha256="2" * 64,
        symbol="k",
        arguments=tuple(Argument(name=name, kind="dim" if name in case.dims else "tensor") for name in arguments),
    )
    built = Built(case=case, candidate=default_candidate(case, "cpu"), artifact=artifact, origin="cached", entry=None)
    return Kernel(built, function, any_rows=any_rows)


def rms(function: Recorder, *, any_rows: bool = False) -> Kernel:
    """Native arguments stand in another order than the program's."""
    document = {"kernel": "rms_norm", "dims": {"rows": 4, "cols": 6}}
    return kernel_of(function, document, ("weight", "x", "y", "rows"), any_rows=any_rows)


def two(function: Recorder) -> Kernel:
    return kernel_of(function, {"program": TWO_OUTPUTS, "dims": {"rows": 4, "cols": 6}}, ("total", "x", "y", "rows"))


def torch_of(shape: tuple[int, ...]) -> Any:
    return torch.zeros(shape)


def numpy_of(shape: tuple[int, ...]) -> Any:
    return np.zeros(shape, dtype=np.float32)


def address(tensor: Any) -> int:
    return int(tensor.data_ptr() if isinstance(tensor, torch.Tensor) else tensor.ctypes.data)


Make = Callable[[tuple[int, ...]], Any]
both = pytest.mark.parametrize("make", [torch_of, numpy_of])


def refused(call: Callable[[], Any]) -> dict[str, Any]:
    """Field → problem of a call that is refused."""
    with pytest.raises(InvalidInput) as caught:
        call()
    return {problem.field: problem for problem in caught.value.problems}


@both
def test_native_code_gets_addresses_and_rows_in_its_own_order(make: Make) -> None:
    native = Recorder()
    x, weight, y = make((4, 6)), make((6,)), make((4, 6))
    assert rms(native)(x, weight, y) is y
    assert native.calls == [(address(weight), address(x), address(y), 4)]


@both
def test_every_way_to_give_tensors_is_the_same_call(make: Make) -> None:
    native = Recorder()
    kernel = rms(native)
    x, weight, y = make((4, 6)), make((6,)), make((4, 6))
    assert kernel(x, weight, out=y) is y
    assert kernel(x, weight, out=[y]) is y
    assert kernel(x, weight, out={"y": y}) is y
    assert kernel(x, weight, y=y) is y
    assert kernel(y=y, weight=weight, x=x) is y
    assert kernel(x, y=y, weight=weight) is y
    assert len(native.calls) == 6
    assert len(set(native.calls)) == 1


@both
def test_outputs_that_are_not_given_are_new_and_of_the_same_library(make: Make) -> None:
    native = Recorder()
    x, weight = make((4, 6)), make((6,))
    y = rms(native)(x, weight)
    assert type(y) is type(x)
    assert tuple(y.shape) == (4, 6)
    assert y.dtype == x.dtype
    assert native.calls == [(address(weight), address(x), address(y), 4)]
    made = two(native)(x)
    assert [tuple(output.shape) for output in made] == [(4, 6), (4,)]


@both
def test_two_outputs_come_in_declared_order(make: Make) -> None:
    native = Recorder()
    x, y, total = make((4, 6)), make((4, 6)), make((4,))
    kernel = two(native)
    for outputs in (kernel(x, y, total), kernel(x, out=(y, total)), kernel(x, out={"total": total, "y": y})):
        assert outputs[0] is y
        assert outputs[1] is total
    assert set(native.calls) == {(address(total), address(x), address(y), 4)}


@both
@pytest.mark.parametrize(
    ("given", "fields"),
    [
        (lambda x, w, y: {"args": ()}, {"/x", "/weight"}),
        (lambda x, w, y: {"args": (x,)}, {"/weight"}),
        (lambda x, w, y: {"args": (x, w, y, y)}, {""}),
        (lambda x, w, y: {"args": (x, w), "x": x}, {"/x"}),
        (lambda x, w, y: {"args": (x, w, y), "out": y}, {"/y"}),
        (lambda x, w, y: {"args": (x, w), "bias": w}, {"/bias"}),
        (lambda x, w, y: {"args": (x, w), "out": {"x": y}}, {"/out/x"}),
        (lambda x, w, y: {"args": (x, w), "out": [y, y]}, {"/out"}),
        (lambda x, w, y: {"args": (x, None)}, {"/weight"}),
    ],
)
def test_tensors_that_are_not_the_kernels_are_named(make: Make, given: Any, fields: set[str]) -> None:
    native = Recorder()
    words = given(make((4, 6)), make((6,)), make((4, 6)))
    assert set(refused(lambda: rms(native)(*words.pop("args"), **words))) == fields
    assert native.calls == []


@both
def test_some_outputs_are_not_enough(make: Make) -> None:
    problem = refused(lambda: two(Recorder())(make((4, 6)), y=make((4, 6))))["/total"]
    assert problem.message == "give every output, or none"


def strided(make: Make) -> Any:
    return make((4, 12))[:, ::2]


@both
@pytest.mark.parametrize(
    ("x", "field"),
    [
        (lambda make: make((4, 5)), "/x/shape"),
        (lambda make: make((6,)), "/x/shape"),
        (lambda make: make(()), "/x/shape"),
        (lambda make: make((5, 6)), "/x/shape"),
        (lambda make: make((6, 4)).T, "/x/strides"),
        (strided, "/x/strides"),
        (lambda make: [0.0] * 24, "/x"),
        (lambda make: None, "/x"),
    ],
)
def test_a_wrong_input_is_named_and_nothing_runs(make: Make, x: Any, field: str) -> None:
    native = Recorder()
    kernel = rms(native)
    weight, y = make((6,)), make((4, 6))
    assert set(refused(lambda: kernel(x(make), weight, y))) == {field}
    assert set(refused(lambda: kernel(x(make), weight))) == {field}
    assert native.calls == []


@pytest.mark.parametrize("dtype", ["float64", "float16", "int32"])
def test_another_dtype_is_refused(dtype: str) -> None:
    kernel = rms(Recorder())
    x = torch.zeros((4, 6), dtype=getattr(torch, dtype))
    problem = refused(lambda: kernel(x, torch.zeros(6)))["/x/dtype"]
    assert (problem.value, problem.allowed) == (dtype, "float32")
    problem = refused(lambda: kernel(x.numpy(), np.zeros(6, np.float32)))["/x/dtype"]
    assert (problem.value, problem.allowed) == (dtype, "float32")


def test_all_that_is_wrong_is_said_at_once() -> None:
    found = refused(lambda: rms(Recorder())(torch.zeros((4, 5)), torch.zeros(6, dtype=torch.float64), torch.zeros(3)))
    assert set(found) == {"/x/shape", "/weight/dtype", "/y/shape"}
    assert "[4, 5]" in found["/x/shape"].message
    assert "[4, 6]" in found["/x/shape"].message


def test_torch_tensors_without_plain_memory_are_refused() -> None:
    kernel = rms(Recorder())
    weight = torch.zeros(6)
    assert set(refused(lambda: kernel(torch.zeros((4, 6), device="meta"), weight))) == {"/x/device"}
    assert set(refused(lambda: kernel(torch.zeros((4, 6)).to_sparse(), weight))) == {"/x/layout"}
    assert set(refused(lambda: kernel(torch._neg_view(torch.zeros((4, 6))), weight))) == {"/x"}
    batched = torch.func.vmap(lambda x: kernel(x, weight))
    assert set(refused(lambda: batched(torch.zeros((2, 4, 6))))) == {"/x"}

    class Wrapped(torch.Tensor):
        pass

    assert set(refused(lambda: kernel(torch.zeros((4, 6)).as_subclass(Wrapped), weight))) == {"/x"}


@pytest.mark.parametrize("left_bytes", [0, 4, 4 * 6 * 4 - 1])
def test_a_storage_that_was_shrunk_under_its_tensor_is_refused(left_bytes: int) -> None:
    """As sharded training frees parameters: the shape stays, the memory goes."""
    native = Recorder()
    kernel, weight = rms(native), torch.zeros(6)
    gone = torch.zeros((4, 6))
    gone.untyped_storage().resize_(left_bytes)
    assert set(refused(lambda: kernel(gone, weight))) == {"/x/storage"}
    assert set(refused(lambda: kernel(torch.zeros((4, 6)), weight, out=gone))) == {"/y/storage"}
    assert refused(lambda: kernel(gone, weight))["/x/storage"].value == left_bytes
    part = torch.zeros((9, 6))[5:]
    assert kernel(part, weight).shape == (4, 6), "the last rows of a storage are whole"
    part.untyped_storage().resize_(9 * 6 * 4 - 4)
    assert set(refused(lambda: kernel(part, weight))) == {"/x/storage"}
    assert len(native.calls) == 1, "nothing has run but the whole one"


def test_libraries_are_not_mixed() -> None:
    found = refused(lambda: rms(Recorder())(torch.zeros((4, 6)), np.zeros(6, np.float32)))
    assert set(found) == {"/weight"}


def test_numpy_arrays_that_native_code_cannot_use_are_refused() -> None:
    kernel = rms(Recorder())
    x, weight = np.zeros((4, 6), np.float32), np.zeros(6, np.float32)
    assert set(refused(lambda: kernel(x.astype(">f4"), weight))) == {"/x/dtype"}
    read_only = np.zeros((4, 6), np.float32)
    read_only.flags.writeable = False
    assert set(refused(lambda: kernel(x, weight, read_only))) == {"/y/writeable"}
    kernel(read_only, weight)  # reading is allowed
    odd = np.zeros(4 * 6 * 4 + 1, np.uint8)[1:].view(np.float32).reshape(4, 6)
    problem = refused(lambda: kernel(odd, weight))["/x/alignment"]
    assert (problem.value, problem.allowed) == (1, "4 bytes")
    assert set(refused(lambda: kernel(np.ma.zeros((4, 6), np.float32), weight))) == {"/x"}


def test_a_misaligned_torch_tensor_is_refused() -> None:
    base = torch.from_numpy(np.zeros(4 * 6 * 4 + 2, np.uint8)[2:].view(np.float32).reshape(4, 6))
    assert base.data_ptr() % 4 == 2
    assert set(refused(lambda: rms(Recorder())(base, torch.zeros(6)))) == {"/x/alignment"}


@both
def test_outputs_overlap_nothing(make: Make) -> None:
    native = Recorder()
    kernel = rms(native)
    x, weight = make((4, 6)), make((6,))
    problem = refused(lambda: kernel(x, weight, x))["/y"]
    assert problem.value == "x"
    assert "96 bytes" in problem.message
    memory = make((9, 6))
    for start in (1, 4):  # shares rows 1..4 or the last row with x
        assert set(refused(lambda start=start: kernel(memory[:4], weight, memory[start - 1 : start + 3]))) == {"/y"}
    assert native.calls == []
    kernel(memory[:4], weight, memory[4:8])  # side by side is apart
    kernel(memory[4:8], memory[8], memory[:4])
    kernel(x, x[0], make((4, 6)))  # inputs may share
    assert len(native.calls) == 3
    total, y = memory.reshape(-1)[20:24], memory[:4]
    assert set(refused(lambda: two(native)(x, y, total))) == {"/y"}  # y and total, said once


@both
def test_no_rows_are_no_work(make: Make) -> None:
    native = Recorder()
    kernel = rms(native)
    y = kernel(make((0, 6)), make((6,)))
    assert tuple(y.shape) == (0, 6)
    given = make((0, 6))
    assert kernel(make((0, 6)), make((6,)), given) is given
    assert native.calls == []
    assert set(refused(lambda: kernel(make((0, 5)), make((6,))))) == {"/x/shape"}
    assert set(refused(lambda: kernel(make((0, 6)), make((6,)), make((4, 6))))) == {"/y/shape"}


@both
def test_other_rows_only_when_asked_for(make: Make) -> None:
    native = Recorder()
    assert set(refused(lambda: rms(native)(make((7, 6)), make((6,))))) == {"/x/shape"}
    kernel = rms(native, any_rows=True)
    for rows in (1, 4, 7):
        assert tuple(kernel(make((rows, 6)), make((6,))).shape) == (rows, 6)
    assert [call[-1] for call in native.calls] == [1, 4, 7]
    assert set(refused(lambda: kernel(make((7, 6)), make((6,)), make((4, 6))))) == {"/y/shape"}


def test_more_elements_than_the_kernel_counts_are_refused() -> None:
    signature = rms(Recorder(), any_rows=True).signature
    most = (2**31 - 1) // 6
    assert signature.takes(most)
    assert not signature.takes(most + 1)


def test_a_code_of_the_kernel_is_an_error() -> None:
    with pytest.raises(KernelFailed, match="returned 3"):
        rms(Recorder(code=3))(torch.zeros((4, 6)), torch.zeros(6))


def test_gradients_are_refused_before_anything_runs() -> None:
    native = Recorder()
    kernel = rms(native)
    x, weight = torch.zeros((4, 6)), torch.nn.Parameter(torch.zeros(6))
    problem = refused(lambda: kernel(x, weight))["/weight/requires_grad"]
    assert "no_grad" in problem.message
    assert native.calls == []
    with torch.no_grad():
        kernel(x, weight)
    with torch.inference_mode():
        kernel(x, weight, torch.zeros((4, 6)))
    assert len(native.calls) == 2


def test_autograd_notices_an_overwritten_tensor() -> None:
    kernel = rms(Recorder())
    y, leaf = torch.ones((4, 6)), torch.ones((4, 6), requires_grad=True)
    product = (y * leaf).sum()
    kernel(torch.zeros((4, 6)), torch.zeros(6), y)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        product.backward()


def test_copies_are_the_kernel_and_pickles_are_refused() -> None:
    kernel = rms(Recorder())
    assert copy.copy(kernel) is kernel
    assert copy.deepcopy({"kernel": kernel})["kernel"] is kernel
    with pytest.raises(TypeError, match="catalog entry"):
        pickle.dumps(kernel)


def test_what_binds_a_kernel_to_its_rows() -> None:
    assert row_bound(resolve_case({"kernel": "softmax", "dims": {"rows": 4, "cols": 6}})) is None
    square = {
        **TWO_OUTPUTS,
        "name": "square",
        "dims": ["rows"],
        "axes": {**AXES, "col": {"dim": "rows", "kind": "column"}},
    }
    assert "col" in str(row_bound(resolve_case({"program": square, "dims": {"rows": 4}})))
    body = [{"store": {"tensor": "y", "over": ["col"], "value": "x[row, col + rows - 4]"}}, *TWO_OUTPUTS["body"][::2]]
    shifted = {**TWO_OUTPUTS, "name": "shifted", "body": body}
    assert "subscript" in str(row_bound(resolve_case({"program": shifted, "dims": {"rows": 4, "cols": 6}})))
    update = {"update": {"reducer": "r", "over": ["col"], "value": "x"}}
    loop = {"loop": {"count": "rows", "body": [update]}}
    ends = [{"finalize": {"reducer": "r", "into": "s"}}, *TWO_OUTPUTS["body"][1:]]

    def bound(opened: dict[str, Any], *body: dict[str, Any]) -> str:
        program = {**TWO_OUTPUTS, "name": "bounded", "body": [{"reducer": {"name": "r", "op": "sum", **opened}}, *body]}
        return str(row_bound(resolve_case({"program": program, "dims": {"rows": 4, "cols": 6}})))

    assert bound({}, loop, *ends) == "None"
    counted = {
        "loop": {**loop["loop"], "index": "t", "body": [{"update": {**update["update"], "value": "x[0] + x[t]"}}]}
    }
    assert "names its index" in bound({}, counted, *ends)
    binned = {"update": {**update["update"], "index": ["index(row)"]}}
    stores = [
        {"store": {"tensor": "y", "over": ["col"], "value": "s"}},
        {"store": {"tensor": "total", "over": [], "value": "1.0"}},
    ]
    assert "depends on 'rows'" in bound({"shape": ["col"]}, binned, ends[0], *stores)


IN_PLACE = {
    "name": "in_place",
    "dims": ["rows", "cols"],
    "axes": AXES,
    "tensors": {
        "x": {"axes": ["row", "col"], "role": "input"},
        "y": {"axes": ["row", "col"], "role": "output", "aliases": "x"},
        "s": {"axes": ["row"], "role": "output"},
    },
    "body": [
        {"reduce": {"into": "total", "op": "sum", "over": ["col"], "value": "x"}},
        {"store": {"tensor": "y", "over": ["col"], "value": "x - total"}},
        {"store": {"tensor": "s", "over": [], "value": "total"}},
    ],
}


@both
def test_an_output_that_shares_its_input_is_that_tensor(make: Make) -> None:
    native = Recorder()
    kernel = kernel_of(native, {"program": IN_PLACE, "dims": {"rows": 4, "cols": 6}}, ("x", "y", "s", "rows"))
    x = make((4, 6))
    y, s = kernel(x)
    assert y is x
    assert kernel(x, x, s)[0] is x
    assert kernel(x, out={"y": x, "s": s})[1] is s
    assert len(native.calls) == 3
    assert all(call[0] == call[1] for call in native.calls)
    other = refused(lambda: kernel(x, make((4, 6)), s))["/y"]
    assert "written over 'x'" in other.message
    memory = make((8, 6))
    assert set(refused(lambda: kernel(memory[:4], memory[1:5], s))) == {"/y"}
    assert "/s" in refused(lambda: kernel(x, x, x.reshape(-1)[:4]))  # what else overlaps is refused as ever
    assert len(native.calls) == 3


def test_a_kernel_that_writes_over_an_input_is_no_torch_operator() -> None:
    kernel = kernel_of(Recorder(), {"program": IN_PLACE, "dims": {"rows": 4, "cols": 6}}, ("x", "y", "s", "rows"))
    x = torch.zeros((4, 6))
    before = x._version
    kernel(x)
    assert x._version > before
    assert "no torch operator" in refused(kernel.torch_ops)[""].message
