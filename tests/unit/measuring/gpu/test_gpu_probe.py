"""Which GPUs there are: absent, broken and hanging drivers, hidden cards, and what a card's facts become."""

from __future__ import annotations

import sys
import types
from pathlib import Path
from typing import Any

import pytest

from search.device.gpu import code_architecture, gpu_device, kind_of, visible
from search.device.probe import split_cpus
from search.device.spec import DeviceSpec
from search.measuring.gpu.attached import attached_gpus
from search.measuring.gpu.driver import DriverFault
from search.measuring.gpu.probe_child import shown_uuids

H200: dict[str, Any] = {
    "name": "NVIDIA H200",
    "uuid": "GPU-5F3C1A2B-0001-0002-0003-000000000004",
    "compute_capability": [9, 0],
    "multiprocessors": 132,
    "memory_bytes": 150_000_000_000,
    "driver_version": "580.1",
    "clocks_hz": {"sm": 345_000_000, "memory": 3_201_000_000},
    "max_clocks_hz": {"sm": 1_980_000_000, "memory": 3_201_000_000},
    "application_clocks_hz": {"sm": 1_980_000_000, "memory": 3_201_000_000},
    "persistence": True,
    "ecc": True,
    "mig": False,
    "power_limit_watts": 700.0,
    "compute_processes": [],
}


def made(**other: Any) -> DeviceSpec:
    words: dict[str, Any] = {"toolchain": {"nvrtc": "13.0"}, "unavailable": None}
    return gpu_device({**H200, **other}, architecture="sm_90", measure_cpus=[3], compile_cpus=[0, 1], **words)


def test_a_card_as_a_device() -> None:
    device = made()
    assert (device.id, device.kind, device.architecture) == ("nvidia-h200:5f3c1a2b0001", "nvidia-h200", "sm_90")
    assert device.available
    assert DeviceSpec.from_document(device.document()) == device


def test_identity_is_what_a_winner_depends_on() -> None:
    device = made()
    for same in ({"uuid": "GPU-other"}, {"clocks_hz": {}}, {"compute_processes": [7]}, {"driver_version": "581"}):
        assert made(**same).identity_digest == device.identity_digest
    for other in ({"multiprocessors": 114}, {"power_limit_watts": 350.0}, {"ecc": False}, {"name": "NVIDIA H100"}):
        assert made(**other).identity_digest != device.identity_digest
    assert made(driver_version="581").toolchain_fingerprint != device.toolchain_fingerprint
    assert made(driver_version="581").toolchain["nvrtc"] == "13.0"


def test_kinds_are_words() -> None:
    assert kind_of("NVIDIA A100-SXM4-80GB") == "nvidia-a100-sxm4-80gb"
    assert kind_of("NVIDIA GeForce RTX 4090") == "nvidia-geforce-rtx-4090"
    assert kind_of("Tesla T4") == "nvidia-tesla-t4"


def test_cuda_visible_devices() -> None:
    cards = [H200, {**H200, "uuid": "GPU-aa"}]
    assert visible(cards, None) == cards
    assert visible(cards, "1") == [cards[1]]
    assert visible(cards, "1,0") == [cards[1], cards[0]]
    assert visible(cards, "GPU-5f3c") == [cards[0]]
    assert visible(cards, "") == []
    assert visible(cards, "0,-1,1") == [cards[0]]
    assert visible(cards, "0,7,1") == [cards[0]]
    assert visible(cards, "GPU-no,0") == []
    assert visible([{"lost": "card 0 does not answer"}, *cards], "1") == [cards[0]]


def test_numbers_are_cudas_own_and_become_uuids(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """CUDA counts the fastest card first: its 0 may be the second on the bus."""
    slow, fast = {**H200, "uuid": "GPU-AA", "name": "NVIDIA T4"}, {**H200, "uuid": "GPU-bb"}
    body = (
        "import os\n"
        "asked = 'order' in sys.argv and os.environ.get('CUDA_VISIBLE_DEVICES')\n"
        f"shown = {{False: None, '0': ['GPU-bb'], '1,0': ['GPU-aa', 'GPU-bb']}}[asked]\n"
        f"channel.answer({{'cards': {[slow, fast]!r}, 'shown': shown, 'unshown': None}})"
    )

    def found(shown: str, order: str | None = None) -> list[str | None]:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", shown)
        monkeypatch.setenv("CUDA_DEVICE_ORDER", order or "FASTEST_FIRST")
        return [device.uuid for device in probed(body, tmp_path, monkeypatch)]

    assert found("0") == ["GPU-bb"]
    assert found("1,0") == ["GPU-AA", "GPU-bb"]
    assert found("0", "PCI_BUS_ID") == ["GPU-AA"]
    assert found("GPU-bb") == ["GPU-bb"]
    silent = f"channel.answer({{'cards': {[slow, fast]!r}, 'shown': None, 'unshown': 'no cuda package'}})"
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    (unknown,) = probed(silent, tmp_path, monkeypatch)
    assert "counts as CUDA does, and CUDA does not say how (no cuda package)" in str(unknown.reason)
    (alone,) = probed(silent.replace(repr(slow) + ", ", ""), tmp_path, monkeypatch)
    assert alone.uuid == "GPU-bb", "a single card is number 0 in any order"


def test_cuda_says_which_cards_it_shows(monkeypatch: pytest.MonkeyPatch) -> None:
    driver = types.ModuleType("cuda.bindings.driver")
    bus = [bytes(15) + b"\x01", bytes(15) + b"\x02"]
    success = types.SimpleNamespace(name="CUDA_SUCCESS")
    driver.__dict__.update(
        CUresult=types.SimpleNamespace(CUDA_SUCCESS=success),
        cuInit=lambda flags: (success,),
        cuDeviceGetCount=lambda: (success, 2),
        cuDeviceGet=lambda place: (success, 1 - place),
        cuDeviceGetUuid=lambda device: (success, types.SimpleNamespace(bytes=bus[device])),
    )
    bindings = types.ModuleType("cuda.bindings")
    bindings.driver = driver  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "cuda.bindings", bindings)
    assert shown_uuids() == [
        "GPU-00000000-0000-0000-0000-000000000002",
        "GPU-00000000-0000-0000-0000-000000000001",
    ]
    driver.cuInit = lambda flags: (types.SimpleNamespace(name="CUDA_ERROR_NO_DEVICE"),)  # type: ignore[attr-defined]
    driver.cuInit.__name__ = "cuInit"
    with pytest.raises(DriverFault, match="CUDA_ERROR_NO_DEVICE: cuInit"):
        shown_uuids()


