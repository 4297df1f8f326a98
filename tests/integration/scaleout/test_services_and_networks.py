"""API processes die and are replaced, networks swallow what is sent, clocks are wrong: jobs end once, and right."""

import contextlib
import signal
import threading
import time
from collections.abc import Iterator

import pytest
from deployment import PAPER_DEVICE, SMALL, Deployment
from postgres_cluster import PostgresCluster
from proxy import PausableProxy

from tuner_service.client import ApiProblem, Client

LOST_SECONDS = 5
"""``TUNER_WORKER_LOST_SECONDS`` of a deployment under test."""
SINGLE = {
    **SMALL,
    "space": {"width": [8], "input": ["cache"], "simd_scope": ["all"], "nontemporal": [False]},
}
"""A job of a candidate or two."""


@pytest.fixture
def proxy(postgres: PostgresCluster) -> Iterator[PausableProxy]:
    """A network between a worker and the database."""
    with PausableProxy(postgres.port) as one:
        yield one


def through(deployment: Deployment, proxy: PausableProxy) -> str:
    """The database's URL by way of the proxy."""
    return f"postgresql://postgres@127.0.0.1:{proxy.port}/{deployment.url.rpartition('/')[2]}"


def succeeded(deployment: Deployment, job_id: str) -> None:
    job = deployment.await_end(job_id)
    assert job["state"] == "succeeded", job["error"]
    assert job["progress"]["measured"] >= 1
    deployment.assert_sound(job_id)


@pytest.mark.parametrize(
    "step", ["Measure", pytest.param("Build", marks=pytest.mark.full), pytest.param("Finals", marks=pytest.mark.full)]
)
def test_an_api_that_is_killed_amid_a_job_is_replaced_by_one_that_waited(deployment: Deployment, step: str) -> None:
    client = deployment.serve()
    deployment.serve()
    deployment.paper_worker()
    deployment.hold(step)
    job_id = client.submit(SMALL)["id"]
    deployment.await_held(step)
    deployment.processes[0].end(signal.SIGKILL)
    deployment.let_go(step)
    succeeded(deployment, job_id)
    assert deployment.losses(job_id) == 0, "an API is nobody's worker"


@pytest.mark.parametrize("step", ["Build", "Recording"])
def test_a_worker_killed_amid_a_build_or_before_it_recorded(deployment: Deployment, step: str) -> None:
    client = deployment.serve()
    worker = deployment.paper_worker()
    deployment.hold(step)
    job_id = client.submit(SMALL)["id"]
    deployment.await_held(step)
    worker.end(signal.SIGKILL)
    deployment.let_go(step)
    deployment.paper_worker()
    succeeded(deployment, job_id)
    assert deployment.losses(job_id) == 1


def test_a_trial_that_loses_two_workers_is_rejected_and_the_others_are_not(deployment: Deployment) -> None:
    client = deployment.serve()
    job_id = ""
    for _ in range(2):
        worker = deployment.paper_worker()
        if not job_id:
            deployment.hold("Measure")
            job_id = client.submit(SMALL)["id"]
        deployment.await_held("Measure")
        held = deployment.folder / "held-Measure"
        worker.end(signal.SIGKILL)
        held.unlink()
    deployment.let_go("Measure")
    deployment.paper_worker()
    succeeded(deployment, job_id)
    assert deployment.losses(job_id) <= 2


@pytest.mark.parametrize(
    ("cut_seconds", "lost_seconds"),
    [
        pytest.param(LOST_SECONDS * 2, LOST_SECONDS, id="longer than lost"),
        pytest.param(12, 30, id="12 s", marks=pytest.mark.full),
        pytest.param(180, 30, id="3 minutes", marks=pytest.mark.full),
    ],
)
def test_a_network_that_swallows_everything_for_a_while(
    deployment: Deployment, proxy: PausableProxy, cut_seconds: float, lost_seconds: int
) -> None:
    deployment.environment["TUNER_WORKER_LOST_SECONDS"] = str(lost_seconds)
    client = deployment.serve()
    deployment.paper_worker(url=through(deployment, proxy))
    deployment.hold("Measure")
    job_id = client.submit(SMALL)["id"]
    deployment.await_held("Measure")
    proxy.pause()
    deployment.let_go("Measure")  # it measures on, and has nobody to tell
    time.sleep(cut_seconds)
    proxy.resume()
    succeeded(deployment, job_id)
    assert deployment.losses(job_id) <= (1 if cut_seconds > lost_seconds else 0)
    succeeded(deployment, client.submit(SINGLE)["id"])


