"""What is killed leaves nothing: a child's folder goes with it, and a killed owner's with the next start."""

import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from search.children.child import Child, ChildGone
from search.children.scratch import scratch_folder, sweep
from tuner_service.workers.datadir import DataDir

LEAVES = """
import subprocess, sys, tempfile, time
from pathlib import Path
from search.children.entry import enter
channel = enter(sys.argv[1])
folder = Path(tempfile.mkdtemp(prefix="tuner-nvcc-"))
(folder / "batch.cubin").write_bytes(b"half")
words = "import os, tempfile, time; tempfile.mkstemp(); print(flush=True); time.sleep(600)"
compiler = subprocess.Popen([sys.executable, "-c", words], stdout=subprocess.PIPE, start_new_session=True)
compiler.stdout.readline()
channel.answer({"folder": str(folder)})
time.sleep(600)
"""
OWNER = """
import sys, time
from search.children.scratch import scratch_folder
with scratch_folder("nvcc") as name:
    print(name, flush=True)
    time.sleep(600)
"""


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The temporary directory of this process and its children."""
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setenv("TMPDIR", str(folder))
    monkeypatch.setattr(tempfile, "tempdir", None)
    return folder


@pytest.mark.parametrize("by_us", [True, False])
def test_a_killed_child_and_its_compiler_leave_nothing(by_us: bool, tmp_path: Path, temporary: Path) -> None:
    (tmp_path / "leaves.py").write_text(LEAVES)
    path = f"{tmp_path}:{Path(__file__).parents[3]}"
    child = Child.start("leaves", environment={"PYTHONPATH": path})
    folder = Path(child.receive(timeout_seconds=30.0)["folder"])
    assert folder.is_dir()
    assert folder.parent.parent == temporary
    assert len(list(folder.parent.iterdir())) == 2, "its own folder, and what its compiler left"
    if by_us:
        child.kill()
    else:
        os.kill(child.pid, signal.SIGKILL)
        with pytest.raises(ChildGone):
            child.receive(timeout_seconds=30.0)
    assert list(temporary.iterdir()) == []


def test_what_a_killed_process_left_is_swept_and_nothing_else(temporary: Path, tmp_path: Path) -> None:
    owner = subprocess.Popen([sys.executable, "-c", OWNER], stdout=subprocess.PIPE, text=True)
    assert owner.stdout is not None
    left = Path(owner.stdout.readline().strip())
    with scratch_folder("sass") as mine:
        reborn = Path(mine.replace(f"-{os.getpid()}-", f"-{os.getpid()}-1"))
        strangers = [
            temporary / "tuner-device-locks",
            temporary / "tuner-nvcc-old",
            temporary / "tuner-nvcc-1-2-3-another",
        ]
        for folder in (reborn, *strangers):
            folder.mkdir()
        assert sweep() == [reborn], "another process had this one's id before"
        assert left.is_dir()
        owner.kill()
        owner.communicate()
        (left / "batch.cu").write_text("half")
        assert sweep() == [left]
        assert Path(mine).is_dir()
    assert sorted(temporary.iterdir()) == sorted(strangers)
    assert sweep([tmp_path / "nowhere"]) == []


def test_a_service_sweeps_its_own_directory(temporary: Path, tmp_path: Path) -> None:
    data_dir = DataDir(tmp_path / "data")
    data_dir.lock()
    assert data_dir.sweep() == [], "a new one"
    left = [
        data_dir.work / "simulating" / f"tuner-simt-{Path('/proc/self/ns/pid').stat().st_ino}-4194305-77-abcd",
        data_dir.work / "measuring" / "oracle" / ".new-xyz",
        data_dir.work / ".new-abc",
    ]
    kept = [data_dir.work / "measuring" / "oracle" / "0123", data_dir.work / "simulating" / "prelude"]
    for folder in (*left, *kept):
        folder.mkdir(parents=True)
    assert sorted(data_dir.sweep()) == sorted(left)
    assert all(folder.is_dir() for folder in kept)
    data_dir.unlock()
