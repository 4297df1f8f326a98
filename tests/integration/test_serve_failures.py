"""A service that cannot start says why in one line that names what is wrong, and leaves nothing behind."""

from __future__ import annotations

import gzip
import os
import signal
import socket
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import httpx
import pytest

from tuner_service.cli.errors import ExitStatus

PATIENCE_SECONDS = 60.0
TUNER = f"{sys.executable} -m tuner_service.cli"


def serve(data_dir: Path, **environment: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "tuner_service.cli", "serve", "--port", "0", "--data-dir", str(data_dir)],
        env={**os.environ, **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def refusal(data_dir: Path, **environment: str) -> str:
    """What a service that cannot start says."""
    process = serve(data_dir, **environment)
    out, err = process.communicate(timeout=PATIENCE_SECONDS)
    assert process.returncode == ExitStatus.BAD_INPUT
    assert out == ""
    (line,) = err.splitlines()
    assert line.startswith("error: ")
    assert not (data_dir / "service.json").exists()
    return line


@pytest.fixture
def running(tmp_path: Path) -> Iterator[Path]:
    data_dir = tmp_path / "data"
    process = serve(data_dir)
    assert process.stdout is not None
    assert process.stdout.readline().startswith("listening on")
    yield data_dir
    process.terminate()
    process.communicate(timeout=PATIENCE_SECONDS)
    assert process.returncode == 0


def test_a_second_service_on_a_data_directory(running: Path) -> None:
    process = serve(running)
    out, err = process.communicate(timeout=PATIENCE_SECONDS)
    assert (process.returncode, out) == (ExitStatus.BAD_INPUT, "")
    (line,) = err.splitlines()
    assert line.startswith(f"error: {running} is in use by the service with pid ")
    assert (running / "service.json").exists(), "the first one goes on"


def test_a_database_that_is_none(tmp_path: Path) -> None:
    database = tmp_path / "tuner.sqlite3"
    database.write_bytes(b"these bytes are no database at all, and not few " * 100)
    assert f"{database} cannot be used: file is not a database" in refusal(tmp_path)


def test_a_database_whose_pages_are_damaged(tmp_path: Path) -> None:
    database = tmp_path / "tuner.sqlite3"
    process = serve(tmp_path)
    assert process.stdout is not None
    process.stdout.readline()
    process.terminate()
    process.communicate(timeout=PATIENCE_SECONDS)
    data = database.read_bytes()
    database.write_bytes(data[:100] + b"\xff" * (len(data) - 100))
    assert f"{database} cannot be used: database disk image is malformed" in refusal(tmp_path)


def test_a_data_directory_that_cannot_be_made_or_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    assert f"cannot use the data directory {tmp_path}/file/data: Not a directory" in refusal(tmp_path / "file" / "data")
    assert f"cannot use the data directory {tmp_path}/file: File exists" in refusal(tmp_path / "file")
    # A file system that takes no files, whoever asks.
    line = refusal(Path("/proc/sys"))
    assert "cannot use the data directory /proc/sys: " in line
    assert "service.lock" in line


def test_a_database_in_a_place_that_cannot_be_written(tmp_path: Path) -> None:
    line = refusal(tmp_path, TUNER_DATABASE_URL="sqlite:////proc/sys/tuner.sqlite3")
    assert "/proc/sys/tuner.sqlite3 cannot be used: unable to open database file" in line


def test_a_database_of_an_earlier_version_says_what_to_type(tmp_path: Path) -> None:
    stored = Path(__file__).parents[1] / "migration" / "fixtures" / "0005.sqlite.sql.gz"
    connection = sqlite3.connect(tmp_path / "tuner.sqlite3")
    connection.executescript(gzip.decompress(stored.read_bytes()).decode())
    connection.close()
    line = refusal(tmp_path)
    assert "is at revision 0005, and this version works with" in line
    assert line.endswith(f"back it up, then type: tuner db upgrade --data-dir {tmp_path}")
    upgraded = subprocess.run(line.partition("type: ")[2].replace("tuner", TUNER, 1), shell=True, capture_output=True)
    assert upgraded.returncode == 0, upgraded.stderr
    process = serve(tmp_path)
    assert process.stdout is not None
    assert process.stdout.readline().startswith("listening on")
    process.terminate()
    process.communicate(timeout=PATIENCE_SECONDS)


def test_an_empty_postgresql_is_not_set_up_by_chance(tmp_path: Path, empty_postgres_url: str) -> None:
    line = refusal(tmp_path, TUNER_DATABASE_URL=empty_postgres_url)
    assert line == (
        f"error: the database {empty_postgres_url} cannot be used yet: it is not set up yet; type: tuner db upgrade"
    )


def test_a_database_server_that_does_not_answer(tmp_path: Path) -> None:
    with closing(socket.socket()) as unused:
        unused.bind(("127.0.0.1", 0))
        port = unused.getsockname()[1]
        line = refusal(tmp_path, TUNER_DATABASE_URL=f"postgresql://tuner:secret@127.0.0.1:{port}/tuner")
    assert f"postgresql://tuner:***@127.0.0.1:{port}/tuner cannot be used" in line
    assert "refused" in line
    assert "secret" not in line


def wait(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def is_gone(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] in ("Z", "X")
    except OSError:
        return True


def test_a_service_whose_compiler_hangs_stops_at_once_and_leaves_no_compiler(tmp_path: Path) -> None:
    cc, pid_file = tmp_path / "cc", tmp_path / "pid"
    cc.write_text(f"#!/bin/sh\nsleep 1000 &\necho $! > {pid_file}\nwait\n")
    cc.chmod(0o755)
    process = serve(tmp_path / "data", TUNER_CC=str(cc), TUNER_COMPILE_ONLY_DEVICES="none")
    try:
        assert process.stdout is not None
        url = process.stdout.readline().removeprefix("listening on ").strip()
        wait(lambda: pid_file.exists() and pid_file.read_text().endswith("\n"))
        with httpx.Client(base_url=url, trust_env=False, timeout=PATIENCE_SECONDS) as http:
            assert http.get("/readyz").json()["devices"] == "probing"
            first = int(pid_file.read_text())
            wait(lambda: http.get("/readyz").json()["devices"] == "probed")
            (device,) = http.get("/v1/devices").json()["items"]
            assert (device["available"], device["reason"]) == (False, f"{cc} did not end within 5 s")
            assert is_gone(first)
            body = {"cases": [{"kernel": "softmax", "dims": {"rows": 8, "cols": 33}}], "device": "cpu"}
            refused = http.post("/v1/jobs", json=body)
            assert refused.status_code == 422
            assert refused.json()["errors"][0]["allowed"] == "none: no attached device can be used now"
    finally:
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=PATIENCE_SECONDS)
    assert process.returncode == 0


def test_a_service_that_is_stopped_while_it_probes_leaves_no_compiler(tmp_path: Path) -> None:
    cc, pid_file = tmp_path / "cc", tmp_path / "pid"
    cc.write_text(f"#!/bin/sh\nsleep 1000 &\necho $! > {pid_file}\nwait\n")
    cc.chmod(0o755)
    process = serve(tmp_path / "data", TUNER_CC=str(cc), TUNER_COMPILE_ONLY_DEVICES="none")
    wait(lambda: pid_file.exists() and pid_file.read_text().endswith("\n"))
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=PATIENCE_SECONDS)
    assert process.returncode == 0
    wait(lambda: is_gone(int(pid_file.read_text())))
