"""GPU kernels as callables, as far as that goes without a GPU: stand-ins for cuda.core and for torch's CUDA part."""

from __future__ import annotations

import ctypes
import enum
import hashlib
import sys
import types
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

from search.errors import DeviceUnavailable, InvalidInput
from search.jit import build, this_gpu
from search.jit.cuda_arrays import CudaAccess
from search.jit.cuda_library import load_cuda, runs_on
from search.jit.errors import LaunchFailed, LoadFailed
from search.jit.gpu import Gpu as TorchGpu
from search.jit.gpu import named_gpu, torch_gpu
from search.jit.signature import Signature
from search.lowering.contract import Argument, Artifact, Launch
from search.program.resolve import resolve_case


class CUresult(enum.Enum):
    CUDA_SUCCESS = 0
    CUDA_ERROR_NO_DEVICE = 100
    CUDA_ERROR_INVALID_IMAGE = 200


class Gpu:
    """What the launcher calls, noted: torch's current stream, cuda.core, its bindings."""

    def __init__(self) -> None:
        self.calls: list[tuple[Any, ...]] = []
        self.stream, self.current, self.status = 11, 0, CUresult.CUDA_SUCCESS
        self.refusal: Exception | None = None
        cuda = types.SimpleNamespace(
            is_available=lambda: True,
            device_count=lambda: 2,
            current_device=lambda: self.current,
            get_device_capability=lambda index: (9, 0),
            get_device_properties=lambda index: types.SimpleNamespace(uuid=f"A{index}"),
            current_stream=lambda index=None: types.SimpleNamespace(cuda_stream=self.stream, synchronize=lambda: None),
            device=lambda index: self.calls.append(("device", index)) or nullcontext(),
        )
        version = types.SimpleNamespace(cuda="13.0")
        kernel = types.SimpleNamespace(handle=9)
        core = types.ModuleType("cuda.core")
        core.__dict__.update(
            Device=lambda index: types.SimpleNamespace(set_current=lambda: None),
            ObjectCode=types.SimpleNamespace(
                from_cubin=lambda data: types.SimpleNamespace(get_kernel=lambda symbol: kernel)
            ),
            Stream=types.SimpleNamespace(from_handle=lambda handle: ("stream", handle)),
            LaunchConfig=lambda **words: words,
            launch=self._launch,
        )
        driver = types.ModuleType("cuda.bindings.driver")
        driver.__dict__.update(
            CUresult=CUresult,
            CUkernel=lambda handle: handle,
            CUfunction_attribute=types.SimpleNamespace(CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES="shared"),
            cuKernelGetFunction=self._get_function,
            cuKernelSetAttribute=lambda *words: self.calls.append(words) or (self.status,),
        )
        bindings = types.ModuleType("cuda.bindings")
        package = types.ModuleType("cuda")
        package.core, package.bindings, bindings.driver = core, bindings, driver  # type: ignore[attr-defined]
        torch = types.ModuleType("torch")
        torch.__dict__.update(cuda=cuda, version=version, __version__="2")
        self.core = core
        self.modules = {
            "torch": torch,
            "cuda": package,
            "cuda.core": core,
            "cuda.bindings": bindings,
            "cuda.bindings.driver": driver,
        }

    def _get_function(self, kernel: Any) -> tuple[CUresult, int]:
        return self.status, 1

    def _launch(self, *words: Any) -> None:
        if self.refusal is not None:
            raise self.refusal
        self.calls.append(("launch", *words))


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Gpu:
    one = Gpu()
    for name, module in one.modules.items():
        monkeypatch.setitem(sys.modules, name, module)
    return one


def an_artifact(folder: Path, **other: Any) -> Artifact:
    (folder / "k.cubin").write_bytes(b"cubin")
    fields: dict[str, Any] = {
        "source_sha256": "s",
        "artifact_sha256": "a",
        "library_path": str(folder / "k.cubin"),
        "library_sha256": hashlib.sha256(b"cubin").hexdigest(),
        "symbol": "k",
        "arguments": tuple(Argument(name=n, kind="dim" if n == "rows" else "tensor") for n in ("x", "y", "rows")),
        "launch": Launch(threads_per_block=128, rows_per_block=4, dynamic_shared_bytes=0),
        "architecture": "sm_90",
    }
    return Artifact(**{**fields, **other})


def loaded(artifact: Artifact) -> Any:
    return load_cuda(artifact, gpu=TorchGpu(index=0, architecture="sm_90", uuid="GPU-a0"), row_dim="rows", rows=5)


def test_each_call_launches_on_the_stream_that_is_current_then(gpu: Gpu, tmp_path: Path) -> None:
    function = loaded(an_artifact(tmp_path))
    gpu.calls.clear()
    assert function(64, 128, 9) == 0
    gpu.stream = 12  # a graph is being captured, say
    function(64, 128, 9)
    first, second = gpu.calls
    name, stream, config, _, x, y, rows = first
    assert (name, stream, config) == ("launch", ("stream", 11), {"grid": 3, "block": 128, "shmem_size": 0})
    assert (x, y, type(rows), rows.value) == (64, 128, ctypes.c_int32, 9)
    assert second[1] == ("stream", 12)


