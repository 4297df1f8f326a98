"""A service of several real processes on PostgreSQL measures on this machine's CPU."""

import re
import signal
import socket

import httpx
import pytest
from deployment import SMALL, Deployment

pytestmark = pytest.mark.toolchain


def test_one_host_compiles_another_measures_and_is_killed_amid_it(deployment: Deployment) -> None:
    client = deployment.serve()
    deployment.worker("--compile-only")
    measuring = ("--device", "cpu", "--compile-slots", "0")
    first = deployment.worker(*measuring)
    job_id = client.submit(SMALL)["id"]
    deployment.wait(lambda: deployment.job(job_id)["progress"]["measured"] >= 2)
    kept = {trial["id"]: trial["timing"] for trial in deployment.trials(job_id) if trial["outcome"] == "measured"}
    first.end(signal.SIGKILL)
    port = free_port()
    worker = deployment.worker(*measuring, "--metrics-port", str(port))
    job = deployment.await_end(job_id)
    assert job["state"] == "succeeded", job["error"]
    assert job["cases"][0]["winner"] is not None
    timings = {trial["id"]: trial["timing"] for trial in deployment.trials(job_id)}
    for trial_id, timing in kept.items():
        assert timings[trial_id]["device_batch"] == timing["device_batch"], "what was recorded stays"
    deployment.assert_sound(job_id)
    winner = job["cases"][0]["winner"]["id"]
    assert_what_the_worker_built_is_served(client.url, winner)
    ready = httpx.get(f"{client.url}/readyz", trust_env=False).json()
    assert (ready["ready"], ready["engine"], ready["leads"], ready["workers"]) == (True, "postgres", True, 2)
    gauges = httpx.get(f"{client.url}/metrics", trust_env=False).text
    assert 'tuner_workers{state="running"} 2.0' in gauges
    assert 'tuner_jobs{state="succeeded"} 1.0' in gauges
    counted = httpx.get(f"http://127.0.0.1:{port}/metrics", trust_env=False).text
    measured = job["progress"]["measured"] - len(kept)
    assert float(re.findall(r'^tuner_trials_total{outcome="measured",stage=""} (.+)$', counted, re.M)[0]) >= measured
    assert float(re.findall(r"^tuner_device_busy_seconds_total{.*} (.+)$", counted, re.M)[0]) > 0
    assert worker.end(signal.SIGTERM) == 0


def assert_what_the_worker_built_is_served(url: str, trial_id: str) -> None:
    """The service has no copy of its own: the source comes from where the other host put it, and no path with it."""
    trial = httpx.get(f"{url}/v1/trials/{trial_id}", trust_env=False).json()
    source = httpx.get(f"{url}/v1/trials/{trial_id}/source", trust_env=False).json()
    assert source["source_sha256"] == trial["code"]["source_sha256"]
    assert "library_path" not in str(trial)


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])
