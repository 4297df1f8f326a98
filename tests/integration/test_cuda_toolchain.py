"""The CUDA toolchain seen from outside: absent, broken, hanging, too old, of another architecture. Never a hang.

Compilers and tools are scripts, so that this runs where no toolkit is.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from search.errors import Cancelled, ToolchainUnavailable
from search.lowering.cuda import headers, nvcc, nvdisasm, toolchain, wheels
from search.lowering.cuda.architectures import ARCHITECTURES

VERSION = "echo 'Cuda compilation tools, release 13.0, V13.0.88'"
ANSWERS = f'case "$1" in --version) {VERSION};; --list-gpu-code) echo sm_80; echo sm_90;; *) %s;; esac'


@pytest.fixture
def tools(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Puts scripts of these names on the PATH; there is nothing of NVIDIA's on the machine but them."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")
    monkeypatch.delenv("TUNER_NVCC", raising=False)
    monkeypatch.setattr(nvcc, "USUAL_NVCC", "/nowhere/nvcc")
    monkeypatch.setattr(wheels, "wheel_file", lambda distribution, ending: None)
    monkeypatch.setattr(wheels, "wheel_library", lambda distribution, stem: None)
    monkeypatch.setattr(toolchain, "tilelang_folder", lambda: tmp_path)
    monkeypatch.setattr(nvcc, "template_folders", lambda: (tmp_path,))

    def make(**scripts: str) -> None:
        for name, text in {"nvdisasm": VERSION, **scripts}.items():
            (folder / name).write_text(f"#!/bin/sh\n{text}\n")
            (folder / name).chmod(0o755)

    return make


@pytest.mark.usefixtures("tools")
def test_no_toolkit_at_all() -> None:
    reason = toolchain.check("sm_90")
    assert reason is not None
    assert "nvcc was not found" in reason
    assert "extra 'cuda'" in reason
    assert toolchain.fingerprint("sm_90")["compiler"] == {"unavailable": reason}
    with pytest.raises(ToolchainUnavailable, match="nvcc was not found"):
        toolchain.known_architectures()


def test_a_compiler_that_was_named_is_not_replaced(tools, monkeypatch: pytest.MonkeyPatch) -> None:
    tools(nvcc=ANSWERS % "exit 0")
    monkeypatch.setenv("TUNER_NVCC", "/nowhere/nvcc")
    assert "'/nowhere/nvcc' not found" in str(toolchain.check("sm_90"))
    monkeypatch.setenv("TUNER_NVCC", "none")
    assert "nvidia-cuda-nvrtc is not installed" in str(toolchain.check("sm_90"))


@pytest.mark.parametrize(
    ("script", "words"),
    [
        ("exit 1", "--version: exit status 1, and it printed nothing"),
        ("kill -SEGV $$", "killed by SIGSEGV"),
        ("echo I am no compiler", "names no release"),
        ("sleep 1000", "did not end within 0.5 s"),
        ("echo 'Cuda compilation tools, release 11.8, V11.8.89'", "nvcc is of CUDA 11.8; CUDA 13 is needed"),
        (ANSWERS % "echo 'batch.cu(1): error: no such thing' >&2; exit 2", "compiler_error: 2 batch.cu(1): error"),
        (ANSWERS % "kill -KILL $$", "compiler_error: -9 killed by SIGKILL"),
        (ANSWERS % "exit 0", "compiler_error: 0 exit status 0, but no cubin was written"),
        (ANSWERS % "sleep 1000", "compile_timeout: 0.5"),
        (ANSWERS % "echo text > batch.cubin", "cannot be read: not a little-endian ELF64 file"),
    ],
)
def test_a_broken_nvcc_is_a_reason(script: str, words: str, tools, monkeypatch: pytest.MonkeyPatch) -> None:
    tools(nvcc=script)
    monkeypatch.setattr(nvcc, "ANSWER_SECONDS", 0.5 if script == "sleep 1000" else 20.0)
    monkeypatch.setattr(toolchain, "CHECK_SECONDS", 0.5 if "1000" in script else 20.0)
    reason = toolchain.check("sm_90")
    assert reason is not None
    assert words in reason
    assert len(reason) < 900


@pytest.mark.parametrize(
    ("script", "words"),
    [
        ("echo 'nvdisasm: release 12.4, V12.4.131'", "nvdisasm is of CUDA 12.4; CUDA 13 is needed"),
        ("exit 3", "exit status 3"),
        ("sleep 1000", "did not end within 0.5 s"),
    ],
)
def test_a_broken_nvdisasm_is_a_reason(script: str, words: str, tools, monkeypatch: pytest.MonkeyPatch) -> None:
    tools(nvcc=ANSWERS % "exit 0", nvdisasm=script)
    monkeypatch.setattr(nvdisasm, "ANSWER_SECONDS", 0.5 if "1000" in script else 20.0)
    assert words in str(toolchain.check("sm_90"))


def test_nvdisasm_is_looked_for_beside_nvcc(tools, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A toolkit in the usual place is not on the PATH; nor is all of one whose nvcc is a link."""
    tools(nvcc=ANSWERS % "exit 0")
    toolkit = (tmp_path / "bin").rename(tmp_path / "toolkit")
    assert "nvcc was not found" in str(toolchain.check("sm_90"))
    with pytest.raises(ToolchainUnavailable, match="nvdisasm not found"):
        nvdisasm.nvdisasm()
    monkeypatch.setattr(nvcc, "USUAL_NVCC", str(toolkit / "nvcc"))
    assert nvdisasm.nvdisasm() == str(toolkit / "nvdisasm")
    assert nvdisasm.nvdisasm_version() == (13, 0)
    monkeypatch.setattr(nvcc, "USUAL_NVCC", "/nowhere/nvcc")
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "nvcc").symlink_to(toolkit / "nvcc")
    assert nvdisasm.nvdisasm() == str(toolkit / "nvdisasm")
    monkeypatch.setenv("TUNER_NVCC", "none")
    with pytest.raises(ToolchainUnavailable, match="nvdisasm not found"):
        nvdisasm.nvdisasm()