def test_another_current_device_is_left_as_it_was(gpu: Gpu, tmp_path: Path) -> None:
    function = loaded(an_artifact(tmp_path))
    gpu.calls.clear()
    gpu.current = 1
    function(64, 128, 9)
    assert [call[:2] for call in gpu.calls] == [("device", 0), ("launch", ("stream", 11))]


def test_shared_memory_is_asked_for_when_loading(gpu: Gpu, tmp_path: Path) -> None:
    loaded(an_artifact(tmp_path, launch=Launch(threads_per_block=128, rows_per_block=1, dynamic_shared_bytes=65536)))
    assert ("shared", 65536, 9, 0) in gpu.calls


def test_what_cannot_be_loaded(gpu: Gpu, tmp_path: Path) -> None:
    for other, message in (
        ({"launch": None}, "no launch"),
        ({"architecture": "sm_100"}, "built for sm_100, and this GPU is sm_90"),
        ({"library_sha256": "0" * 64}, "damaged or edited"),
        ({"library_path": str(tmp_path / "none")}, "cannot be loaded"),
    ):
        with pytest.raises(LoadFailed, match=message):
            loaded(an_artifact(tmp_path, **other))
    gpu.status = CUresult.CUDA_ERROR_INVALID_IMAGE
    with pytest.raises(LoadFailed, match="CUDA_ERROR_INVALID_IMAGE"):
        loaded(an_artifact(tmp_path))


@pytest.mark.parametrize(
    ("code", "error", "message"),
    [
        ("CUDA_ERROR_INVALID_VALUE", LaunchFailed, "k: CUDA_ERROR_INVALID_VALUE"),
        ("CUDA_ERROR_ILLEGAL_ADDRESS", LaunchFailed, "broke the CUDA context of this process; start another"),
        ("CUDA_ERROR_DEVICE_UNAVAILABLE", DeviceUnavailable, "no way to the GPU: CUDA_ERROR_DEVICE_UNAVAILABLE"),
    ],
)
def test_a_refused_launch_says_so(gpu: Gpu, tmp_path: Path, code: str, error: type[Exception], message: str) -> None:
    function = loaded(an_artifact(tmp_path))
    gpu.refusal = RuntimeError(f"{code}: as the driver says")
    with pytest.raises(error, match=message):
        function(64, 128, 9)


def test_a_gpu_that_vanishes_before_it_is_loaded_into(gpu: Gpu, tmp_path: Path) -> None:
    gpu.status = CUresult.CUDA_ERROR_NO_DEVICE
    with pytest.raises(DeviceUnavailable, match="NO_DEVICE"):
        loaded(an_artifact(tmp_path))


def test_which_code_runs_where() -> None:
    assert runs_on("sm_90", "sm_90")
    assert runs_on("sm_80", "sm_86")
    assert not runs_on("sm_86", "sm_80")
    assert not runs_on("sm_80", "sm_90")
    assert not runs_on("sm_90a", "sm_90")
    assert not runs_on(None, "sm_90")
    assert runs_on("sm_100", "sm_103")


def test_devices_of_torch(gpu: Gpu) -> None:
    assert torch_gpu() == named_gpu("cuda") == TorchGpu(index=0, architecture="sm_90", uuid="GPU-a0")
    assert named_gpu("cuda:1") == TorchGpu(index=1, architecture="sm_90", uuid="GPU-a1")
    assert named_gpu("cpu") is None
    with pytest.raises(DeviceUnavailable, match="index 2: torch sees 2"):
        named_gpu("cuda:2")
    with pytest.raises(InvalidInput, match="not a device of torch"):
        named_gpu("rocm")


def test_no_gpu_is_said_clearly() -> None:
    torch = pytest.importorskip("torch")
    if torch.cuda.is_available():
        pytest.skip("there is a GPU here")
    with pytest.raises(DeviceUnavailable, match=r"no GPU is present: torch .* sees none"):
        build("softmax", dims={"rows": 4, "cols": 64}, device="cuda")
    with pytest.raises(DeviceUnavailable, match="no GPU is present"):
        this_gpu()
    with pytest.raises(InvalidInput, match=r"catalogs\.this_device"):
        this_gpu("cpu")


def test_tensors_elsewhere_are_refused_by_name() -> None:
    torch = pytest.importorskip("torch")
    case = resolve_case({"kernel": "softmax", "dims": {"rows": 4, "cols": 64}})
    access = CudaAccess(Signature.of(case, any_rows=False), refuse_grad=True, index=1)
    tensor = torch.zeros(4, 64)
    assert access.address(0, tensor, (4, 64)) is None
    (problem,) = access.problems(0, tensor, (4, 64))
    assert (problem.field, problem.value, problem.allowed) == ("/x/device", "cpu", "cuda:1")
