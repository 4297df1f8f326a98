"""What befalls the simulation's compiler is no kernel's fault, unless the compiler says so itself."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from search.errors import ToolchainUnavailable
from search.measuring.simt.build import Built, build
from search.measuring.simt.source import Translation
from search.measuring.simt.toolchain import SimulationToolchain


def built(folder: Path, script: str, *symbols: str, timeout_seconds: float = 60.0) -> Built:
    """Both kernels "compiled" by a shell script, which finds the source as ``$source``."""
    compiler = folder / "g++"
    compiler.write_text(f"#!/bin/sh\nfor word; do case $word in *.cc) source=$word ;; esac; done\n{script}\n")
    compiler.chmod(0o755)
    toolchain = SimulationToolchain(compiler=str(compiler), include_folders=(), prelude_folder=folder)
    kernels = [Translation(symbol=name, preamble="", text=name, launch_bound=None) for name in symbols]
    return build(kernels, toolchain, folder, timeout_seconds=timeout_seconds, cancelled=lambda: False)


def test_a_lone_kernel_whose_compiler_is_killed_is_tried_again(tmp_path: Path) -> None:
    once = f"if [ ! -e {tmp_path}/killed ]; then touch {tmp_path}/killed; %s; fi"
    for death in ("kill -KILL $$", "echo 'g++: fatal error: Killed signal terminated program cc1plus' >&2; exit 1"):
        result = built(tmp_path, once % death, "a")
        assert not result.rejections
        assert set(result.libraries) == {"a"}
        (tmp_path / "killed").unlink()


def test_a_kernel_whose_compiler_always_dies_is_rejected_with_the_reason(tmp_path: Path) -> None:
    result = built(tmp_path, '[ -z "$source" ] || ! grep -q bad "$source" || kill -SEGV $$', "good", "bad")
    assert set(result.libraries) == {"good"}
    assert result.rejections["bad"].reason == "not_simulated"
    assert "killed by SIGSEGV" in result.rejections["bad"].detail["message"]


def test_a_compiler_that_does_not_end_is_the_kernels_doing(tmp_path: Path) -> None:
    result = built(tmp_path, "sleep 1000", "a", timeout_seconds=0.2)
    assert "did not end within" in result.rejections["a"].detail["message"]


def test_a_full_disk_rejects_nothing(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="No space left on device") as raised:
        built(tmp_path, "echo 'fatal error: error writing to /tmp/x.s: No space left on device' >&2; exit 1", "a")
    assert raised.value.errno == errno.ENOSPC


def test_a_compiler_that_is_gone_rejects_nothing(tmp_path: Path) -> None:
    toolchain = SimulationToolchain(compiler=str(tmp_path / "gone"), include_folders=(), prelude_folder=tmp_path)
    kernels = [Translation(symbol="a", preamble="", text="a", launch_bound=None)]
    with pytest.raises(ToolchainUnavailable, match="gone"):
        build(kernels, toolchain, tmp_path, timeout_seconds=60, cancelled=lambda: False)
