"""A whole job on a compile-only device, over HTTP: built, inspected and simulated for real, and nothing timed."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from search.device.spec import DeviceSpec
from search.pipeline import tune
from search.program.resolve import resolve_case
from tuner_service.cli.launch import PrivateService

pytestmark = pytest.mark.toolchain

PROGRAM = {
    "name": "centered",
    "dims": ["rows", "cols"],
    "axes": {"row": {"dim": "rows", "kind": "row"}, "col": {"dim": "cols", "kind": "column"}},
    "tensors": {
        "x": {"axes": ["row", "col"], "role": "input", "dtype": "float32"},
        "y": {"axes": ["row", "col"], "role": "output", "like": "x"},
    },
    "body": [
        {"reduce": {"into": "low", "op": "min", "over": ["col"], "value": "x"}},
        {"store": {"tensor": "y", "over": ["col"], "value": "x - low"}},
    ],
}
REQUEST = {
    "cases": [
        {"kernel": "softmax", "dims": {"rows": 17, "cols": 65}},
        {"program": PROGRAM, "dims": {"rows": 5, "cols": 130}},
    ],
    "device": "cuda-sm_90",
    "space": {"width": [32, 64], "vector": [1], "rows_per_block": [1, 32], "materialize": ["private"]},
}


@pytest.fixture(scope="module")
def data_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("service")


@pytest.fixture(scope="module")
def http(data_dir: Path) -> Iterator[httpx.Client]:
    with (
        PrivateService(data_dir) as service,
        httpx.Client(base_url=service.url, trust_env=False, timeout=60) as client,
    ):
        yield client


@pytest.fixture(scope="module")
def job(http: httpx.Client) -> dict[str, Any]:
    while http.get("/readyz").json()["devices"] != "probed":
        time.sleep(0.05)
    answer = http.post("/v1/jobs", json=REQUEST)
    assert answer.status_code == 202, answer.text
    where = answer.headers["Location"]
    with http.stream("GET", f"{where}/events") as events:
        for _ in events.iter_lines():
            pass
    found: dict[str, Any] = http.get(where).json()
    return found


@pytest.fixture(scope="module")
def trials(http: httpx.Client, job: dict[str, Any]) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = http.get(f"/v1/jobs/{job['id']}/trials", params={"limit": 1000}).json()["items"]
    return found


def test_the_job_succeeds_and_claims_no_winner(job: dict[str, Any], trials: list[dict[str, Any]]) -> None:
    assert (job["state"], job["error"]) == ("succeeded", None)
    progress = job["progress"]
    assert progress["enumerated"] == progress["checked"] + progress["rejected"] == 16
    assert progress["measured"] == progress["not_run"] == 0
    for case in job["cases"]:
        assert "never timed" in case["untimed"]
        assert case["winner"] is case["reference"] is case["best"] is None
    wide = [t for t in trials if t["candidate"]["width"] * t["candidate"]["mapping"]["rows_per_block"] > 1024]
    assert {trial["stage"] for trial in wide} == {"constraints"}
    assert {trial["outcome"] for trial in trials if trial not in wide} == {"checked"}, [
        (trial["reason"], trial["detail"]) for trial in trials if trial["outcome"] == "rejected"
    ]


def test_every_trial_has_facts_of_its_machine_code_and_passed_checks(trials: list[dict[str, Any]]) -> None:
    checked = [trial for trial in trials if trial["outcome"] == "checked"]
    for trial in checked:
        assert trial["timing"] is None
        code, mapping = trial["code"], trial["candidate"]["mapping"]
        assert code["registers"] > 0
        assert code["spill_bytes"] == 0
        assert code["threads_per_block"] == trial["candidate"]["width"] * mapping["rows_per_block"]
        assert 0 < code["occupancy"]["fraction"] <= 1
        assert sum(code["memory_instructions"]["LDG"].values()) > 0
        assert {one["name"] for one in trial["checks"]["inputs"]} == {"normal", "large_offset", "edge_rows"}
        assert all(one["elements_checked"] > 0 for one in trial["checks"]["inputs"])
        assert ("reload_merged" in code) == (trial["candidate"]["input"] == "reload" and _has_twin(trial, checked))
    assert len({trial["code"]["artifact_sha256"] for trial in checked if trial["same_code_as"] is None}) > 1


def _has_twin(trial: dict[str, Any], checked: list[dict[str, Any]]) -> bool:
    twin = {**trial["candidate"], "input": "cache"}
    return any(one["case_index"] == trial["case_index"] and one["candidate"] == twin for one in checked)


def test_the_source_of_a_trial_can_be_read_and_built(http: httpx.Client, trials: list[dict[str, Any]]) -> None:
    trial = next(trial for trial in trials if trial["outcome"] == "checked")
    source = http.get(f"/v1/trials/{trial['id']}/source").json()
    assert "__global__" in source["c_text"]
    assert "import tilelang" in source["tilelang_text"]
    assert "sm_90" in " ".join(source["build_command"])
    folder = http.get(f"/v1/trials/{trial['id']}/source", params={"format": "tar"})
    assert b"kernel.cu" in folder.content


def test_what_was_not_timed_cannot_be_frozen_nor_looked_up(http: httpx.Client, job: dict[str, Any]) -> None:
    frozen = http.post("/v1/catalogs", json={"jobs": [job["id"]]})
    assert frozen.status_code == 409
    assert "compile-only" in frozen.json()["detail"]
    missed = http.get("/v1/winners", params={"kernel": "softmax", "dims": "rows:17,cols:65", "toolchain": "any"})
    assert missed.status_code == 404


def test_the_library_ends_the_same_way_without_a_service(job: dict[str, Any], data_dir: Path) -> None:
    """In the service's folder of work, where the simulator's header is compiled already."""
    device = DeviceSpec.from_document(job["device"])
    case = resolve_case({"kernel": "row_max", "dims": {"rows": 9, "cols": 70}, "dtypes": {"x": "float16"}})
    state = tune(case, device=device, work_dir=data_dir / "work", space={"width": [32], "rows_per_block": [4]})
    assert state.settled is not None
    assert (state.settled.winner, state.settled.untimed) == (None, device.untimed)
    assert state.baselines_wanted == ()
    assert {trial.outcome for trial in state.trials} <= {"checked", "rejected"}
    assert any(trial.outcome == "checked" and trial.in_space for trial in state.trials)
