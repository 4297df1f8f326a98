"""Workers die, stop, come back and share a device; the database goes away. Nothing is lost, and nobody is charged."""

import signal
import time

from deployment import ANOTHER_DEVICE, PAPER_DEVICE, SMALL, Deployment
from postgres_cluster import PostgresCluster
from proxy import PausableProxy


def test_a_worker_killed_in_a_measurement_is_replaced(deployment: Deployment) -> None:
    client = deployment.serve()
    first = deployment.paper_worker()
    deployment.hold("Measure")
    job_id = client.submit(SMALL)["id"]
    deployment.await_held("Measure")
    deployment.wait(lambda: "measure" in [task["step"] for one in client.workers() for task in one["tasks"]])
    first.end(signal.SIGKILL)
    deployment.let_go("Measure")
    deployment.paper_worker()
    job = deployment.await_end(job_id)
    assert job["state"] == "succeeded", job["error"]
    assert deployment.losses(job_id) == 1, "what was in flight is charged once"
    deployment.assert_sound(job_id)


def test_a_worker_that_drains_ends_what_is_short_and_hands_back_the_rest(deployment: Deployment) -> None:
    client = deployment.serve()
    first = deployment.paper_worker()
    deployment.hold("Measure")
    job_id = client.submit(SMALL)["id"]
    deployment.await_held("Measure")
    first.send(signal.SIGTERM)
    deployment.wait(lambda: "is stopping" in str(client.job(job_id)["waiting"]))
    deployment.let_go("Measure")
    assert first.end(signal.SIGTERM) == 0  # a second one: no time is left for anything else
    measured = deployment.job(job_id)["progress"]["measured"]
    second = deployment.paper_worker()
    deployment.hold("Finals")
    deployment.await_held("Finals")
    second.send(signal.SIGTERM)
    assert second.end(signal.SIGTERM) == 0, "handed back at once"
    deployment.let_go("Finals")
    deployment.paper_worker()
    job = deployment.await_end(job_id)
    assert job["state"] == "succeeded", job["error"]
    assert measured >= 1
    assert deployment.losses(job_id) == 0
    deployment.assert_sound(job_id)


def test_a_job_says_that_a_compiler_is_missing_or_that_nobody_compiles(deployment: Deployment) -> None:
    client = deployment.serve()
    worker = deployment.paper_worker(changes={"available": False, "reason": "gcc: not found"})
    deployment.wait(lambda: any(one["reason"] == "gcc: not found" for one in client.devices()))
    job_id = client.submit(SMALL)["id"]
    assert f"device {PAPER_DEVICE} is unavailable" in client.job(job_id)["waiting"]
    assert "gcc: not found" in client.job(job_id)["waiting"]
    worker.end(signal.SIGKILL)
    measuring = deployment.paper_worker(compile_slots=0)
    deployment.wait(lambda: "no running worker compiles for it" in str(client.job(job_id)["waiting"]))
    measuring.end(signal.SIGTERM)
    deployment.paper_worker()
    assert deployment.await_end(job_id)["state"] == "succeeded"
    assert client.job(job_id)["waiting"] is None
    deployment.assert_sound(job_id)


def test_of_two_workers_with_one_device_one_measures_and_the_other_takes_over(deployment: Deployment) -> None:
    client = deployment.serve()
    first, second = deployment.paper_worker(), deployment.paper_worker()
    assert f"{PAPER_DEVICE} is held by worker" in second.said[0]
    job_id = client.submit(SMALL)["id"]
    job = deployment.await_end(job_id)
    assert job["state"] == "succeeded", job["error"]
    holder = first.said[0].split()[1]
    measured = [trial for trial in deployment.trials(job_id) if trial["outcome"] == "measured"]
    assert {trial["worker"] for trial in measured} == {holder}
    first.end(signal.SIGTERM)
    deployment.await_device(client)
    again = deployment.await_end(client.submit(SMALL)["id"])
    assert again["state"] == "succeeded", again["error"]
    for one in (job_id, again["id"]):
        deployment.assert_sound(one)


