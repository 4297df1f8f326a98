"""The demo's verdict: 0 only when every case has a winner, every lookup answers it, and the miss is explained."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tuner_service.cli.commands import demo as demo_command
from tuner_service.cli.connect import running_url
from tuner_service.cli.demo_catalog import Catalogued
from tuner_service.cli.errors import ExitStatus
from tuner_service.cli.main import run

MISS = {
    "title": "No winner",
    "status": 404,
    "reason": "the nearest one differs in dims.rows",
    "misses": [{"entry": "e" * 64, "differs": {"dims.rows": [7, 4]}}],
}


@pytest.fixture
def demo(service: Any, documents: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A running service on the demo's data directory in which all is well, and the demo's arguments.

    What the demo does with catalogs has tests of its own (``test_demo_catalog``).
    """
    catalogued = Catalogued()
    monkeypatch.setattr(demo_command, "catalog_winners", lambda *_, **__: catalogued)
    entry = {
        "kernel": "rms_norm",
        "key": {"dims": {"rows": 4, "cols": 33}},
        "candidate": documents.candidate(),
        "median_seconds": 3e-6,
        "trial_id": "trl_1",
        "job_id": "job_1",
    }
    service.answer("GET /v1/jobs", {"items": [], "next": None, "total": 0})
    service.answer("POST /v1/jobs", documents.job("queued"), status=202)
    service.answer("GET /v1/jobs/job_1", documents.job())
    trials = [documents.trial(), documents.trial("trl_2"), documents.rejected("trl_3")]
    service.answer("GET /v1/jobs/job_1/trials", {"items": trials, "next": None, "total": 3})
    service.routes["GET /v1/winners"] = lambda query, _: (
        (200, entry) if query["dims"] == "rows:4,cols:33" else (404, MISS)
    )
    service.entry = entry
    (tmp_path / "service.json").write_text(json.dumps({"url": service.url, "pid": 1}))
    service.catalogued = catalogued
    service.arguments = ["demo", "--data-dir", str(tmp_path)]
    return service


def test_all_is_well(demo: Any, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(demo.arguments) == 0
    captured = capsys.readouterr()
    for words in (
        "0.30 [0.25, 0.35]",
        "private_budget",
        "GET /v1/winners",
        "miss: the nearest one differs in dims.rows",
    ):
        assert words in captured.out
    assert "already runs" in captured.err
    assert "Some CPU" in captured.err
    (body,) = demo.bodies("POST /v1/jobs")
    assert len(body["cases"]) == 12


def test_json_is_the_only_thing_on_stdout(demo: Any, capsys: pytest.CaptureFixture[str]) -> None:
    assert run([*demo.arguments, "--json", "--small"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["cases"][0]["enumerated"] == 3
    assert found["rejections"] == [{"stage": "constraints", "reason": "private_budget", "candidates": 1}]
    assert found["lookups"] == [{"kernel": "rms_norm", "dims": {"rows": 4, "cols": 33}, "trial_id": "trl_1"}]


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ("device", "cannot be used: no gcc"),
        ("no device", "no cpu device"),
        ("job", "job job_1 failed: disk full"),
        ("winner", "rms_norm 4×33 has no winner: the fresh build differs"),
        ("lookup misses", "does not answer"),
        ("lookup of another trial", "answers trl_2, not trl_1"),
        ("everything hits", "which were never tuned, answered"),
        ("catalog", "3 findings of the audit"),
    ],
)
def test_whatever_is_wrong_exits_non_zero_and_is_said(
    wrong: str, words: str, demo: Any, documents: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    job = documents.job()
    if wrong == "device":
        device = documents.device(available=False, reason="no gcc")
        demo.answer("GET /v1/devices", {"items": [device], "next": None, "total": 1})
    elif wrong == "no device":
        demo.answer("GET /v1/devices", {"items": [], "next": None, "total": 0})
    elif wrong == "job":
        demo.answer("GET /v1/jobs/job_1", documents.job("failed", error="disk full"))
    elif wrong == "winner":
        job["cases"][0].update(winner=None, error="the fresh build differs")
        demo.answer("GET /v1/jobs/job_1", job)
    elif wrong == "lookup misses":
        demo.answer("GET /v1/winners", MISS, status=404)
    elif wrong == "lookup of another trial":
        demo.routes["GET /v1/winners"] = lambda query, _: (
            (200, {**demo.entry, "trial_id": "trl_2"}) if query["dims"] == "rows:4,cols:33" else (404, MISS)
        )
    elif wrong == "catalog":
        demo.catalogued.wrong.append("3 findings of the audit")
    elif wrong == "everything hits":
        demo.answer("GET /v1/winners", demo.entry)
    assert run(demo.arguments) == ExitStatus.NEGATIVE
    captured = capsys.readouterr()
    assert words in captured.err
    assert "Traceback" not in captured.err


@pytest.mark.parametrize("text", [None, "", "{", "[]", '{"url": 7}', '{"url": "http://127.0.0.1:9"}', '{"url": "x"}'])
def test_a_service_file_that_leads_nowhere_is_no_service(text: str | None, tmp_path: Path) -> None:
    if text is not None:
        (tmp_path / "service.json").write_text(text)
    assert running_url(tmp_path) is None