def test_a_network_that_resets_every_connection(deployment: Deployment, proxy: PausableProxy) -> None:
    client = deployment.serve()
    deployment.paper_worker(url=through(deployment, proxy))
    deployment.hold("Measure")
    job_id = client.submit(SMALL)["id"]
    deployment.await_held("Measure")
    for _ in range(3):
        proxy.cut()
        time.sleep(0.2)
    deployment.let_go("Measure")
    proxy.cut()
    succeeded(deployment, job_id)
    assert deployment.losses(job_id) == 0


@pytest.mark.parametrize("skew_seconds", [-86_400.0, pytest.param(86_400.0, marks=pytest.mark.full)])
def test_a_worker_whose_clock_is_a_day_off(deployment: Deployment, skew_seconds: float) -> None:
    client = deployment.serve()
    deployment.paper_worker(skew_seconds=skew_seconds)
    deployment.hold("Measure")
    job_id = client.submit(SMALL)["id"]
    deployment.await_held("Measure")
    time.sleep(LOST_SECONDS * 0.6)  # beats pass, the reaper looks
    deployment.let_go("Measure")
    succeeded(deployment, job_id)
    assert deployment.losses(job_id) == 0, "ages are the database's clock's"


def test_a_job_is_cancelled_in_every_state_and_leaves_nothing(deployment: Deployment) -> None:
    client = deployment.serve()
    worker = deployment.paper_worker()
    deployment.await_device(client)
    at_once = client_job(client)
    assert client.cancel(at_once)["state"] == "cancelled"
    deployment.assert_sound(at_once)
    deployment.hold("Build")
    waiting = client_job(client)
    deployment.await_held("Build")
    worker.end(signal.SIGTERM)
    deployment.wait(lambda: bool(client.job(waiting)["waiting"]))
    assert client.cancel(waiting)["state"] == "cancelled", "nobody is there who could work on it"
    deployment.assert_sound(waiting)
    deployment.let_go("Build")
    (deployment.folder / "held-Build").unlink()
    deployment.paper_worker()
    deployment.await_device(client)
    for step in ("Build", "Measure", "Recording", "Finals", "FreshBuild", "Revalidate"):
        deployment.hold(step)
        job_id = client_job(client)
        deployment.await_held(step)
        assert client.cancel(job_id)["state"] == "cancelled"
        deployment.wait(lambda: not client.device(PAPER_DEVICE)["lease"])
        deployment.let_go(step)
        (deployment.folder / f"held-{step}").unlink(missing_ok=True)
        progress = deployment.job(job_id)["progress"]
        assert progress["pending"] == 0
        deployment.assert_sound(job_id)
    ended = client_job(client)
    succeeded(deployment, ended)
    with pytest.raises(ApiProblem, match="can no longer be cancelled"):
        client.cancel(ended)
    assert client.job(ended)["state"] == "succeeded"


def client_job(client: Client) -> str:
    return str(client.submit(SMALL)["id"])


@pytest.mark.parametrize("finished", [6, pytest.param(200, marks=pytest.mark.full)])
def test_two_hundred_jobs_at_once(deployment: Deployment, finished: int) -> None:
    """All of them end: those that are wanted by finishing, every other one by being cancelled where it is."""
    client = deployment.serve()
    deployment.paper_worker()
    deployment.await_device(client)
    ids: list[str] = []
    lock = threading.Lock()

    def post() -> None:
        with Client(client.url) as own:
            for _ in range(20):
                job_id = str(own.submit(SINGLE)["id"])
                with lock:
                    ids.append(job_id)

    threads = [threading.Thread(target=post) for _ in range(10)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(ids)) == 200
    unwanted = set(ids) - set(sorted(ids)[-finished:])
    for job_id in sorted(unwanted, reverse=True):
        with contextlib.suppress(ApiProblem):  # it has ended already
            client.cancel(job_id)
    deployment.wait(lambda: not deployment.jobs_by_state().keys() & {"queued", "running"})
    ended = deployment.jobs_by_state()
    assert sum(ended.values()) == 200
    assert ended["succeeded"] >= finished
    assert set(ended) <= {"succeeded", "cancelled"}
    for job_id in sorted(ids)[::20]:
        deployment.assert_sound(job_id)
