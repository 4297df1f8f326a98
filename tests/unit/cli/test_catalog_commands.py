"""``tuner catalog`` and ``tuner fingerprint`` against a service that answers with given documents."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tuner_service.cli.commands.catalog_accept import ratio_words, verdict_words
from tuner_service.cli.commands.catalog_frozen import differences
from tuner_service.cli.errors import ExitStatus
from tuner_service.cli.main import run

ONE, OTHER = "a" * 64, "b" * 64
LEFT = {"job_id": "job_1", "case_index": 1, "kernel": "softmax", "dims": {"rows": 4}, "reason": "it has no winner"}


def summary(digest: str, role: str = "candidate") -> dict[str, Any]:
    return {
        "digest": digest,
        "role": role,
        "kernels": ["rms_norm"],
        "entries": 1,
        "created_at": "2026-01-01T00:00:00Z",
    }


def entry(documents: Any, *, rows: int = 4, source: str = "1" * 64, seconds: float = 3e-6, **candidate: Any) -> Any:
    return {
        "kernel": "rms_norm",
        "key": {"dims": {"rows": rows, "cols": 33}, "device": "d", "toolchain": "t"},
        "candidate": documents.candidate(**candidate),
        "code": {"source_sha256": source, "artifact_sha256": "2" * 64},
        "median_seconds": seconds,
    }


def catalog(digest: str, *entries: Any, **changes: Any) -> dict[str, Any]:
    header = {"digest": digest, "role": "candidate", "device": "d", "toolchain": "t", "kernels": []}
    return {**header, "entries": list(entries), **changes}


def comparison(ratio_class: str = "positive") -> dict[str, Any]:
    return {"class": ratio_class, "ratio_median": 1.25, "ratio_min": 1.2, "ratio_max": 1.3}


def acceptance(verdict: str | None, **changes: Any) -> dict[str, Any]:
    against = {"reference": comparison("control"), "default": comparison(), "incumbent": None, "torch": comparison()}
    case = {
        "kernel": "rms_norm",
        "dims": {"rows": 4, "cols": 33},
        "metrics": {"device_batch": against},
        "margin": 0.02,
        "state": "ok",
    }
    return {
        "id": "acc_1",
        "state": "succeeded",
        "rounds": 4,
        "progress": {"records": 20, "expected": 20},
        "cases": [case],
        "verdict": verdict,
        "reasons": [] if verdict == "accepted" else ["rms_norm rows=4: worse"],
        "statements": ["Scope: this CPU."],
        "evidence_sha256": "e" * 64,
        "error": None,
        **changes,
    }


def manifest(digest: str) -> dict[str, Any]:
    entries = [{"device": "d" * 64, "toolchain": "t" * 64, "digest": digest, "reference": OTHER}]
    return {"alias": "prod", "schema_version": 1, "entries": entries, "history": []}


def test_freeze_sends_jobs_cases_and_labels_and_says_what_was_left_out(
    service: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    frozen = {"candidate": summary(ONE), "reference": summary(OTHER, "reference"), "left_out": [LEFT]}
    service.answer("POST /v1/catalogs", frozen, status=201)
    words = ["catalog", "freeze", "job_1", "job_2", "--case", "softmax:rows=4", "--case", "rms_norm", "--label", "a=b"]
    assert run([*words, "--url", service.url]) == 0
    captured = capsys.readouterr()
    assert f"candidate {ONE}" in captured.out
    assert f"reference {OTHER}" in captured.out
    assert "left out: softmax 4 of job_1: it has no winner" in captured.err
    cases = [{"kernel": "softmax", "dims": {"rows": 4}}, {"kernel": "rms_norm", "dims": {}}]
    assert service.bodies("POST /v1/catalogs") == [{"jobs": ["job_1", "job_2"], "cases": cases, "labels": {"a": "b"}}]
    assert run(["catalog", "freeze", "job_1", "--json", "--url", service.url]) == 0
    assert json.loads(capsys.readouterr().out) == frozen


def test_a_conflict_is_said_and_is_bad_input(service: Any, capsys: pytest.CaptureFixture[str]) -> None:
    problem = {"title": "Conflict", "status": 409, "detail": "two winners for one key: job_1 and job_2", "errors": []}
    service.answer("POST /v1/catalogs", problem, status=409)
    assert run(["catalog", "freeze", "job_1", "job_2", "--url", service.url]) == ExitStatus.BAD_INPUT
    assert "job_1 and job_2" in capsys.readouterr().err
    assert run(["catalog", "freeze", "job_1", "--case", "softmax:rows", "--url", service.url]) == ExitStatus.BAD_INPUT
    assert "--case" in capsys.readouterr().err


@pytest.mark.parametrize(("verdict", "status"), [("accepted", 0), ("rejected", ExitStatus.NEGATIVE)])
def test_accept_follows_the_replay_and_its_exit_status_is_the_verdict(
    verdict: str, status: int, service: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    running = acceptance(None, state="running", cases=[], progress={"records": 6, "expected": 20})
    answers = [running, acceptance(verdict)]
    service.answer(f"POST /v1/catalogs/{ONE}/acceptances", running, status=202)
    service.routes["GET /v1/acceptances/acc_1"] = lambda query, body: (200, answers.pop(0))
    service.answer("GET /v1/acceptances/acc_1/evidence", {"b": 1, "a": 2})
    path = tmp_path / "evidence.json"
    words = ["catalog", "accept", ONE, "--rounds", "8", "--alias", "canary", "--evidence", str(path)]
    assert run([*words, "--url", service.url]) == status
    captured = capsys.readouterr()
    assert service.bodies(f"POST /v1/catalogs/{ONE}/acceptances") == [{"rounds": 8, "alias": "canary"}]
    assert path.read_bytes() == b'{"a":2,"b":1}'
    assert "round 2 of 4" in captured.err
    for words_there in (verdict, "same code", "1.25 [1.20, 1.30] positive", "Scope: this CPU."):
        assert words_there in captured.out
    assert ("because rms_norm" in captured.out) == (verdict == "rejected")


def test_accept_without_waiting_prints_the_id(service: Any, capsys: pytest.CaptureFixture[str]) -> None:
    service.answer(f"POST /v1/catalogs/{ONE}/acceptances", acceptance(None, state="queued"), status=202)
    assert run(["catalog", "accept", ONE, "--no-wait", "--url", service.url]) == 0
    assert capsys.readouterr().out == "acc_1\n"


def test_an_acceptance_that_failed_has_no_verdict(service: Any, capsys: pytest.CaptureFixture[str]) -> None:
    failed = acceptance(None, state="failed", error="the device went", cases=[], evidence_sha256=None, reasons=[])
    service.answer(f"POST /v1/catalogs/{ONE}/acceptances", failed, status=202)
    service.answer("GET /v1/acceptances/acc_1", failed)
    assert run(["catalog", "accept", ONE, "--url", service.url]) == ExitStatus.NEGATIVE
    assert "the device went" in capsys.readouterr().err


def test_audit_refuses_what_is_no_bundle(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "bundle.json"
    path.write_text("{}")
    assert run(["catalog", "audit", str(path)]) == ExitStatus.NEGATIVE
    assert run(["catalog", "audit", str(path), "--json"]) == ExitStatus.NEGATIVE
    assert run(["catalog", "audit", str(tmp_path / "nothing")]) == ExitStatus.BAD_INPUT
    capsys.readouterr()


def test_promote_and_roll_back(service: Any, capsys: pytest.CaptureFixture[str]) -> None:
    service.answer("PUT /v1/aliases/prod", manifest(ONE))
    service.answer("POST /v1/aliases/canary/rollback", manifest(OTHER))
    assert run(["catalog", "promote", ONE, "--url", service.url]) == 0
    assert f"prod → {ONE}" in capsys.readouterr().out
    assert service.bodies("PUT /v1/aliases/prod") == [{"digest": ONE}]
    assert run(["catalog", "rollback", "canary", "--json", "--url", service.url]) == 0
    assert json.loads(capsys.readouterr().out) == manifest(OTHER)


def test_list_shows_what_aliases_name(service: Any, capsys: pytest.CaptureFixture[str]) -> None:
    page = {"items": [summary(ONE), summary(OTHER, "reference")], "next": None, "total": 2}
    service.answer("GET /v1/catalogs", page)
    service.answer("GET /v1/aliases", {"items": [manifest(ONE)], "next": None, "total": 1})
    assert run(["catalog", "list", "--url", service.url]) == 0
    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith(("a", "b"))]
    assert "prod" in lines[0]
    assert "prod" not in lines[1]


def test_get_writes_the_canonical_bytes(
    service: Any, documents: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    service.answer(f"GET /v1/catalogs/{ONE}", catalog(ONE, entry(documents)))
    path = tmp_path / "catalog.json"
    assert run(["catalog", "get", ONE, "--output", str(path), "--url", service.url]) == 0
    assert json.loads(path.read_bytes())["digest"] == ONE
    assert run(["catalog", "get", ONE, "--url", service.url]) == 0
    assert "rms_norm 4×33" in capsys.readouterr().out
    assert run(["catalog", "get", ONE, "-o", str(tmp_path), "--url", service.url]) == ExitStatus.BAD_INPUT


def test_diff_names_case_and_field(service: Any, documents: Any, capsys: pytest.CaptureFixture[str]) -> None:
    one = catalog(ONE, entry(documents), entry(documents, rows=5))
    other = catalog(OTHER, entry(documents, width=8, source="3" * 64), entry(documents, rows=6), toolchain="u")
    rows = [(row["case"], row["field"]) for row in differences(one, other)]
    assert rows == [
        ("", "toolchain"),
        ("rms_norm 4×33", "candidate"),
        ("rms_norm 4×33", "source"),
        ("rms_norm 5×33", "entry"),
        ("rms_norm 6×33", "entry"),
    ]
    service.answer(f"GET /v1/catalogs/{ONE}", one)
    service.answer(f"GET /v1/catalogs/{OTHER}", other)
    assert run(["catalog", "diff", ONE, OTHER, "--url", service.url]) == ExitStatus.NEGATIVE
    assert run(["catalog", "diff", ONE, ONE, "--url", service.url]) == 0
    assert "same winners" in capsys.readouterr().out


def test_pull_says_why_there_is_nothing_to_pull(
    service: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    service.answer("GET /v1/aliases/prod", manifest(ONE))  # digests that are none: not a manifest
    assert run(["catalog", "pull", str(tmp_path / "s"), "--url", service.url]) == ExitStatus.NEGATIVE
    assert "entries[0]" in capsys.readouterr().err
    words = ["catalog", "pull", str(tmp_path / "s"), "--source", "http://127.0.0.1:9/v1/aliases/prod"]
    assert run(words) == ExitStatus.NEGATIVE


def test_fingerprint(service: Any, documents: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["fingerprint", "--url", service.url]) == 0
    assert capsys.readouterr().out == "2" * 64 + "\n"
    path = tmp_path / "fingerprint"
    assert run(["fingerprint", "-o", str(path), "--json", "--url", service.url]) == 0
    assert json.loads(capsys.readouterr().out)["toolchain_fingerprint"] == path.read_text().strip() == "2" * 64
    assert run(["fingerprint", "--device", "cuda:0", "--url", service.url]) == ExitStatus.BAD_INPUT
    service.answer("GET /v1/devices", {"items": [documents.device(available=False, reason="no gcc")], "next": None})
    assert run(["fingerprint", "--url", service.url]) == ExitStatus.NEGATIVE
    service.answer("GET /v1/devices", {"items": [], "next": None})
    assert run(["fingerprint", "--url", service.url]) == ExitStatus.BAD_INPUT
    assert "(allowed: none: no device was ever attached)" in capsys.readouterr().err


def test_words() -> None:
    compared = {"ratio_median": 0.00034, "ratio_min": 0.25, "ratio_max": 1.5, "class": "mixed"}
    assert ratio_words(compared) == "0.00034 [0.25, 1.50] mixed"
    assert ratio_words(None) == "–"
    assert verdict_words(acceptance("accepted")).startswith("accepted: in 4 rounds")
    assert verdict_words(acceptance("rejected")) == "rejected, for 1 reason(s)"
    assert verdict_words(acceptance(None, state="cancelled")) == "cancelled, no verdict"
