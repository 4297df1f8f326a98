"""From a job to a looked-up winner through a scaled-out service whose worker is killed amid the acceptance."""

from __future__ import annotations

import signal
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from deployment import ANOTHER_DEVICE, PAPER_DEVICE, SMALL, Deployment
from sqlalchemy import text

import catalogs
from catalogs import DeviceIdentity, canonical_json, sha256_hex
from catalogs.audit import audit
from tuner_service.client import ApiProblem, Client

IDENTITY, TOOLCHAIN = {"model": "paper"}, {"gcc": "0"}
PAPER: dict[str, Any] = {
    "identity": IDENTITY,
    "identity_digest": DeviceIdentity(kind="cpu", identity=IDENTITY).digest,
    "toolchain": TOOLCHAIN,
    "toolchain_fingerprint": sha256_hex(TOOLCHAIN),
}
"""What the audit of the evidence computes again must be true of the device on paper as well."""
UUID = "GPU-11111111"
CASE: dict[str, Any] = {"kernel": "softmax", "dims": {"rows": 8, "cols": 33}}


def test_an_acceptance_waits_for_the_very_device_of_a_killed_worker_and_is_found_in_the_end(
    deployment: Deployment, tmp_path: Path
) -> None:
    client = deployment.serve()
    worker = deployment.paper_worker(changes={**PAPER, "uuid": UUID})
    deployment.await_device(client)
    job = deployment.await_end(client.submit({**SMALL, "cases": [CASE], "device": PAPER_DEVICE})["id"])
    assert job["state"] == "succeeded", job["error"]
    digest = client.freeze([job["id"]])["candidate"]["digest"]
    deployment.paper_worker(device=ANOTHER_DEVICE, changes={**PAPER, "uuid": "GPU-22222222"})  # of the same make
    deployment.await_device(client, ANOTHER_DEVICE)
    deployment.hold("Timed-1-D")
    asked = client.accept(digest)["id"]
    deployment.await_held("Timed-1-D")
    bound = client.acceptance(asked)["device"]["id"]
    worker = worker if bound == PAPER_DEVICE else deployment.processes[-1]
    uuid = UUID if bound == PAPER_DEVICE else "GPU-22222222"
    worker.end(signal.SIGKILL)
    deployment.let_go("Timed-1-D")
    deployment.wait(lambda: f"device {bound} is unavailable" in str(client.acceptance(asked)["waiting"]))
    waits = client.acceptance(asked)
    assert (waits["state"], waits["verdict"]) == ("running", None)
    assert waits["device"]["id"] == bound, "another machine of the same make is another machine"
    kept = waits["progress"]["records"]
    assert 0 < kept < waits["progress"]["expected"]
    deployment.paper_worker(device=bound, changes={**PAPER, "uuid": uuid})
    found = client.wait_acceptance(asked, poll_seconds=0.1)
    assert (found["state"], found["verdict"], found["reasons"]) == ("succeeded", "accepted", []), found["error"]
    assert found["waiting"] is None
    assert_whole(deployment, client, found)
    client.promote("prod", digest)
    assert_served(client, job, digest, tmp_path)
    deployment.assert_sound(job["id"])


def assert_whole(deployment: Deployment, client: Client, found: dict[str, Any]) -> None:
    """Each arm once in each round, whatever was begun twice; nothing is left in flight, and no device is taken."""
    assert found["progress"]["records"] == found["progress"]["expected"]
    evidence = client.evidence(found["id"])
    report = audit(canonical_json(evidence))
    assert report.findings == ()
    assert report.checked["records"] == found["progress"]["expected"]
    with deployment.database.read() as session:
        rows = session.execute(
            text("SELECT round, arm, attempt FROM acceptance_records WHERE acceptance_id = :id"), {"id": found["id"]}
        ).all()
    assert sorted(row.round for row in rows if row.arm == "build") == list(range(found["rounds"])), "built once each"
    attempts = Counter(number for number, _ in {(row.round, row.attempt) for row in rows if row.arm != "build"})
    assert sorted(attempts) == list(range(found["rounds"]))
    assert sorted(attempts.values())[-2:] <= [1, 2], "the round that was under way is timed again; no other is"
    deployment.wait(lambda: deployment.in_flight(found["id"]) == 0)
    deployment.wait(lambda: not any(one["lease"] for one in client.devices()))
    assert not any(one["quarantine"] for one in client.devices())


def assert_served(client: Client, job: dict[str, Any], digest: str, folder: Path) -> None:
    """The winner comes out of the API, and out of a catalog that a lookup client pulled."""
    winner = job["cases"][0]["winner"]
    entry = client.winner(kernel="softmax", dims=CASE["dims"], device=job["device"]["id"], catalog="prod")
    assert entry["trial_id"] == winner["id"]
    with pytest.raises(ApiProblem) as missed:
        client.winner(kernel="softmax", dims={"rows": 8, "cols": 34}, device=job["device"]["id"], catalog="prod")
    assert missed.value.problem["type"] == "/problems/no-winner"
    store = str(folder / "store")
    identity = DeviceIdentity(kind="cpu", identity=job["device"]["identity"])
    pulled = catalogs.pull(f"{client.url}/v1/aliases/prod", store, device=identity.digest)
    assert digest in pulled.digests
    toolchain = job["device"]["toolchain_fingerprint"]
    opened = catalogs.open(store, device=identity, toolchain=toolchain)
    hit = opened.lookup(kernel="softmax", dims=CASE["dims"], device=identity, toolchain=toolchain)
    assert isinstance(hit, catalogs.Hit)
    assert hit.entry.trial_id == winner["id"]


@pytest.mark.full
@pytest.mark.toolchain
def test_the_same_with_this_machines_cpu(deployment: Deployment, tmp_path: Path) -> None:
    """Whether the candidate is accepted is up to the machine; everything else is not."""
    client = deployment.serve()
    worker = deployment.worker("--device", "cpu")
    space = {"width": [16, 32], "input": ["reload"], "materialize": ["output"], "simd_scope": ["all"]}
    job = deployment.await_end(client.submit({"cases": [CASE], "space": {**space, "nontemporal": [False]}})["id"])
    assert job["state"] == "succeeded", job["error"]
    digest = client.freeze([job["id"]])["candidate"]["digest"]
    asked = client.accept(digest)["id"]
    deployment.wait(lambda: client.acceptance(asked)["progress"]["records"] >= 2)
    worker.end(signal.SIGKILL)
    device = job["device"]["id"]
    deployment.wait(lambda: f"device {device} is unavailable" in str(client.acceptance(asked)["waiting"]))
    deployment.worker("--device", "cpu")
    found = client.wait_acceptance(asked, poll_seconds=0.1)
    assert found["state"] == "succeeded", found["error"]
    assert found["deltas"] == []
    assert_whole(deployment, client, found)
    deployment.assert_sound(job["id"])
    if found["verdict"] != "accepted":
        assert found["reasons"]
        with pytest.raises(ApiProblem, match="accept"):
            client.promote("prod", digest)
        return
    client.promote("prod", digest)
    assert_served(client, job, digest, tmp_path)
