"""The demo's catalogs: nothing unaccepted is promoted, and whatever is wrong is said."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tuner_service.cli.demo_catalog import Catalogued, catalog_winners
from tuner_service.client import Client

ONE, OTHER = "a" * 64, "b" * 64


def acceptance(verdict: str | None, **changes: Any) -> dict[str, Any]:
    return {
        "id": "acc_1",
        "state": "succeeded",
        "rounds": 4,
        "progress": {"records": 20, "expected": 20},
        "cases": [],
        "incumbent": None,
        "verdict": verdict,
        "reasons": [] if verdict == "accepted" else ["rms_norm rows=4: inconclusive"],
        "statements": [],
        "evidence_sha256": "e" * 64,
        "error": None,
        **changes,
    }


@pytest.fixture
def catalogued(service: Any, documents: Any, tmp_path: Path) -> Any:
    """A service whose every answer is given, and the demo's second half run against it."""
    frozen = {"candidate": {"digest": ONE}, "reference": {"digest": OTHER}, "left_out": []}
    service.answer("POST /v1/catalogs", frozen, status=201)
    service.answer(f"POST /v1/catalogs/{ONE}/acceptances", acceptance(None, state="queued"), status=202)
    service.answer("GET /v1/acceptances/acc_1", acceptance("accepted"))
    service.answer("GET /v1/acceptances/acc_1/evidence", {"kind": "acceptance_evidence"})
    service.answer("PUT /v1/aliases/prod", {"alias": "prod"})

    def run(job: Any = None) -> Catalogued:
        with Client(service.url) as client:
            return catalog_winners(client, job or documents.job(), documents.device(), tmp_path, at_most=3, quiet=True)

    return run


def test_evidence_that_does_not_pass_the_audit_is_wrong(service: Any, catalogued: Any) -> None:
    done = catalogued()
    assert done.audited != "passed"
    assert any(wrong.startswith("audit: ") for wrong in done.wrong)
    (body,) = service.bodies("POST /v1/catalogs")
    assert [case["kernel"] for case in body["cases"]] == ["rms_norm"]


def test_what_is_never_accepted_is_not_promoted_and_it_is_said(
    service: Any, catalogued: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    """The verdict is the gate's answer, not a fault of the demo; the catalog itself is looked up by its digest."""
    service.answer("GET /v1/acceptances/acc_1", acceptance("rejected"))
    done = catalogued()
    assert len(done.acceptances) == 2
    assert done.promoted is None
    assert service.bodies("PUT /v1/aliases/prod") == []
    assert "NOT PROMOTED: 2 replays did not accept the catalog" in capsys.readouterr().err
    assert any(f"/v1/catalogs/{ONE} could not be opened" in wrong for wrong in done.wrong), "this service has none"


def test_with_an_incumbent_a_rejection_leaves_it_in_place(service: Any, catalogued: Any) -> None:
    service.answer("GET /v1/acceptances/acc_1", acceptance("rejected", incumbent=OTHER))
    done = catalogued()
    assert done.promoted is None
    assert any("/v1/aliases/prod could not be opened" in wrong for wrong in done.wrong), "this service has none"


@pytest.mark.parametrize("state", ["failed", "cancelled"])
def test_an_acceptance_without_a_verdict_is_wrong(service: Any, catalogued: Any, state: str) -> None:
    service.answer("GET /v1/acceptances/acc_1", acceptance(None, state=state, error="the device went"))
    assert catalogued().wrong == [f"the acceptance {state}: the device went"]


def test_a_refusal_to_freeze_is_wrong(service: Any, catalogued: Any) -> None:
    problem = {"title": "Conflict", "status": 409, "detail": "two winners", "errors": []}
    service.answer("POST /v1/catalogs", problem, status=409)
    done = catalogued()
    assert "two winners" in done.wrong[0]
    assert done.document()["candidate"] is None


def test_a_job_without_winners_has_nothing_to_freeze(documents: Any, catalogued: Any) -> None:
    job = documents.job()
    job["cases"][0].update(winner=None, reference=None)
    assert catalogued(job).wrong == ["there is no winner to freeze"]


def test_a_promotion_that_is_refused_is_wrong(service: Any, catalogued: Any) -> None:
    problem = {"title": "Conflict", "status": 409, "detail": "the alias moved", "errors": []}
    service.answer("PUT /v1/aliases/prod", problem, status=409)
    done = catalogued()
    assert done.promoted is None
    assert any("the alias moved" in wrong for wrong in done.wrong)
