"""What befalls the simulation's compiler is no kernel's fault, unless the compiler says so itself."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import pytest

from search.errors import ToolchainUnavailable
from search.lowering.contract import Launch
from search.measuring.simt.build import Built, build
from search.measuring.simt.protocol import SimulationItem
from search.measuring.simt.run import Simulator
from search.measuring.simt.source import Translation
from search.measuring.simt.toolchain import SimulationToolchain
from search.program.resolve import resolve_case


def built(folder: Path, script: str, *symbols: str, timeout_seconds: float = 60.0, **held: Any) -> Built:
    """The kernels "compiled" by a shell script, which finds the source as ``$source``."""
    compiler = folder / "g++"
    compiler.write_text(f"#!/bin/sh\nfor word; do case $word in *.cc) source=$word ;; esac; done\n{script}\n")
    compiler.chmod(0o755)
    toolchain = SimulationToolchain(compiler=str(compiler), include_folders=(), prelude_folder=folder, **held)
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


def test_a_kernel_whose_compiler_does_not_end_is_rejected(tmp_path: Path) -> None:
    result = built(
        tmp_path, '[ -z "$source" ] || ! grep -q bad "$source" || sleep 1000', "good", "bad", timeout_seconds=1
    )
    assert set(result.libraries) == {"good"}
    assert "did not end within" in result.rejections["bad"].detail["message"]


@pytest.mark.parametrize("broken", ["echo 'cc1plus: out of order' >&2; exit 1", "kill -SEGV $$", "sleep 1000"])
def test_a_compiler_that_is_broken_blames_no_kernel(tmp_path: Path, broken: str) -> None:
    with pytest.raises(ToolchainUnavailable, match="cannot compile a trivial program"):
        built(tmp_path, broken, "a", "b", timeout_seconds=0.5)


def test_a_compiler_that_breaks_amid_a_batch_blames_no_kernel(tmp_path: Path) -> None:
    """The first kernel's fault is its own; when the second is to be blamed the compiler has gone."""
    breaks = f'grep -q bad "$source" && exit 1; grep -q last "$source" && touch {tmp_path}/broken && exit 1'
    script = f'[ ! -e {tmp_path}/broken ] || exit 1; [ -z "$source" ] || {{ {breaks}; true; }}'
    with pytest.raises(ToolchainUnavailable, match="cannot compile a trivial program"):
        built(tmp_path, script, "last", "bad")


def test_the_compiler_is_pinned_limited_and_told_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As the other compilers are: it is started by the service's own process."""
    monkeypatch.setenv("TUNER_DATABASE_URL", "secret")
    cpu = min(os.sched_getaffinity(0))
    told = f"(env; grep Cpus_allowed_list /proc/self/status; ulimit -v) > {tmp_path}/told"
    assert not built(tmp_path, f"sleep 0.2; {told}", "a", cpus=(cpu,), memory_limit_bytes=1 << 32).rejections
    lines = (tmp_path / "told").read_text().splitlines()
    assert not any("secret" in line for line in lines)
    assert f"Cpus_allowed_list:\t{cpu}" in lines
    assert lines[-1] == str(1 << 22)
    (temporary,) = (line.removeprefix("TMPDIR=") for line in lines if line.startswith("TMPDIR="))
    assert Path(temporary).parent == tmp_path


def test_the_simulator_holds_its_compiler_where_its_children_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: dict[str, Any] = {}

    def prepare(folder: Path, **held: Any) -> SimulationToolchain:
        asked.update(held)
        raise ToolchainUnavailable("enough is known")

    monkeypatch.setattr("search.measuring.simt.run.prepare", prepare)
    case = resolve_case({"kernel": "softmax", "dims": {"rows": 2, "cols": 8}})
    launch = Launch(threads_per_block=32, rows_per_block=1, dynamic_shared_bytes=0)
    item = SimulationItem(id="a", cuda_text="", symbol="a", arguments=(), launch=launch)
    with (
        Simulator(tmp_path, cpus=(0,), memory_limit_bytes=1 << 33) as simulator,
        pytest.raises(ToolchainUnavailable, match="enough"),
    ):
        list(simulator.check(case, [item]))
    assert (tuple(asked["cpus"]), asked["memory_limit_bytes"]) == ((0,), 1 << 33)


def test_a_full_disk_rejects_nothing(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="No space left on device") as raised:
        built(tmp_path, "echo 'fatal error: error writing to /tmp/x.s: No space left on device' >&2; exit 1", "a")
    assert raised.value.errno == errno.ENOSPC


def test_a_compiler_that_is_gone_rejects_nothing(tmp_path: Path) -> None:
    toolchain = SimulationToolchain(compiler=str(tmp_path / "gone"), include_folders=(), prelude_folder=tmp_path)
    kernels = [Translation(symbol="a", preamble="", text="a", launch_bound=None)]
    with pytest.raises(ToolchainUnavailable, match="gone"):
        build(kernels, toolchain, tmp_path, timeout_seconds=60, cancelled=lambda: False)
