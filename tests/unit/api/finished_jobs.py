"""Jobs that have succeeded, and replays with a verdict, without anything that was compiled or measured."""

from __future__ import annotations

import hashlib
from typing import Any

from search.events import FreshBuilt, event_document
from search.lowering.contract import Artifact, Source
from tuner_service.db.queries import acceptances as acceptance_queries
from tuner_service.db.queries import cases as case_queries
from tuner_service.db.queries import jobs as job_queries
from tuner_service.db.queries import trials as trial_queries
from tuner_service.jobs.ending import end_job
from tuner_service.jobs.opening import open_case

CHECKS = {
    "passed": True,
    "inputs": [
        {
            "name": "normal",
            "elements_checked": 8,
            "guard_elements_checked": 8,
            "input_sha256": "0" * 64,
            "tolerance": "2 ulp",
            "max_abs_error": 0.0,
            "max_rel_error": 0.0,
            "max_ulp_error": 0.0,
            "max_tolerance": 1e-6,
        }
    ],
    "guards_intact": True,
    "inputs_unchanged": True,
}


def finished_job(served: Any, *, rows: int = 4, kernel: str = "softmax", best: int = 0, **case_parts: Any) -> str:
    """A job that succeeded: two trials measured, number ``best`` won, and was built and checked again.

    With ``program`` the case has that instead of the kernel.
    """
    what = {} if "program" in case_parts else {"kernel": kernel}
    request = {
        "cases": [{**what, "dims": {"rows": rows, "cols": 33}, **case_parts}],
        "device": "cpu",
        "space": {"width": [8, 16], "input": ["reload"], "simd_scope": ["all"], "materialize": ["private"]},
    }
    job_id = str(served.http.post("/v1/jobs", json=request).json()["id"])
    database = served.context.database
    with database.read() as session:
        case = case_queries.case_rows(session, job_id)[0]
    open_case(database, job_id, case["id"])
    trials = served.http.get(f"/v1/jobs/{job_id}/trials?outcome=pending").json()["items"]
    winner = trials[best]["id"]
    phase = {"samples_seconds": [2e-6, 1e-6, 4e-6], "median_seconds": 2e-6, "calls_per_sample": 10}
    result = {
        "winner": winner,
        "reference": winner,
        "tie_set": [winner],
        "reference_tie_set": [winner],
        "noise_floor": 0.01,
        "regret": 0.0,
        "predicted": winner,
        "error": None,
    }
    again = {"trial": winner, "same_source": True, "same_machine_code": True, "same_plan": True, "checks": CHECKS}
    with database.write() as session:
        for trial in trials:
            code = {"source_sha256": hashlib.sha256(trial["id"].encode()).hexdigest(), "artifact_sha256": "c" * 64}
            measured = {"outcome": "measured", "timing": {"device_batch": phase}, "code": code}
            trial_queries.update_trials(session, {trial["id"]: measured})
        case_queries.update_case(session, case["id"], {"settled": True, "result": result, "measured": len(trials)})
        event = {"event": "revalidated", **again, "rejection": None}
        case_queries.add_case_event(session, case["id"], "revalidated", winner, event)
        job_queries.update_job(session, job_id, {"state": "running"})
    assert end_job(database, job_id, "succeeded")
    return job_id


def give_verdict(served: Any, acceptance_id: str, verdict: str) -> None:
    """What a replay would have come to."""
    values = {
        "state": "succeeded",
        "verdict": verdict,
        "evidence": '{"kind":"acceptance_evidence"}',
        "evidence_sha256": "d" * 64,
    }
    with served.context.database.write() as session:
        acceptance_queries.update_acceptance(session, acceptance_id, values)


def accepted(served: Any, digest: str, **body: Any) -> str:
    response = served.http.post(f"/v1/catalogs/{digest}/acceptances", json=body)
    assert response.status_code == 202, response.text
    give_verdict(served, response.json()["id"], "accepted")
    return str(response.json()["id"])


def add_files(served: Any, job_id: str) -> None:
    """The artifact store has the source of every trial of a job, and the library of each winner's fresh build."""
    runtime, database = served.context.runtime, served.context.database
    for trial in served.http.get(f"/v1/jobs/{job_id}/trials?outcome=measured").json()["items"]:
        sha256 = trial["code"]["source_sha256"]
        runtime.sources[sha256] = Source(
            source_sha256=sha256,
            tilelang_text="# tilelang\n",
            c_text="/* c */\n",
            header_name="tuner.h",
            header_text="/* header */\n",
            build_command=("gcc", "-O3", "kernel.c"),
            files={},
        )
        with database.write() as session:
            trial_queries.update_trials(session, {trial["id"]: {"source_sha256": sha256}})
    with database.read() as session:
        cases = case_queries.case_rows(session, job_id)
    for case in cases:
        winner = case["result"]["winner"]
        library = hashlib.sha256(winner.encode()).hexdigest()
        runtime.libraries[library] = winner.encode()
        artifact = Artifact(
            source_sha256="a" * 64,
            artifact_sha256="c" * 64,
            library_path="/nowhere.so",
            library_sha256=library,
            symbol="kernel",
            arguments=(),
        )
        built = FreshBuilt(trial=winner, artifact=artifact, plan=None, rejection=None)
        with database.write() as session:
            case_queries.add_case_event(session, case["id"], "fresh_built", winner, event_document(built))
