"""The toolchain seen from outside: found or not, working or not, named exactly, and never imported."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from search.errors import Cancelled, ToolchainUnavailable
from search.lowering.cpu import toolchain
from search.lowering.file_hashes import FileHashes
from search.measuring.attach import attached_devices

pytestmark = pytest.mark.toolchain


def script(path: Path, text: str) -> str:
    path.write_text("#!/bin/sh\n" + text)
    path.chmod(0o755)
    return str(path)


def test_this_machine_can_build(tmp_path: Path) -> None:
    assert toolchain.check(work_dir=tmp_path) is None
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("compiler", "words"),
    [
        ("/nowhere/gcc", "not found"),
        ("exit 1", "cannot compile a trivial program: exit status 1, and it printed nothing"),
        ("kill -ABRT $$", "cannot compile a trivial program: killed by SIGABRT, and it printed nothing"),
        ("sleep 1000", "did not end within 1 s"),
        ("echo 'cc1: out of order' >&2; exit 4", "out of order"),
        ('while [ "$1" != -o ]; do shift; done; : > "$2"', "cannot run"),  # what it "compiles" is an empty file
    ],
)
def test_a_missing_or_broken_compiler_is_a_reason(
    compiler: str, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not compiler.startswith("/"):
        compiler = script(tmp_path / "cc", compiler)
    monkeypatch.setenv("TUNER_CC", compiler)
    if "did not end" in words:
        monkeypatch.setattr(toolchain, "ANSWER_SECONDS", 1.0)
    reason = toolchain.check(work_dir=tmp_path)
    assert reason is not None
    assert words in reason
    assert len(reason) < 300


def test_a_missing_compiler_raises_where_one_is_needed_and_shows_in_the_fingerprint(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("TUNER_CC", "/nowhere/gcc")
    with pytest.raises(ToolchainUnavailable, match="/nowhere/gcc"):
        toolchain.compiler()
    assert "/nowhere/gcc" in toolchain.fingerprint()["compiler"]["unavailable"]


def test_a_compiler_that_hangs_makes_the_device_unavailable_and_is_asked_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(toolchain, "ANSWER_SECONDS", 1.0)
    monkeypatch.setenv("TUNER_CC", script(tmp_path / "cc", f"echo asked >> {tmp_path}/log; sleep 1000"))
    (device,) = attached_devices(tmp_path / "work")
    assert not device.available
    assert device.reason == f"{tmp_path}/cc did not end within 1 s"
    assert (tmp_path / "log").read_text() == "asked\n"


@pytest.mark.parametrize("hangs", ['case "$1" in --version|-print*) echo x;; *) sleep 1000;; esac', "sleep 1000"])
def test_probing_stops_at_once_when_told_to(hangs: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(toolchain, "ANSWER_SECONDS", 1000.0)
    monkeypatch.setenv("TUNER_CC", script(tmp_path / "cc", f"touch {tmp_path}/asked\n{hangs}"))
    with pytest.raises(Cancelled):
        attached_devices(tmp_path / "work", cancelled=(tmp_path / "asked").exists)


def test_the_fingerprint_names_every_part_and_imports_nothing_heavy() -> None:
    program = (
        "import json, sys\nfrom search.lowering.cpu import toolchain\nprint(json.dumps(toolchain.fingerprint()))\n"
        "sys.exit(3 if {'tilelang', 'torch', 'numpy'} & set(sys.modules) else 0)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    described = json.loads(done.stdout)
    assert set(described["compiler"]["sha256"]) >= {"driver", "cc1", "as", "ld"}
    assert described["tilelang"]["version"] == "0.1.15"
    assert "libtilelang.so" in described["tilelang"]["sha256"]
    digests = [*described["compiler"]["sha256"].values(), *described["tilelang"]["sha256"].values()]
    assert all(len(digest) == 64 for digest in [*digests, described["lowering_sha256"]])
    assert "-ffast-math" not in described["flags"]
    assert described == toolchain.fingerprint()


def test_hashes_are_kept_between_processes_and_noticed_when_a_file_changes(tmp_path: Path) -> None:
    big = tmp_path / "big"
    big.write_bytes(b"one")
    first = FileHashes(tmp_path / "cache")
    digest = first.sha256(big)
    first.save()
    cache = tmp_path / "cache" / "file_hashes.json"
    kept = json.loads(cache.read_text())
    kept[str(big)][2] = "remembered"
    cache.write_text(json.dumps(kept))
    assert FileHashes(tmp_path / "cache").sha256(big) == "remembered"
    big.write_bytes(b"three")
    assert FileHashes(tmp_path / "cache").sha256(big) not in ("remembered", digest)


@pytest.mark.parametrize("text", ["", "{", "[]", '{"x": 1}', "null"])
def test_a_damaged_cache_of_hashes_is_ignored(tmp_path: Path, text: str) -> None:
    big = tmp_path / "big"
    big.write_bytes(b"one")
    (tmp_path / "file_hashes.json").write_text(text)
    hashes = FileHashes(tmp_path)
    assert hashes.sha256(big) == FileHashes(None).sha256(big)
    hashes.save()
