"""What the real driver calls, with stand-ins for cuda.core and its bindings; and that the real ones have the names."""

from __future__ import annotations

import ctypes
import enum
import importlib
import sys
import types
from pathlib import Path
from typing import Any

import pytest

from search.lowering.contract import Argument
from search.measuring.gpu.attached import DRIVER_FILES
from search.measuring.gpu.cuda_driver import CudaDriver
from search.measuring.gpu.driver import DriverFault

UUID = "GPU-5f3c1a2b-0000-0000-0000-000000000001"
_CALLED = [
    "cuKernelGetFunction",
    "cuEventDestroy",
    "cuKernelSetAttribute",
    "cuStreamBeginCapture",
    "cuStreamEndCapture",
    "cuGraphInstantiate",
    "cuGraphDestroy",
    "cuGraphLaunch",
    "cuGraphExecDestroy",
    "cuMemAlloc",
    "cuMemFree",
    "cuMemcpyHtoD",
    "cuMemcpyDtoH",
    "cuEventCreate",
    "cuEventRecord",
    "cuEventElapsedTime",
    "cuCtxSynchronize",
    "cuMemcpyDtoDAsync",
]


class CUresult(enum.Enum):
    CUDA_SUCCESS = 0
    CUDA_ERROR_ILLEGAL_ADDRESS = 700


class Fake:
    """cuda.core and cuda.bindings.driver that note their calls."""

    def __init__(self, uuid: str = UUID) -> None:
        self.calls: list[tuple[Any, ...]] = []
        self.status = CUresult.CUDA_SUCCESS
        self.refusal: Exception | None = None
        self.values: dict[str, Any] = {"cuMemAlloc": 512, "cuEventElapsedTime": 2.5, "cuStreamEndCapture": "graph"}
        driver = types.ModuleType("cuda.bindings.driver")
        for name in _CALLED:
            setattr(driver, name, self._function(name))
        driver.__dict__.update(
            CUresult=CUresult,
            CUstream=lambda handle: ("stream", handle),
            CUkernel=lambda handle: ("kernel", handle),
            CUevent_flags=types.SimpleNamespace(CU_EVENT_DEFAULT=0),
            CUstreamCaptureMode=types.SimpleNamespace(CU_STREAM_CAPTURE_MODE_THREAD_LOCAL="local"),
            CUfunction_attribute=types.SimpleNamespace(CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES="shared"),
        )
        device = types.SimpleNamespace(
            set_current=lambda: None,
            uuid=uuid.removeprefix("GPU-"),
            create_stream=lambda: types.SimpleNamespace(handle=7),
            properties=types.SimpleNamespace(l2_cache_size=50 << 20),
        )
        kernel = types.SimpleNamespace(handle=9)
        core = types.ModuleType("cuda.core")
        core.__dict__.update(
            Device=lambda place: device,
            LaunchConfig=lambda **words: words,
            ObjectCode=types.SimpleNamespace(
                from_cubin=lambda data: types.SimpleNamespace(get_kernel=lambda symbol: kernel)
            ),
            launch=self._launch,
        )
        bindings = types.ModuleType("cuda.bindings")
        bindings.driver = driver  # type: ignore[attr-defined]
        cuda = types.ModuleType("cuda")
        cuda.core, cuda.bindings = core, bindings  # type: ignore[attr-defined]
        self.modules = {"cuda": cuda, "cuda.core": core, "cuda.bindings": bindings, "cuda.bindings.driver": driver}
        self.core = core

    def _launch(self, *words: Any) -> None:
        if self.refusal is not None:
            raise self.refusal
        self.calls.append(("launch", *words[1:]))

    def _function(self, name: str) -> Any:
        def called(*words: Any) -> tuple[Any, ...]:
            self.calls.append((name, *words))
            value = self.values.get(name)
            return (self.status,) if value is None else (self.status, value)

        called.__name__ = name
        return called


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> Fake:
    one = Fake()
    for name, module in one.modules.items():
        monkeypatch.setitem(sys.modules, name, module)
    return one


def test_a_launch_passes_addresses_and_int32(fake: Fake) -> None:
    driver = CudaDriver(UUID)
    function = driver.function(driver.load(b"cubin"), "k", dynamic_shared_bytes=100_000)
    assert fake.calls == [
        ("cuKernelGetFunction", ("kernel", 9)),
        ("cuKernelSetAttribute", "shared", 100_000, ("kernel", 9), 0),
    ]
    call = driver.bind(
        function,
        blocks=3,
        threads=128,
        arguments=[(Argument(name="x", kind="tensor"), 1 << 40), (Argument(name="rows", kind="dim"), 12)],
    )
    call()
    name, config, _, address, rows = fake.calls[-1]
    assert (name, config) == ("launch", {"grid": 3, "block": 128, "shmem_size": 100_000})
    assert (address, type(rows), rows.value) == (1 << 40, ctypes.c_int32, 12)
    assert driver.last_level_cache_bytes == 50 << 20


