"""Freezing jobs that really went through the ledger, and promoting what came of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

import catalogs
from search.errors import InvalidInput
from search.events import Revalidated, event_document
from tuner_service.db.clock import new_id
from tuner_service.db.engine import Database
from tuner_service.db.models import CaseEvent
from tuner_service.db.queries import acceptances as acceptance_queries
from tuner_service.db.queries import catalogs as catalog_queries
from tuner_service.errors import Conflict, NotFound
from tuner_service.jobs.freeze_catalog import FreezeRequest, freeze_jobs, read_freeze_request
from tuner_service.jobs.promote import manifest_of, promote, rollback
from tuner_service.jobs.submit import submit

TWO_CASES = [
    {"kernel": "softmax", "dims": {"rows": 8, "cols": 33}},
    {"kernel": "rms_norm", "dims": {"rows": 8, "cols": 33}},
]


@pytest.fixture
def finished(database: Database, service: Any, resolve: Any, small: dict[str, Any]) -> Callable[..., str]:
    def finished(**changes: Any) -> str:
        job_id = submit(database, resolve({**small, **changes}), idempotency_key=None, body_sha256="5" * 64)
        assert service.finish(job_id)["state"] == "succeeded"
        return job_id

    return finished


def freeze(database: Database, *jobs: str, **fields: Any) -> dict[str, Any]:
    return freeze_jobs(database, FreezeRequest(jobs=jobs, **fields))


def stored(database: Database, digest: str) -> catalogs.Catalog:
    with database.read() as session:
        return catalogs.Catalog.from_bytes(catalog_queries.catalog_row(session, digest)["body"].encode(), digest=digest)


def test_winner_and_reference_are_frozen_with_what_rebuilds_them(
    database: Database, service: Any, finished: Callable[..., str]
) -> None:
    job_id = finished(cases=TWO_CASES)
    frozen = freeze(database, job_id, labels={"team": "kernels"})
    assert frozen["left_out"] == []
    case = service.job(job_id)["cases"][0]
    for role, word in (("candidate", "winner"), ("reference", "reference")):
        summary = frozen[role]
        assert (summary["role"], summary["entries"], summary["jobs"]) == (role, 2, [job_id])
        assert summary["labels"] == {"team": "kernels"}
        catalog = stored(database, summary["digest"])
        assert [row.name for row in catalog.kernels] == ["rms_norm", "softmax"]
        entry = next(entry for entry in catalog.entries if entry.kernel == "softmax")
        assert entry.trial_id == case[word]["id"]
        assert entry.candidate == case[word]["candidate"]
        assert entry.plan == case[word]["plan"]
        assert entry.artifact is not None
        assert entry.artifact["library_sha256"] == "4" * 64
        assert catalog.kernels[1].param_defaults == {}
    assert frozen["candidate"]["reference"] == frozen["reference"]["digest"]
    assert frozen["reference"]["candidate"] == frozen["candidate"]["digest"]


def test_freezing_again_gives_the_same_digests_and_adds_nothing(
    database: Database, finished: Callable[..., str]
) -> None:
    job_id = finished()
    assert freeze(database, job_id) == freeze(database, job_id)
    with database.read() as session:
        assert catalog_queries.list_catalogs(session)["total"] == 2


def test_only_the_cases_that_were_asked_for_are_frozen(database: Database, finished: Callable[..., str]) -> None:
    job_id = finished(cases=TWO_CASES)
    frozen = freeze(database, job_id, cases=({"kernel": "softmax", "dims": {"cols": 33}},))
    assert (frozen["candidate"]["kernels"], frozen["candidate"]["entries"]) == (["softmax"], 1)
    with pytest.raises(InvalidInput, match="no job of the request has such a case"):
        freeze(database, job_id, cases=({"kernel": "softmax", "dims": {"cols": 34}},))


def test_one_key_with_two_winners_is_refused_and_both_jobs_are_named(
    database: Database, tools: Any, finished: Callable[..., str]
) -> None:
    one = finished()
    tools.seconds = lambda ordinal: 1e-6 * (1 + ordinal)
    other = finished()
    with pytest.raises(Conflict) as caught:
        freeze(database, one, other)
    assert one in str(caught.value)
    assert other in str(caught.value)
    with database.read() as session:
        assert catalog_queries.list_catalogs(session)["total"] == 0


def test_two_jobs_with_the_same_winner_become_one_entry(database: Database, finished: Callable[..., str]) -> None:
    one, other = finished(), finished()
    frozen = freeze(database, other, one)
    assert frozen["candidate"]["entries"] == 1
    assert stored(database, frozen["candidate"]["digest"]).entries[0].job_id == one


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"same_machine_code": False}, "differs in machine code"),
        ({"same_source": False, "same_plan": False}, "differs in source, plan"),
        ({"checks": None}, "does not pass its checks"),
        (None, "was not built and checked again"),
    ],
)
def test_what_a_lone_build_does_not_confirm_is_left_out_with_the_reason(
    database: Database, service: Any, finished: Callable[..., str], change: dict[str, Any] | None, words: str
) -> None:
    job_id = finished(cases=TWO_CASES)
    winner = service.job(job_id)["cases"][0]["winner"]["id"]
    with database.write() as session:
        for row in session.query(CaseEvent).where(CaseEvent.kind == "revalidated"):
            if row.document["trial"] != winner:
                continue
            if change is None:
                session.delete(row)
            else:
                event = Revalidated(trial=winner, same_source=True, same_machine_code=True, same_plan=True, checks=None)
                row.document = {**row.document, **event_document(replace(event, **change)), **change}
    frozen = freeze(database, job_id)
    assert [row["kernel"] for row in frozen["left_out"]] == ["softmax"]
    assert words in frozen["left_out"][0]["reason"]
    assert frozen["candidate"]["kernels"] == frozen["reference"]["kernels"] == ["rms_norm"]


def test_a_case_without_a_winner_is_left_out_and_alone_refused(
    database: Database, finished: Callable[..., str]
) -> None:
    space = {"width": [8], "input": ["cache"], "materialize": ["private"]}
    without = finished(space=space, private_budget_scalars=None)
    with pytest.raises(Conflict) as caught:
        freeze(database, without)
    assert "reloads its inputs" in caught.value.members["left_out"][0]["reason"]
    frozen = freeze(database, without, finished(cases=TWO_CASES[1:]))
    assert [row["job_id"] for row in frozen["left_out"]] == [without]


def test_an_unfinished_or_unknown_job_is_refused(database: Database, submitted: str) -> None:
    with pytest.raises(Conflict, match="is queued"):
        freeze(database, submitted)
    with database.write() as session:
        session.connection().exec_driver_sql("UPDATE jobs SET state = 'succeeded'")
    read = read_freeze_request({"jobs": [submitted, "job_nothing"]})
    with pytest.raises(InvalidInput, match="/jobs/1: there is no such job"):
        freeze_jobs(database, read)


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ([], ""),
        ({}, "/jobs"),
        ({"jobs": []}, "/jobs"),
        ({"jobs": "job_1"}, "/jobs"),
        ({"jobs": ["a", "a"]}, "/jobs/1"),
        ({"jobs": [3]}, "/jobs/0"),
        ({"jobs": ["a"], "best": True}, "/best"),
        ({"jobs": ["a"], "cases": {}}, "/cases"),
        ({"jobs": ["a"], "cases": [{"dims": {}}]}, "/cases/0"),
        ({"jobs": ["a"], "cases": [{"kernel": "softmax", "dims": 3}]}, "/cases/0/dims"),
        ({"jobs": ["a"], "cases": [{"kernel": "softmax", "gain": 2}]}, "/cases/0/gain"),
        ({"jobs": ["a"], "labels": 1}, "/labels"),
    ],
)
def test_a_bad_request_names_the_field(body: Any, field: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        read_freeze_request(body)
    assert field in [problem.field for problem in caught.value.problems]


def accept(database: Database, digest: str, *, incumbent: str | None, verdict: str = "accepted") -> str:
    """An acceptance that ended, as promotion reads it."""
    acceptance_id = new_id("acc")
    row = {
        "id": acceptance_id,
        "state": "succeeded",
        "catalog": digest,
        "reference": "0" * 64,
        "incumbent": incumbent,
        "alias": "prod",
        "rounds": 4,
        "device_id": "cpu:0",
        "device": {},
        "replay": {},
        "attempt": 0,
        "failures": 0,
        "verdict": verdict,
        "created_at": "2026-01-01T00:00:00Z",
    }
    with database.write() as session:
        acceptance_queries.insert_acceptance(session, row)
    return acceptance_id


def named(database: Database, alias: str = "prod") -> list[str]:
    with database.read() as session:
        return [entry.digest for entry in manifest_of(session, alias).entries]


def test_only_an_accepted_catalog_is_promoted_and_each_step_leads_back(
    database: Database, finished: Callable[..., str]
) -> None:
    job_id = finished(cases=TWO_CASES)
    first, second, third = (
        freeze(database, job_id, cases=cases)["candidate"]["digest"]
        for cases in (({"kernel": "softmax"},), ({"kernel": "rms_norm"},), ())
    )
    with pytest.raises(NotFound):
        named(database)
    with pytest.raises(NotFound):
        rollback(database, "prod")
    with pytest.raises(NotFound):
        promote(database, "prod", "e" * 64)
    with pytest.raises(Conflict, match="no accepted acceptance"):
        promote(database, "prod", first)
    accept(database, first, incumbent=None, verdict="rejected")
    with pytest.raises(Conflict, match="no accepted acceptance"):
        promote(database, "prod", first)
    accept(database, first, incumbent=None)
    promote(database, "prod", first)
    promote(database, "prod", first)  # once is enough: nothing is added
    assert named(database) == [first]
    with pytest.raises(Conflict, match="no earlier state"):
        rollback(database, "prod")

    accept(database, second, incumbent=None)
    with pytest.raises(Conflict, match=f"names {first} now"):
        promote(database, "prod", second)
    accept(database, second, incumbent=first)
    promote(database, "prod", second)
    accept(database, third, incumbent=second)
    promote(database, "prod", third)
    assert named(database) == [third]
    rollback(database, "prod")
    assert named(database) == [second]
    rollback(database, "prod")
    assert named(database) == [first]
    with pytest.raises(Conflict):
        rollback(database, "prod")
    with database.read() as session:
        history = manifest_of(session, "prod").document()["history"]
    assert [state["action"] for state in history] == ["rollback", "promote", "promote", "promote"]
    assert [state["entries"][0]["digest"] for state in history] == [second, third, second, first]


def test_a_reference_catalog_is_not_promoted(database: Database, finished: Callable[..., str]) -> None:
    frozen = freeze(database, finished())
    with pytest.raises(Conflict, match=f"promote the candidate {frozen['candidate']['digest']}"):
        promote(database, "prod", frozen["reference"]["digest"])
