"""Retention over HTTP and from the command line: what goes, and that lookups follow."""

from __future__ import annotations

import hashlib
import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import text

sys.path.append(str(Path(__file__).parent))

from finished_jobs import add_files, finished_job

from tuner_service.api import schemas_retention
from tuner_service.cli.main import run
from tuner_service.db.queries.artifacts import put_artifacts


def winner(served: Any, rows: int) -> Any:
    return served.http.get("/v1/winners", params={"kernel": "softmax", "dims": f"rows:{rows},cols:33"}).json()


def put_long_ago(served: Any, name: str) -> None:
    with served.context.database.write() as session:
        put_artifacts(session, {name: b"x"})
        session.execute(text("UPDATE artifacts SET created_at = '2020-01-01T00:00:00.000000Z'"))


def store_long_ago(served: Any, data: bytes) -> Path:
    """A library in the data directory, last used long ago."""
    _, path = served.context.runtime.artifact_store.save_library(data)
    os.utime(path, (0, 0))
    return Path(path)


def test_lookups_follow_and_a_promoted_job_stays(served: Any, capsys: pytest.CaptureFixture[str]) -> None:
    kept, older, newer = (finished_job(served, rows=rows, best=best) for rows, best in ((4, 0), (6, 0), (6, 1)))
    digest = served.http.post("/v1/catalogs", json={"jobs": [kept]}).json()["candidate"]["digest"]
    assert winner(served, 4)["job_id"] == kept
    assert winner(served, 6)["job_id"] == newer
    # As many come as go: their number alone tells nothing.
    label = {"labels": {"keep": "yes"}}
    assert served.http.post("/v1/prune", json={"older_than": "0s", **label}).json()["removed"]["jobs"] == 0
    put_long_ago(served, "libraries/" + "ab" * 32)
    copies = store_long_ago(served, b"a copy")
    dry = served.http.post("/v1/prune", json={"older_than": "0s", "dry_run": True}).json()
    answer = served.http.post("/v1/prune", json={"older_than": "0s"}).json()
    assert answer["removed"] == dry["removed"] | {"artifacts": 1, "copies": 1}
    assert not copies.exists()
    other = finished_job(served, rows=8)
    third = finished_job(served, rows=9)
    schemas_retention.PrunedDocument.model_validate(answer)
    assert answer["removed"]["jobs"] == 2
    assert [row["job_id"] for row in answer["kept"]] == [kept]
    assert f"catalog {digest}" in answer["kept"][0]["referred_to_by"]
    assert winner(served, 4)["job_id"] == kept
    assert winner(served, 8)["job_id"] == other
    assert winner(served, 9)["job_id"] == third
    miss = winner(served, 6)
    assert miss["status"] == 404
    assert not {older, newer} & {near["job_id"] for near in miss["misses"]}
    for job_id in (older, newer):
        assert served.http.get(f"/v1/jobs/{job_id}").status_code == 404
        assert served.http.get(f"/v1/jobs/{job_id}/trials").status_code == 404
    url = f"http://127.0.0.1:{served.port}"
    assert run(["prune", "--older-than", "0s", "--state", "succeeded", "--url", url, "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert (document["removed"]["jobs"], document["kept_total"], document["complete"]) == (2, 1, True)
    assert run(["prune", "--older-than", "0s", "--label", "a=b", "--dry-run", "--url", url]) == 0
    assert capsys.readouterr().out.startswith("would remove 0 jobs, 0 cases, 0 trials")
    assert run(["prune", "--older-than", "old", "--state", "running", "--url", url]) == 2
    said = capsys.readouterr().err
    assert "older_than" in said
    assert "states" in said


def test_where_the_only_store_is_local_what_is_named_stays(served: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(served.context.runtime, "shared_artifacts", None)
    job_id = finished_job(served, rows=3)
    add_files(served, job_id)
    (case,) = served.http.get(f"/v1/jobs/{job_id}").json()["cases"]
    named = hashlib.sha256(case["winner"]["id"].encode()).hexdigest()  # as ``add_files`` calls its library
    gone, kept = store_long_ago(served, b"nobody's"), store_long_ago(served, b"of a trial")
    renamed = kept.with_name(f"{named}.so")
    kept.rename(renamed)
    young = Path(served.context.runtime.artifact_store.save_library(b"young")[1])
    left = gone.with_name(".left-by-a-killed-writer")
    left.touch()
    os.utime(left, (0, 0))
    answer = served.http.post("/v1/prune", json={"older_than": "30d", "labels": {"no": "job"}}).json()
    assert (answer["removed"]["artifacts"], "copies" in answer["removed"]) == (2, False)
    assert [path.exists() for path in (gone, left, renamed, young)] == [False, False, True, True]