def test_a_graph_is_captured_instantiated_and_replayed(fake: Fake) -> None:
    driver = CudaDriver(UUID)
    replay = driver.capture([lambda: fake.calls.append(("one",)), lambda: fake.calls.append(("two",))])
    replay()
    assert [call[0] for call in fake.calls] == [
        *("cuStreamBeginCapture", "one", "two", "cuStreamEndCapture", "cuGraphInstantiate", "cuGraphDestroy"),
        "cuGraphLaunch",
    ]
    del replay
    assert fake.calls[-1][0] == "cuGraphExecDestroy"


def test_memory_and_time(fake: Fake) -> None:
    driver = CudaDriver(UUID)
    assert driver.allocate(10) == 512
    driver.upload(512, 33, 10)
    driver.download(33, 512, 10)
    assert [call[0] for call in fake.calls[1:]] == [
        *("cuCtxSynchronize", "cuMemcpyHtoD", "cuCtxSynchronize", "cuCtxSynchronize", "cuMemcpyDtoH"),
    ]
    driver.bind_copy(512, 1024, 10)()
    assert fake.calls[-1] == ("cuMemcpyDtoDAsync", 512, 1024, 10, ("stream", 7))
    assert driver.elapsed_seconds(driver.event(), driver.event()) == pytest.approx(2.5e-3)


def test_faults_have_the_drivers_names(fake: Fake) -> None:
    driver = CudaDriver(UUID)
    fake.status = CUresult.CUDA_ERROR_ILLEGAL_ADDRESS
    with pytest.raises(DriverFault, match="CUDA_ERROR_ILLEGAL_ADDRESS: cuCtxSynchronize") as fault:
        driver.synchronize()
    assert fault.value.kind == "poisoned"

    fake.status = CUresult.CUDA_SUCCESS
    function = driver.function(driver.load(b"cubin"), "k", dynamic_shared_bytes=0)
    fake.refusal = RuntimeError("CUDA_ERROR_INVALID_VALUE: one of the parameters is not in range")
    with pytest.raises(DriverFault) as refused:
        driver.bind(function, blocks=1, threads=1, arguments=[])()
    assert (refused.value.code, refused.value.kind) == ("CUDA_ERROR_INVALID_VALUE", "refused")


@pytest.mark.parametrize("mistake", [TypeError("an integer is required"), ValueError("too many values")])
def test_what_never_reached_the_driver_is_our_own_mistake(
    fake: Fake, monkeypatch: pytest.MonkeyPatch, mistake: Exception
) -> None:
    driver = CudaDriver(UUID)
    function = driver.function(driver.load(b"cubin"), "k", dynamic_shared_bytes=0)
    fake.refusal = mistake
    with pytest.raises(type(mistake)) as raised:
        driver.bind(function, blocks=1, threads=1, arguments=[])()
    assert raised.value is mistake

    def mistaken(*_: Any) -> None:
        raise mistake

    monkeypatch.setattr(fake.core, "Device", mistaken)
    with pytest.raises(type(mistake)):
        CudaDriver(UUID)


def test_an_error_of_cuda_core_without_a_name_is_the_drivers_all_the_same(fake: Fake) -> None:
    class CUDAError(Exception):
        pass

    driver = CudaDriver(UUID)
    function = driver.function(driver.load(b"cubin"), "k", dynamic_shared_bytes=0)
    fake.refusal = CUDAError("something new")
    with pytest.raises(DriverFault, match="CUDA_ERROR_UNNAMED: something new"):
        driver.bind(function, blocks=1, threads=1, arguments=[])()


def test_events_are_given_back(fake: Fake) -> None:
    driver = CudaDriver(UUID)
    fake.values["cuEventCreate"] = "event"
    event = driver.event()
    driver.record(event)
    assert fake.calls[-1] == ("cuEventRecord", "event", ("stream", 7))
    del event
    assert fake.calls[-1] == ("cuEventDestroy", "event")


def test_another_card_than_was_probed(fake: Fake) -> None:
    with pytest.raises(DriverFault, match="it should be GPU-other") as fault:
        CudaDriver("GPU-other")
    assert fault.value.kind == "lost"


def test_without_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cuda.core", None)
    monkeypatch.setitem(sys.modules, "cuda", types.ModuleType("cuda"))
    with pytest.raises(DriverFault, match=r"cuda\.core cannot be imported"):
        CudaDriver(UUID)


def test_the_real_package_without_a_driver() -> None:
    pytest.importorskip("cuda.core")
    if any(Path(file).exists() for file in DRIVER_FILES):
        pytest.skip("there is a driver here")
    with pytest.raises(DriverFault) as fault:
        CudaDriver(UUID)
    assert fault.value.kind == "lost"


def test_the_real_packages_have_what_is_called() -> None:
    core = pytest.importorskip("cuda.core")
    driver = importlib.import_module("cuda.bindings.driver")
    assert [name for name in _CALLED if not hasattr(driver, name)] == []
    errors = importlib.import_module("cuda.core._utils.cuda_utils")
    assert errors.CUDAError.__name__ == "CUDAError"
    for name in ("Device", "LaunchConfig", "ObjectCode", "launch"):
        assert hasattr(core, name), name
    config = core.LaunchConfig(grid=3, block=128, shmem_size=100_000)
    assert tuple(config.grid) == (3, 1, 1)
    assert core.Stream.from_handle is not None
    assert driver.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_THREAD_LOCAL is not None
    assert driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES is not None