def test_a_stopped_worker_that_keeps_its_host_busy_is_named(deployment: Deployment) -> None:
    client = deployment.serve()
    stopped = deployment.paper_worker(device=ANOTHER_DEVICE)
    deployment.await_device(client, ANOTHER_DEVICE)
    deployment.hold("Build")
    held_up = client.submit({**SMALL, "device": ANOTHER_DEVICE})["id"]
    deployment.await_held("Build")
    stopped.send(signal.SIGSTOP)
    deployment.let_go("Build")
    deployment.paper_worker()
    deployment.await_device(client)
    job_id = client.submit({**SMALL, "device": PAPER_DEVICE})["id"]
    worker_id = stopped.said[0].split()[1]
    deployment.wait(lambda: f"worker {worker_id} may" in str(client.job(job_id)["waiting"]))
    stopped.send(signal.SIGCONT)
    for one in (job_id, held_up):
        job = deployment.await_end(one)
        assert (job["state"], job["error"]) == ("succeeded", None)
        assert client.job(one)["waiting"] is None
        deployment.assert_sound(one)


def test_everything_goes_on_after_the_database_was_restarted(deployment: Deployment, postgres: PostgresCluster) -> None:
    client = deployment.serve()
    deployment.paper_worker()
    deployment.hold("Measure")
    job_id = client.submit(SMALL)["id"]
    deployment.await_held("Measure")
    postgres.stop("immediate")
    try:
        deployment.let_go("Measure")
    finally:
        postgres.start()
    job = deployment.await_end(job_id)
    assert job["state"] == "succeeded", job["error"]
    deployment.assert_sound(job_id)


def test_a_new_version_is_deployed_while_a_job_runs(deployment: Deployment) -> None:
    client = deployment.serve()
    old_service = deployment.processes[-1]
    old = deployment.paper_worker(forget="build", version="1")
    job_id = client.submit(SMALL)["id"]
    old.await_message("this version does not know its step")
    deployment.hold("Measure")
    deployment.serve()
    assert old_service.end(signal.SIGTERM) == 0
    old.send(signal.SIGTERM)
    deployment.paper_worker(version="2")
    assert old.end(signal.SIGTERM) == 0
    deployment.await_held("Measure")
    deployment.let_go("Measure")
    job = deployment.await_end(job_id)
    assert job["state"] == "succeeded", job["error"]
    assert deployment.losses(job_id) == 0
    deployment.assert_sound(job_id)


def test_a_short_cut_between_worker_and_database_is_nothing(deployment: Deployment, postgres: PostgresCluster) -> None:
    client = deployment.serve()
    with PausableProxy(postgres.port) as proxy:
        deployment.paper_worker(url=deployment.url.replace(f":{postgres.port}/", f":{proxy.port}/"))
        deployment.hold("Measure")
        job_id = client.submit(SMALL)["id"]
        deployment.await_held("Measure")
        proxy.pause()
        deployment.let_go("Measure")
        time.sleep(1.0)
        proxy.cut()
        proxy.resume()
        job = deployment.await_end(job_id)
        deployment.processes[-1].end(signal.SIGKILL)
    assert job["state"] == "succeeded", job["error"]
    assert deployment.losses(job_id) == 0
    deployment.assert_sound(job_id)


def test_a_device_whose_child_cannot_be_killed_waits_for_its_release(deployment: Deployment) -> None:
    client = deployment.serve()
    deployment.paper_worker(stuck="Measure")
    job_id = client.submit(SMALL)["id"]
    deployment.wait(lambda: "in quarantine" in str(client.job(job_id)["waiting"]))
    assert client.device(PAPER_DEVICE)["quarantine"]["reason"].startswith("a child could not be killed")
    (deployment.folder / "unstuck").touch()
    deployment.hold("Measure")
    client.release_device(PAPER_DEVICE)
    deployment.await_held("Measure")
    charged = deployment.losses(job_id)
    assert client.quarantine_device(PAPER_DEVICE, "the fan is loud")["changed"]
    deployment.wait(lambda: "the fan is loud" in str(client.job(job_id)["waiting"]))
    deployment.wait(lambda: not any(one["tasks"] for one in client.workers()))
    deployment.let_go("Measure")
    assert deployment.losses(job_id) == charged, "what ran was stopped, and charged to nobody"
    assert deployment.job(job_id)["progress"]["measured"] == 0
    client.release_device(PAPER_DEVICE)
    job = deployment.await_end(job_id)
    assert job["state"] == "succeeded", job["error"]
    deployment.assert_sound(job_id)
