"""NVML as this project reads it, with a stand-in for its package: what is told and what is not, a card that is gone."""

from __future__ import annotations

import sys
import time
import types
from typing import Any

import pytest

from search.measuring.gpu.driver import DriverFault
from search.measuring.gpu.nvml import NvmlCard, cards


class NVMLError(Exception):
    pass


class NotFoundError(NVMLError):
    pass


def fake_nvml(**other: Any) -> types.ModuleType:
    """A module with what a healthy card answers; ``other`` replaces values, an exception is raised."""
    values: dict[str, Any] = {
        "nvmlInit": None,
        "nvmlShutdown": None,
        "nvmlDeviceGetCount": 1,
        "nvmlDeviceGetHandleByIndex": "card",
        "nvmlDeviceGetHandleByUUID": "card",
        "nvmlSystemGetDriverVersion": "580.1",
        "nvmlDeviceGetName": b"NVIDIA H200",
        "nvmlDeviceGetUUID": "GPU-1",
        "nvmlDeviceGetCudaComputeCapability": (9, 0),
        "nvmlDeviceGetNumGpuCores": 132 * 128,
        "nvmlDeviceGetMemoryInfo": types.SimpleNamespace(total=1000),
        "nvmlDeviceGetEccMode": (1, 1),
        "nvmlDeviceGetMigMode": NVMLError("Not Supported"),
        "nvmlDeviceGetPersistenceMode": 1,
        "nvmlDeviceGetEnforcedPowerLimit": 700_000,
        "nvmlDeviceGetComputeRunningProcesses": [types.SimpleNamespace(pid=5), types.SimpleNamespace(pid=6)],
        "nvmlDeviceGetProcessUtilization": [types.SimpleNamespace(pid=6, smUtil=3, timeStamp=time.time() * 1e6 + 1e6)],
        "nvmlDeviceGetClockInfo": 1980,
        "nvmlDeviceGetMaxClockInfo": 1980,
        "nvmlDeviceGetApplicationsClock": NVMLError("Not Supported"),
        "nvmlDeviceGetCurrentClocksThrottleReasons": 0x4 | 0x40,
        "nvmlDeviceGetTemperature": 40,
        "nvmlDeviceGetPowerUsage": 123_400,
        **other,
    }
    module = types.ModuleType("pynvml")
    for name, value in values.items():
        setattr(module, name, answering(value))
    module.__dict__.update(
        NVMLError=NVMLError, NVMLError_NotFound=NotFoundError, NVML_CLOCK_SM=1, NVML_CLOCK_MEM=2, NVML_TEMPERATURE_GPU=0
    )
    return module


def answering(value: Any) -> Any:
    def answer(*_: Any) -> Any:
        if isinstance(value, Exception):
            raise value
        return value

    return answer


@pytest.fixture
def nvml(monkeypatch: pytest.MonkeyPatch) -> Any:
    return lambda **other: monkeypatch.setitem(sys.modules, "pynvml", fake_nvml(**other))


def test_facts_of_a_card(nvml: Any) -> None:
    nvml()
    (facts,) = cards()
    assert (facts["name"], facts["multiprocessors"], facts["compute_capability"]) == ("NVIDIA H200", 132, [9, 0])
    assert facts["max_clocks_hz"] == {"sm": 1_980_000_000, "memory": 1_980_000_000}
    assert facts["application_clocks_hz"] == {"sm": None, "memory": None}
    assert (facts["ecc"], facts["mig"], facts["power_limit_watts"]) == (True, None, 700.0)
    assert facts["compute_processes"] == [5, 6]


def test_a_card_that_is_lost_says_nothing_of_the_others(nvml: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def handle(place: int) -> str:
        if place == 0:
            raise NVMLError("GPU is lost")
        return f"card {place}"

    def name(card: str) -> str:
        if card == "card 1":
            raise NVMLError("Unknown Error")
        return "NVIDIA H200"

    nvml(nvmlDeviceGetCount=3)
    monkeypatch.setattr(sys.modules["pynvml"], "nvmlDeviceGetHandleByIndex", handle)
    monkeypatch.setattr(sys.modules["pynvml"], "nvmlDeviceGetName", name)
    gone, broken, good = cards()
    assert gone == {"lost": "card 0 does not answer: GPU is lost"}
    assert broken == {"lost": "card 1 does not answer: Unknown Error"}
    assert good["name"] == "NVIDIA H200"


def test_a_moment_of_a_card(nvml: Any) -> None:
    nvml()
    state = NvmlCard("GPU-1").state()
    assert state.throttle_reasons == ("sw_power_cap", "hw_thermal_slowdown")
    assert (state.sm_clock_hz, state.temperature_celsius, state.power_watts) == (1_980_000_000, 40, 123.4)


def test_who_computes(nvml: Any) -> None:
    nvml()
    found = NvmlCard("GPU-1").processes(since_seconds=1)
    assert [(process.pid, process.active) for process in found] == [(5, False), (6, True)]
    nvml(nvmlDeviceGetProcessUtilization=NotFoundError("nobody did anything"))
    assert {process.active for process in NvmlCard("GPU-1").processes(since_seconds=1)} == {False}
    nvml(nvmlDeviceGetProcessUtilization=NVMLError("Not Supported"))
    assert {process.active for process in NvmlCard("GPU-1").processes(since_seconds=1)} == {None}


def test_a_card_that_is_gone(nvml: Any) -> None:
    nvml(nvmlDeviceGetCurrentClocksThrottleReasons=NVMLError("GPU is lost"))
    card = NvmlCard("GPU-1")
    with pytest.raises(DriverFault) as fault:
        card.state()
    assert fault.value.kind == "lost"
    nvml(nvmlDeviceGetHandleByUUID=NVMLError("Not Found"))
    with pytest.raises(DriverFault, match="GPU-1: Not Found"):
        NvmlCard("GPU-1")


def test_a_driver_that_does_not_start(nvml: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    nvml(nvmlInit=NVMLError("Driver/library version mismatch"))
    with pytest.raises(DriverFault, match="version mismatch"):
        cards()
    monkeypatch.setitem(sys.modules, "pynvml", None)
    with pytest.raises(DriverFault, match="nvidia-ml-py cannot be imported"):
        cards()
