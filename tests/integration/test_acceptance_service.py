"""From a job to a promoted catalog, with real children; the service is killed in the middle of the acceptance."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import catalogs
from catalogs.audit import audit
from tuner_service.cli.connect import await_ready
from tuner_service.client import Client

pytestmark = [pytest.mark.toolchain, pytest.mark.alone]

PATIENCE_SECONDS = 300.0
"""Upper bound of a wait on a busy machine; nothing is concluded from how long anything took."""
JOB: dict[str, Any] = {
    "cases": [{"kernel": "softmax", "dims": {"rows": 64, "cols": 256}}],
    "space": {
        "width": [16, 32],
        "input": ["reload"],
        "materialize": ["output"],
        "simd_scope": ["all"],
        "nontemporal": [False],
    },
    "baselines": [],
}


class Service:
    """``tuner serve`` on a data directory, as its own process group."""

    def __init__(self, data: Path) -> None:
        self.data, self.url = data, ""
        self.process: subprocess.Popen[str] | None = None

    def start(self) -> None:
        with (self.data / "log").open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "tuner_service.cli", "serve", "--port", "0", "--data-dir", str(self.data)],
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            )
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line.startswith("listening on "), (self.data / "log").read_text()
        self.url = line.split()[-1]

    def stop(self, number: int) -> None:
        assert self.process is not None
        self.process.send_signal(number)
        self.process.wait(PATIENCE_SECONDS)
        assert self.process.stdout is not None
        self.process.stdout.close()
        self.process = None

    def tuner(self, *words: str, status: int = 0) -> str:
        command = [sys.executable, "-m", "tuner_service.cli", *words, "--data-dir", str(self.data)]
        environment = {**os.environ, "TUNER_URL": self.url}
        done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_SECONDS, env=environment)
        assert done.returncode == status, (done.stdout, done.stderr)
        return done.stdout


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    service = Service(tmp_path_factory.mktemp("service"))
    service.start()
    yield service
    if service.process is not None:
        service.stop(signal.SIGTERM)


def wait(read: Callable[[], dict[str, Any]], reached: Callable[[dict[str, Any]], bool]) -> Any:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not reached(found := read()):
        assert found["state"] in ("queued", "running"), found
        assert time.monotonic() < deadline
        time.sleep(0.1)
    return found


def test_a_killed_acceptance_goes_on_and_what_it_accepts_is_promoted_pulled_and_found(
    service: Service, tmp_path: Path
) -> None:
    with Client(service.url) as client:
        await_ready(client)
        job = client.wait(client.submit(JOB)["id"], poll_seconds=0.2)
        assert job["state"] == "succeeded", job["error"]
        frozen = json.loads(service.tuner("catalog", "freeze", job["id"], "--json"))
        digest = frozen["candidate"]["digest"]
        asked = client.accept(digest)["id"]
        wait(lambda: client.acceptance(asked), lambda one: one["progress"]["records"] >= 2)
    service.stop(signal.SIGKILL)
    service.start()
    with Client(service.url) as client:
        found = client.wait_acceptance(asked, poll_seconds=0.2)
        assert found["state"] == "succeeded", found["error"]
        assert found["progress"]["records"] == found["progress"]["expected"]
        assert found["deltas"] == []
        assert found["verdict"] in ("accepted", "rejected")  # a busy machine may make it inconclusive
        evidence = tmp_path / "evidence.json"
        evidence.write_bytes(catalogs.canonical_json(client.evidence(asked)))
        report = audit(evidence.read_bytes())
        assert report.findings == ()
        assert report.checked["records"] == found["progress"]["expected"]
        if found["verdict"] != "accepted":  # once more, and no oftener: the whole run waits beside it on half a machine
            found = client.wait_acceptance(client.accept(digest)["id"], poll_seconds=0.2)
        if found["verdict"] != "accepted":
            pytest.skip(f"this machine is too busy to accept anything: {found['reasons']}")
    service.tuner("catalog", "promote", digest)
    store = tmp_path / "store"
    pulled = json.loads(service.tuner("catalog", "pull", str(store), "--artifacts", "--json"))
    assert digest in pulled["digests"]
    assert len(pulled["artifacts"]) == 1
    fingerprint = service.tuner("fingerprint").strip()
    service.stop(signal.SIGTERM)  # a lookup needs no service
    opened = catalogs.open(store, toolchain=fingerprint)
    answer = opened.lookup(
        kernel="softmax", dims={"rows": 64, "cols": 256}, device=catalogs.this_device(), toolchain=fingerprint
    )
    assert isinstance(answer, catalogs.Hit)
    assert answer.entry.trial_id == job["cases"][0]["winner"]["id"]
    assert answer.entry.artifact is not None
    library = catalogs.Store(str(store)).artifact(pulled["artifacts"][0], device=catalogs.this_device().digest)
    assert answer.entry.artifact["library_sha256"] == pulled["artifacts"][0]
    assert Path(library).is_file()