def test_architectures(tools) -> None:
    tools(nvcc=ANSWERS % "exit 1")
    assert toolchain.known_architectures() == ("sm_80", "sm_90")
    assert toolchain.check("sm_42") == f"the limits of sm_42 are not known; known are {', '.join(ARCHITECTURES)}"
    assert toolchain.check("sm_100") == "nvcc does not know sm_100; it knows sm_80, sm_90"


@pytest.mark.parametrize("missing", [wheels.HEADERS, ("nvidia-cuda-crt",)])
def test_nvrtc_without_headers_says_which_packages_are_missing(
    missing: tuple[str, ...], tools, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is started then: neither NVRTC nor a compiler that would stop at the first include."""
    tools()
    monkeypatch.setattr(wheels, "wheel_library", lambda distribution, stem: tmp_path / f"{stem}.so")
    monkeypatch.setattr(
        wheels, "wheel_file", lambda distribution, mark: None if distribution in missing else tmp_path / mark
    )
    monkeypatch.setattr(headers, "TOOLKIT_INCLUDE", tmp_path / "nowhere")
    reason = toolchain.check("sm_90")
    assert reason is not None
    assert reason.startswith("NVRTC has no CUDA headers")
    assert all(name in reason for name in missing)
    assert [name for name in wheels.HEADERS if name in reason] == list(missing)
    assert "extra 'cuda'" in reason
    assert toolchain.fingerprint("sm_90")["compiler"] == {"unavailable": reason}


def test_a_check_stops_at_once_when_told_to(tools, tmp_path: Path) -> None:
    tools(nvcc=ANSWERS % f"touch {tmp_path}/asked; sleep 1000")
    with pytest.raises(Cancelled):
        toolchain.check("sm_90", cancelled=(tmp_path / "asked").exists)


def test_no_tilelang(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(toolchain, "tilelang_folder", lambda: None)
    assert "TileLang is not installed" in str(toolchain.check("sm_90"))