def test_no_driver_is_said_at_once_and_nobody_is_asked(tmp_path: Path) -> None:
    (device,) = attached_gpus(module="no.such.module", driver_files=(str(tmp_path / "nvidiactl"),))
    assert not device.available
    assert device.reason == "no NVIDIA driver is loaded on this machine"
    assert DeviceSpec.from_document(device.document()) == device


ANSWERS = {
    "hangs": ("import time; time.sleep(60)", "did not answer within 0.3 s"),
    "dies": ("import os; os.abort()", "SIGABRT"),
    "refuses": ('channel.answer({"reason": "Driver/library version mismatch"})', "Driver/library version mismatch"),
    "empty": ('channel.answer({"cards": []})', "has no GPU for this process"),
}


@pytest.mark.parametrize("what", ANSWERS)
def test_a_driver_that_does_not_work(what: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    body, reason = ANSWERS[what]
    (device,) = probed(body, tmp_path, monkeypatch, seconds=0.3 if what == "hangs" else 20.0)
    assert not device.available
    assert reason in str(device.reason)


def test_every_card_is_a_device_and_an_unfit_one_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    split, old = {**H200, "uuid": "GPU-bb", "mig": True}, {**H200, "uuid": "GPU-cc", "compute_capability": [7, 5]}
    body = f'channel.answer({{"cards": {[H200, split, old]!r}}})'
    good, second, third = probed(body, tmp_path, monkeypatch)
    assert good.available
    assert (good.measure_cpus, good.compile_cpus) == split_cpus()
    assert "MIG" in str(second.reason)
    assert "8.0 and later" in str(third.reason)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "7")
    monkeypatch.setenv("CUDA_DEVICE_ORDER", "PCI_BUS_ID")
    (hidden,) = probed(body, tmp_path, monkeypatch)
    assert "CUDA_VISIBLE_DEVICES=7 shows none of 3" in str(hidden.reason)


def test_a_lost_card_hides_no_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lost = {"lost": "card 0 does not answer: GPU is lost"}
    gone, good = probed(f"channel.answer({{'cards': {[lost, H200]!r}}})", tmp_path, monkeypatch)
    assert (gone.id, gone.available, gone.reason) == ("nvidia:0", False, lost["lost"])
    assert good.available
    (alone,) = probed(f"channel.answer({{'cards': {[lost]!r}}})", tmp_path, monkeypatch)
    assert "GPU is lost" in str(alone.reason)


def probed(
    body: str, folder: Path, monkeypatch: pytest.MonkeyPatch, *, seconds: float = 20.0
) -> tuple[DeviceSpec, ...]:
    """What is attached according to a probing child of this body."""
    (folder / "a_probe.py").write_text(
        f"import sys\nfrom search.children.entry import enter\nchannel = enter(sys.argv[1])\n{body}\n"
    )
    (folder / "nvidiactl").touch()
    monkeypatch.setenv("PYTHONPATH", str(folder))
    return attached_gpus(module="a_probe", driver_files=(str(folder / "nvidiactl"),), timeout_seconds=seconds)


def test_code_is_generated_for_the_card_s_own_architecture() -> None:
    found = [code_architecture(*one) for one in ((8, 0), (8, 6), (8, 9), (9, 0), (10, 3), (12, 0))]
    assert found == ["sm_80", "sm_86", "sm_89", "sm_90", "sm_103", "sm_120"]


def test_a_card_has_its_own_limits_and_one_whose_limits_are_not_known_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two cards of one major version: 48 warps and 99 KiB for a block on 8.6, 64 and 163 KiB on 8.0."""
    found = {(8, 0): "GPU-aa", (8, 6): "GPU-bb", (8, 9): "GPU-cc", (13, 7): "GPU-dd"}
    cards = [{**H200, "uuid": uuid, "compute_capability": list(capability)} for capability, uuid in found.items()]
    devices = probed(f'channel.answer({{"cards": {cards!r}}})', tmp_path, monkeypatch)
    assert [device.architecture for device in devices] == ["sm_80", "sm_86", "sm_89", "sm_137"]
    shown = [(one.limits["threads_per_sm"], one.limits["shared_bytes_per_block"]) for one in devices[:3]]
    assert shown == [(2048, 163 << 10), (1536, 99 << 10), (1536, 99 << 10)]
    assert [one.limits["blocks_per_sm"] for one in devices[:3]] == [32, 16, 24]
    assert [one.available for one in devices] == [True, True, True, False]
    assert "the limits of sm_137 are not known" in str(devices[3].reason)
    assert DeviceSpec.from_document(devices[1].document()) == devices[1]
