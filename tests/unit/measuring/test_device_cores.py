"""Measuring devices have cores of their own where there are enough; a later look tries no compiler again."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from search.device.cores import with_own_cores
from search.device.gpu import absent_gpu, gpu_device
from search.device.probe import compile_only, probe_cpu
from search.device.spec import DeviceSpec
from search.measuring import attach
from search.measuring.gpu.attached import NO_DRIVER

FACTS: dict[str, Any] = {"name": "NVIDIA H200", "driver_version": "580.1", "compute_capability": [9, 0]}


def gpu(number: int, **changes: Any) -> DeviceSpec:
    words: dict[str, Any] = {"architecture": "sm_90", "toolchain": {"nvcc": "13"}, "unavailable": None, **changes}
    return gpu_device({**FACTS, "uuid": f"GPU-{number}"}, measure_cpus=[7], compile_cpus=range(7), **words)


def cpu(cores: int) -> DeviceSpec:
    device = probe_cpu(toolchain={"gcc": "13"}, unavailable=None)
    return replace(device, measure_cpus=(cores - 1,), compile_cpus=tuple(range(cores - 1)) or (0,))


@pytest.mark.parametrize(
    ("cores", "gpus", "measuring", "compiling"),
    [
        (8, 1, [(7,), (6,)], (0, 1, 2, 3, 4, 5)),
        (8, 3, [(7,), (6,), (5,), (4,)], (0, 1, 2, 3)),
        (8, 7, [(7,)] * 8, (0, 1, 2, 3, 4, 5, 6)),
        (8, 0, [(7,)], (0, 1, 2, 3, 4, 5, 6)),
        (2, 1, [(1,), (1,)], (0,)),
        (1, 1, [(0,), (0,)], (0,)),
    ],
)
def test_cores(cores: int, gpus: int, measuring: list[tuple[int]], compiling: tuple[int, ...]) -> None:
    where = {"measure_cpus": (cores - 1,), "compile_cpus": tuple(range(cores - 1)) or (0,)}
    untimed = compile_only("cuda-sm_90", toolchain={}, unavailable=None)
    given = [cpu(cores), *(replace(gpu(number), **where) for number in range(gpus))]
    found = with_own_cores([*given, absent_gpu("none"), replace(untimed, compile_cpus=(0,))])
    assert [device.measure_cpus for device in found[:-2]] == measuring
    assert {device.compile_cpus for device in found[:-2]} == {compiling}
    assert (found[-2].measure_cpus, found[-1].compile_cpus) == ((), (0,))


def test_a_later_look_asks_the_driver_and_no_compiler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    compiled: list[str] = []

    def compiling(architecture: str, *_: Any) -> tuple[dict[str, Any], str | None]:
        compiled.append(architecture)
        return {"nvcc": "14"}, None

    def attached(compiling: Any, **_: Any) -> tuple[DeviceSpec, ...]:
        toolchain, unavailable = compiling("sm_90")
        return (gpu(0, toolchain=toolchain, unavailable=unavailable),)

    monkeypatch.setattr(attach, "_compiling", compiling)
    monkeypatch.setattr(attach, "_cpu", lambda work, cancelled: compiled.append("cpu") or cpu(8))
    monkeypatch.setattr(attach, "attached_gpus", attached)
    first = attach.attached_devices(tmp_path)
    assert compiled == ["cpu", "sm_90"]
    assert attach.attached_devices(tmp_path, known=first) == first
    assert compiled == ["cpu", "sm_90"], "what is known to work is believed"
    doubted = [replace(spec, available=False) for spec in first]
    assert attach.attached_devices(tmp_path, known=doubted) == first
    assert compiled == ["cpu", "sm_90"] * 2
    monkeypatch.setattr(attach, "attached_gpus", lambda compiling, **_: (absent_gpu(NO_DRIVER),))
    assert [spec.reason for spec in attach.attached_devices(tmp_path, known=first)] == [None, NO_DRIVER]
    assert len(attach.attached_devices(tmp_path)) == 1, "where there never was a driver, no GPU is missed"
