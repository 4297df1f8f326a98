"""Compile-only devices whose toolchain is missing, broken, hanging, too old, or does not know the architecture."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from search.errors import ToolchainUnavailable
from search.lowering.cuda import nvcc, toolchain
from search.measuring import attach_cuda
from search.measuring.attach_cuda import compile_only_devices

NAMES = ("cuda-sm_80", "cuda-sm_90")
GOOD = """\
case "$1" in
  --version) echo "Cuda compilation tools, release {release}, V{release}.1" ;;
  --list-gpu-code) echo sm_90 ;;
  -dryrun) echo '#$ _HERE_={folder}' >&2; echo '#$ TOP={folder}' >&2 ;;
  *) echo "nvcc fatal: no licence for kernels" >&2; exit 1 ;;
esac
"""

Script = Callable[[str], None]


@pytest.fixture
def script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Script:
    def write(text: str) -> None:
        path = tmp_path / "nvcc"
        path.write_text("#!/bin/sh\n" + text)
        path.chmod(0o755)
        monkeypatch.setenv("TUNER_NVCC", str(path))

    return write


def reasons(tmp_path: Path) -> list[str | None]:
    devices = compile_only_devices(NAMES, tmp_path / "work")
    assert [device.id for device in devices] == list(NAMES)
    assert all(not device.timed and device.limits["threads_per_block"] == 1024 for device in devices)
    assert [device.available for device in devices] == [device.reason is None for device in devices]
    return [device.reason for device in devices]


def test_no_compiler_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TUNER_NVCC", str(tmp_path / "nowhere" / "nvcc"))
    for reason in reasons(tmp_path):
        assert "not found" in str(reason)
        assert "TUNER_NVCC" in str(reason)


def test_a_compiler_that_fails(tmp_path: Path, script: Script) -> None:
    script("echo 'cannot execute: broken install' >&2; exit 127\n")
    for reason in reasons(tmp_path):
        assert "broken install" in str(reason)


def test_a_compiler_that_hangs_is_given_up(tmp_path: Path, script: Script, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nvcc, "ANSWER_SECONDS", 0.2)
    script("sleep 600\n")
    for reason in reasons(tmp_path):
        assert "did not end within 0.2 s" in str(reason)


@pytest.mark.toolchain
def test_another_major_version(tmp_path: Path, script: Script) -> None:
    script(GOOD.format(release="12.4", folder=tmp_path))
    for reason in reasons(tmp_path):
        assert "CUDA 12.4" in str(reason)
        assert "13" in str(reason)


@pytest.mark.toolchain
def test_a_compiler_that_knows_everything_and_compiles_nothing(tmp_path: Path, script: Script) -> None:
    script(GOOD.format(release="13.0", folder=tmp_path))
    for reason in reasons(tmp_path):
        assert "no licence for kernels" in str(reason)


def test_an_architecture_that_the_compiler_does_not_know(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tried: list[str] = []

    def check(architecture: str, **_: object) -> str | None:
        tried.append(architecture)
        return None if architecture == "sm_90" else f"nvcc does not know {architecture}; it knows sm_90"

    monkeypatch.setattr(toolchain, "fingerprint", lambda architecture, **_: {"compiler": {}, "a": architecture})
    monkeypatch.setattr(toolchain, "known_architectures", lambda **_: ("sm_90",))
    monkeypatch.setattr(toolchain, "check", check)
    monkeypatch.setattr(attach_cuda, "_simulation_missing", lambda *_: None)
    old, new = compile_only_devices(NAMES, tmp_path / "work")
    assert old.reason == "nvcc does not know sm_80; it knows sm_90"
    assert new.available
    assert tried == ["sm_90", "sm_80"], "the compiler itself is tried once"
    assert old.toolchain_fingerprint != new.toolchain_fingerprint


def test_what_cannot_be_simulated_is_not_offered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def missing() -> str:
        raise ToolchainUnavailable("C++ compiler 'g++' not found")

    monkeypatch.setattr(toolchain, "fingerprint", lambda architecture, **_: {"compiler": {}})
    monkeypatch.setattr(attach_cuda, "cxx_compiler", missing)
    assert reasons(tmp_path) == ["its simulation cannot be built: C++ compiler 'g++' not found"] * 2
