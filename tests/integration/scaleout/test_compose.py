"""What the compose file would run, as plain processes: its commands, its environment and nothing else, its users, its
volumes, its password, its health checks. There is no Docker here; what the images hold is checked in tests/unit/deploy.
"""

from __future__ import annotations

import json
import os
import re
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import pytest
import yaml
from deployment import PATIENCE_SECONDS, SMALL, wait
from postgres_cluster import PostgresCluster
from process_tree import alive, descendants

from tuner_service.client import Client

pytestmark = pytest.mark.toolchain

ROOT = Path(__file__).parents[3]
DOCKERFILE = (ROOT / "Dockerfile").read_text()
NOBODY = int(re.findall(r"^USER (\d+):\1$", DOCKERFILE, re.MULTILINE)[0])
NOT_IN_THE_SERVICE_IMAGE = ("ml_dtypes", "numpy", "tilelang", "torch")
SINGLE = {"width": [8], "input": ["cache"], "simd_scope": ["all"], "nontemporal": [False]}
STORED_ON_DISK = re.findall(r"install --directory --owner tuner --group tuner --mode 0?(\d+) (/\w+)", DOCKERFILE)


class Composed:
    """The services of the file, with paths and ports of this test in place of a container's."""

    def __init__(self, folder: Path, postgres: PostgresCluster) -> None:
        self.folder, self.password = folder, secrets.token_hex(16)
        self.programs, database_port = postgres.program, postgres.port
        self.api_port, self.metrics_port = _free_port(), _free_port()
        given = {"TUNER_POSTGRES_PASSWORD": self.password, "TUNER_POSTGRES_PORT": str(database_port)}
        self.words = {
            "@postgres:5432/": f"@127.0.0.1:{database_port}/",
            "8000": str(self.api_port),
            "9464": str(self.metrics_port),
        }
        text = re.sub(
            r"\$\{(\w+)(?::[-?]([^}]*))?\}",
            lambda found: given.get(found[1], found[2] or ""),
            (ROOT / "docker-compose.yml").read_text(),
        )
        self.services: dict[str, Any] = yaml.safe_load(text)["services"]
        self.running: list[subprocess.Popen[bytes]] = []
        # Root alone may become somebody else; who then reads this checkout all the same, and writes where he may.
        self.user = NOBODY if os.geteuid() == 0 and shutil.which("setpriv") else None
        missing = folder / "not-installed"
        for name in NOT_IN_THE_SERVICE_IMAGE:
            (missing / name).mkdir(parents=True)
            (missing / name / "__init__.py").write_text(f'raise ImportError("{name} is not in this image")\n')
        missing.chmod(0o755)

    def environment(self, name: str) -> dict[str, str]:
        """Of the image and of the file; of this process's own only what stands for the image's file system."""
        service = self.services[name]
        image = dict(re.findall(r"\b((?:TUNER|PYTHON)\w+|HOME)=(\S+)", _environment_lines(service["build"]["target"])))
        found = {word: self._here(name, str(value)) for word, value in {**image, **service["environment"]}.items()}
        found["PATH"] = f"{Path(sys.executable).parent}:/usr/local/bin:/usr/bin:/bin"
        found["TMPDIR"] = str(self._volume(name, "/tmp", 0o1777))
        installed = [str(ROOT)]
        if service["build"]["target"] == "service":
            installed.insert(0, str(self.folder / "not-installed"))
        return {**found, "PYTHONPATH": ":".join(installed), "PYTHONDONTWRITEBYTECODE": "1"}

    def start(self, name: str) -> subprocess.Popen[bytes]:
        """The service's process. What it prints is in ``NAME.log``."""
        command = [self._here(name, word) for word in self.services[name]["command"]]
        with (self.folder / f"{name}.log").open("ab") as log:
            process = subprocess.Popen(
                [*self._as_user(), sys.executable, "-P", "-m", "tuner_service.cli", *command],
                env=self.environment(name),
                cwd=self._volume(name, "/data", 0o750),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        self.running.append(process)
        return process

    def is_healthy(self, name: str) -> bool:
        """Asks as the file, or else the image, does."""
        check = self.services[name].get("healthcheck", {}).get("test")
        if name == "postgres":
            assert check[0] == "CMD"
            where = {"PGHOST": "127.0.0.1", "PGPORT": self.words["@postgres:5432/"].strip("@/").partition(":")[2]}
            command = [str(self.programs(check[1])), *check[2:]]
            return subprocess.run(command, env=where, capture_output=True).returncode == 0
        if check is None:
            (written,) = re.findall(r'CMD (\["python".*9464.*\])$', DOCKERFILE, re.MULTILINE)
            check = ["CMD", *json.loads(written)]
        assert check[:3] == ["CMD", "python", "-c"]
        command = [*self._as_user(), sys.executable, "-P", "-c", self._here(name, check[3])]
        return subprocess.run(command, env=self.environment(name), capture_output=True).returncode == 0

    def log(self, name: str) -> str:
        return (self.folder / f"{name}.log").read_text()

    def close(self) -> None:
        for process in self.running:
            below = descendants(process.pid)
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait(PATIENCE_SECONDS)
            wait(lambda below=below: not any(map(alive, below)), lambda: "something was left running")  # type: ignore[misc]

    def _as_user(self) -> list[str]:
        if self.user is None:
            return []
        identity = [f"--reuid={self.user}", f"--regid={self.user}", "--clear-groups"]
        reads = ["--inh-caps=-all,+dac_read_search", "--ambient-caps=+dac_read_search"]
        # Without the last, access(2), which Alembic asks, denies what this user may read.
        return ["setpriv", *identity, *reads, "--securebits=+no_setuid_fixup"]

    def _here(self, name: str, text: str) -> str:
        for word, here in self.words.items():
            text = text.replace(word, here)
        for mode, place in STORED_ON_DISK:
            if text == place:
                return str(self._volume(name, place, int(mode, 8)))
        return text

    def _volume(self, name: str, place: str, mode: int) -> Path:
        """A directory as the image makes it; one that workers share has one name in the file."""
        shared = place == "/locks"
        path = self.folder / "volumes" / ("shared" if shared else name) / place.strip("/")
        if not path.exists():
            path.mkdir(parents=True)
            path.chmod(mode)
            if self.user is not None:
                os.chown(path, self.user, self.user)
        return path


@pytest.fixture
def composed(postgres: PostgresCluster) -> Iterator[Composed]:
    """With a database whose owner needs the password that the file asks for."""
    folder = Path(tempfile.mkdtemp(prefix="tuner-compose-"))  # pytest's own are not for other users
    folder.chmod(0o755)
    made = Composed(folder, postgres)
    rules = postgres.directory / "data" / "pg_hba.conf"
    before = rules.read_text()
    rules.write_text(f"host all tuner 127.0.0.1/32 scram-sha-256\n{before}")
    postgres.execute("SELECT pg_reload_conf()")
    postgres.execute(f"CREATE ROLE tuner LOGIN PASSWORD '{made.password}'")
    postgres.execute("CREATE DATABASE tuner OWNER tuner ENCODING 'UTF8' LOCALE 'C' TEMPLATE template0")
    yield made
    made.close()
    shutil.rmtree(folder)
    postgres.drop("tuner")
    postgres.execute("DROP ROLE tuner")
    rules.write_text(before)
    postgres.execute("SELECT pg_reload_conf()")


@pytest.mark.parametrize("measures", [False, pytest.param(True, marks=pytest.mark.full)])
def test_what_the_compose_file_runs_works_together(composed: Composed, measures: bool) -> None:
    """Without a measurement, the worker still compiles: it tries its compiler before it offers the device."""
    assert composed.is_healthy("postgres")
    assert composed.start("migrate").wait(PATIENCE_SECONDS) == 0, composed.log("migrate")
    api, worker = composed.start("api"), composed.start("worker-cpu")
    for name, process in (("api", api), ("worker-cpu", worker)):
        wait(lambda: composed.is_healthy(name) or process.poll() is not None, lambda: composed.log(name))  # noqa: B023
        assert process.poll() is None, composed.log(name)
    with Client(f"http://127.0.0.1:{composed.api_port}") as client:
        wait(lambda: any(one["available"] for one in client.devices()), lambda: composed.log("worker-cpu"))
        (device,) = client.devices()
        host_name = composed.services["worker-cpu"]["command"][-1]
        assert device["id"].endswith(f"@{host_name}")
        if measures:
            job = client.wait(client.submit({**SMALL, "space": SINGLE})["id"], poll_seconds=0.1)
            assert job["state"] == "succeeded", (job["error"], composed.log("worker-cpu"))
            assert client.source(job["cases"][0]["winner"]["id"])["c_text"], "the service has it from the database"
        ready = client.readiness()
        assert ready is not None
        assert (ready["ready"], ready["workers"]) == (True, 1)
    if composed.user is not None:
        status = Path(f"/proc/{worker.pid}/status").read_text()
        assert re.search(rf"^Uid:\t{NOBODY}\t{NOBODY}\t", status, re.MULTILINE)
    said = [composed.log(name) for name in ("migrate", "api", "worker-cpu")]
    words = [Path(f"/proc/{one.pid}/cmdline").read_text() for one in (api, worker)]
    assert composed.password not in "".join([*said, *words])
    for process in (worker, api):
        process.send_signal(signal.SIGTERM)
        assert process.wait(PATIENCE_SECONDS) == 0


def test_a_wrong_password_is_said_without_the_password(composed: Composed) -> None:
    wrong = composed.password[::-1]
    environment = composed.services["migrate"]["environment"]
    environment["TUNER_DATABASE_URL"] = environment["TUNER_DATABASE_URL"].replace(composed.password, wrong)
    assert composed.start("migrate").wait(PATIENCE_SECONDS) not in (0, None)
    assert "password authentication failed" in composed.log("migrate")
    assert wrong not in composed.log("migrate")


def _environment_lines(target: str) -> str:
    """Every ENV of a target and of what it is made from."""
    stage = re.search(rf"^FROM (\S+) AS {target}\n(.*?)(?=^FROM |\Z)", DOCKERFILE, re.MULTILINE | re.DOTALL)
    if stage is None:
        return ""
    own = re.findall(r"^ENV (?:.*\\\n)*.*$", stage[2], re.MULTILINE)
    return "\n".join([_environment_lines(stage[1]), *own])


def _free_port() -> int:
    with closing(socket.socket()) as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
