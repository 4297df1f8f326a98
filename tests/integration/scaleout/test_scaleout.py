"""A service of several real processes on PostgreSQL measures on this machine's CPU."""

import signal

import pytest
from deployment import SMALL, Deployment

pytestmark = pytest.mark.toolchain


def test_an_api_and_a_worker_tune_a_softmax(deployment: Deployment) -> None:
    client = deployment.serve()
    worker = deployment.worker("--device", "cpu")
    job_id = client.submit(SMALL)["id"]
    job = deployment.await_end(job_id)
    assert job["state"] == "succeeded", job["error"]
    assert job["cases"][0]["winner"] is not None
    deployment.assert_sound(job_id)
    assert worker.end(signal.SIGTERM) == 0
