"""Commands against a service that answers over HTTP: what they print, where, and the status they exit with."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tuner_service.cli.connect import await_ready
from tuner_service.cli.errors import CommandError, ExitStatus
from tuner_service.cli.main import run
from tuner_service.client import Client


@pytest.fixture(autouse=True)
def _own_data_dir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TUNER_DATA_DIR", str(tmp_path / "data"))
    monkeypatch.delenv("TUNER_URL", raising=False)


def page(*items: Any) -> dict[str, Any]:
    return {"items": list(items), "next": None, "total": len(items)}


def test_version_and_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["--version"]) == 0
    assert capsys.readouterr().out.startswith("tuner ")
    assert run(["--help"]) == 0
    out = capsys.readouterr().out
    names = [
        "serve",
        "worker",
        "tune",
        "plan",
        "jobs",
        "trials",
        "cancel",
        "devices",
        "kernels",
        "lookup",
        "reproduce",
        "settings",
        "demo",
    ]
    assert [name for name in names if f"  {name} " not in out] == []


@pytest.mark.parametrize(
    "arguments",
    [
        ["nonsense"],
        ["tune", "--wide"],
        ["jobs", "--limit", "0"],
        ["trials"],
        ["trials", "job_1", "--id", "trl_1"],
        ["trials", "job_1", "--export", "there"],
    ],
)
def test_wrong_usage_exits_2_with_a_message_and_no_traceback(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(arguments) == ExitStatus.BAD_INPUT
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.strip()
    assert "Traceback" not in captured.err


def test_nothing_listening_exits_3(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["devices", "--url", "http://127.0.0.1:9"]) == ExitStatus.UNREACHABLE
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "no service answers at http://127.0.0.1:9" in captured.err


@pytest.mark.parametrize("command", ["plan", "tune"])
@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--program", "/nonexistent.json", "--shape", "4"], ["--program", "/nonexistent.json", "No such file"]),
        (["--shape", "4x33"], ["name one kernel"]),
        (["softmax", "--program", "/nonexistent.json"], ["name one kernel"]),
        (["softmax", "--dims", "rows=many"], ["--dims", "'many' is not an integer"]),
        (["softmax", "--shape", "4x33", "--param", "eps"], ["--param", "NAME=VALUE"]),
        (["softmax", "--shape", "4x33", "--space", "width"], ["--space", "KNOB=VALUES"]),
        (["softmax", "--shape", "4x33", "--budget", "much"], ["--budget", "an integer"]),
    ],
)
def test_what_is_wrong_with_words_and_files_needs_no_service(
    command: str, arguments: list[str], words: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for where in (["--url", "http://127.0.0.1:9"], ["--data-dir", str(tmp_path / "data")]):
        assert run([command, *arguments, *where]) == ExitStatus.BAD_INPUT
        said = capsys.readouterr().err
        assert all(word in said for word in words), said
        assert not (tmp_path / "data").exists()


def test_a_program_with_a_shape_that_does_not_fit_needs_no_service(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    program = tmp_path / "program.json"
    program.write_text(json.dumps({"name": "mine", "dims": ["rows", "cols"]}))
    arguments = ["plan", "--program", str(program), "--shape", "4", "--url", "http://127.0.0.1:9"]
    assert run(arguments) == ExitStatus.BAD_INPUT
    assert "has 1 extents, the kernel has 2" in capsys.readouterr().err
    arguments = ["tune", "softmax", "--shape", "1x2", "--wall-seconds", "nan", "--url", "http://127.0.0.1:9"]
    assert run(arguments) == ExitStatus.BAD_INPUT
    assert "--wall-seconds" in capsys.readouterr().err
    assert run(["lookup", "softmax", "--dims", "rows=x", "--url", "http://127.0.0.1:9"]) == ExitStatus.BAD_INPUT
    assert run(["catalog", "freeze", "job_1", "--label", "x", "--url", "http://127.0.0.1:9"]) == ExitStatus.BAD_INPUT


def test_a_bad_setting_names_its_variable(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("TUNER_PORT", "many")
    assert run(["settings"]) == ExitStatus.BAD_INPUT
    assert 'TUNER_PORT = "many"' in capsys.readouterr().err


def test_settings_lists_every_variable_with_value_and_default(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TUNER_PORT", "8123")
    assert run(["settings", "--json"]) == 0
    items = {item["variable"]: item for item in json.loads(capsys.readouterr().out)["items"]}
    assert (items["TUNER_PORT"]["value"], items["TUNER_PORT"]["default"]) == (8123, 8000)
    assert all(item["description"] for item in items.values())
    assert run(["settings"]) == 0
    assert "TUNER_PORT" in capsys.readouterr().out


def test_tune_submits_follows_and_prints_the_table(
    service: Any, documents: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    service.answer("POST /v1/jobs", documents.job("queued"), status=202)
    service.answer("GET /v1/jobs/job_1", documents.job())
    trials = page(documents.trial(), documents.trial("trl_2"), documents.rejected("trl_3"))
    service.answer("GET /v1/jobs/job_1/trials", trials)
    arguments = ["tune", "rms_norm", "--shape", "4x33", "--space", "width=8,32", "--budget", "none", "--label", "a=b"]
    arguments += ["--priority", "-3", "--device-seconds", "1.5", "--wall-seconds", "60"]
    assert run([*arguments, "--url", service.url]) == 0
    assert service.bodies("POST /v1/jobs") == [
        {
            "cases": [{"kernel": "rms_norm", "dims": {"rows": 4, "cols": 33}}],
            "device": "cpu",
            "space": {"width": [8, 32]},
            "private_budget_scalars": None,
            "labels": {"a": "b"},
            "priority": -3,
            "limits": {"device_seconds": 1.5, "wall_seconds": 60},
        }
    ]
    captured = capsys.readouterr()
    for words in ("rms_norm 4×33", "0.30 [0.25, 0.35]", "private_budget", "not a confidence interval"):
        assert words in captured.out
    assert "job_1: 3 candidates" in captured.err


def test_tune_json_prints_the_job_and_nothing_else(
    service: Any, documents: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    service.answer("POST /v1/jobs", documents.job("queued"), status=202)
    service.answer("GET /v1/jobs/job_1", documents.job())
    assert run(["tune", "rms_norm", "--shape", "4x33", "--json", "--url", service.url]) == 0
    assert json.loads(capsys.readouterr().out) == documents.job()


@pytest.mark.parametrize("state", ["failed", "cancelled"])
def test_tune_exits_1_when_the_job_did_not_succeed(
    state: str, service: Any, documents: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    service.answer("POST /v1/jobs", documents.job("queued"), status=202)
    service.answer("GET /v1/jobs/job_1", documents.job(state, error="disk full"))
    assert run(["tune", "rms_norm", "--shape", "4x33", "--json", "--url", service.url]) == ExitStatus.NEGATIVE
    captured = capsys.readouterr()
    assert json.loads(captured.out)["state"] == state
    assert f"job job_1 {state}: disk full" in captured.err


def test_a_refused_request_exits_2_with_field_value_and_allowed(
    service: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    errors = [{"field": "/space/wide", "value": [8], "message": "unknown knob", "allowed": ["width", "input"]}]
    problem = {"title": "Invalid input", "status": 422, "detail": "nothing was created", "errors": errors}
    service.answer("POST /v1/jobs", problem, status=422)
    arguments = ["tune", "rms_norm", "--shape", "4x33", "--space", "wide=8", "--json", "--url", service.url]
    assert run(arguments) == ExitStatus.BAD_INPUT
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "/space/wide = [8]: unknown knob (allowed: width, input)" in captured.err


def test_a_fault_of_the_service_is_not_bad_input(service: Any, capsys: pytest.CaptureFixture[str]) -> None:
    service.answer("GET /v1/jobs", {"title": "Storage full", "status": 503, "detail": "no space left"}, status=503)
    assert run(["jobs", "--url", service.url]) == ExitStatus.UNREACHABLE
    assert "Storage full: no space left" in capsys.readouterr().err


def test_no_wait_needs_a_service_that_stays(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["tune", "rms_norm", "--shape", "4x33", "--no-wait"]) == ExitStatus.UNREACHABLE
    assert "tuner serve" in capsys.readouterr().err


def test_no_wait_prints_the_id_alone(service: Any, documents: Any, capsys: pytest.CaptureFixture[str]) -> None:
    service.answer("POST /v1/jobs", documents.job("queued"), status=202)
    assert run(["tune", "rms_norm", "--shape", "4x33", "--no-wait", "--url", service.url]) == 0
    assert capsys.readouterr().out == "job_1\n"


def test_what_a_job_waits_for_is_said_beside_its_id_and_in_the_list(
    service: Any, documents: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    job = documents.job("queued") | {"waiting": "device cpu:1 is unavailable: no worker offers it"}
    service.answer("POST /v1/jobs", job, status=202)
    assert run(["tune", "rms_norm", "--shape", "4x33", "--no-wait", "--url", service.url]) == 0
    said = capsys.readouterr()
    assert said.out == "job_1\n"
    assert "waiting: device cpu:1 is unavailable: no worker offers it" in said.err
    listed = documents.listed_job(state="queued", waiting=job["waiting"])
    service.answer("GET /v1/jobs", {"items": [listed], "next": None, "total": 1})
    assert run(["jobs", "--url", service.url]) == 0
    assert "queued, waits" in capsys.readouterr().out


def test_a_service_running_on_the_data_dir_is_found(
    service: Any, documents: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "service.json").write_text(json.dumps({"url": service.url, "pid": 1}))
    assert run(["devices"]) == 0
    assert "cpu:0123456789ab" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("theirs", "named", "status"),
    [
        ("postgresql://tuner:***@db.example/tuner", "postgresql://me:secret@db.example:5432/tuner", ExitStatus.OK),
        ("postgresql://127.0.0.1:5433/tuner", "postgresql+psycopg://me@localhost:5433/tuner", ExitStatus.OK),
        ("/data/tuner.sqlite3", "sqlite:////data/x/../tuner.sqlite3", ExitStatus.OK),
        ("postgresql://tuner:***@db.example/tuner", "postgresql://me:secret@db.example/other", ExitStatus.BAD_INPUT),
        ("postgresql://tuner:***@db.example/tuner", "postgresql://me:secret@other/tuner", ExitStatus.BAD_INPUT),
        ("/data/tuner.sqlite3", "postgresql://me:secret@db.example/tuner", ExitStatus.BAD_INPUT),
        (None, "postgresql://me:secret@db.example/tuner", ExitStatus.OK),
    ],
)
def test_a_service_on_another_database_than_the_environment_names_is_not_asked(
    service: Any,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    theirs: str | None,
    named: str,
    status: ExitStatus,
) -> None:
    (tmp_path / "data").mkdir()
    known = {"url": service.url, "pid": 1} | ({"database": theirs} if theirs else {})
    (tmp_path / "data" / "service.json").write_text(json.dumps(known))
    monkeypatch.setenv("TUNER_DATABASE_URL", named)
    assert run(["devices"]) == status
    said = capsys.readouterr()
    assert ("TUNER_DATABASE_URL" in said.err) == (status != ExitStatus.OK or theirs is None)
    assert "secret" not in said.err
    if status != ExitStatus.OK:
        assert said.out == ""
        assert str(theirs) in said.err
    assert run(["devices", "--url", service.url]) == ExitStatus.OK, "an address says which service is meant"


def test_a_device_is_put_into_quarantine_and_released(
    service: Any, documents: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    usable = documents.device() | {"quarantine": None, "changed": True}
    held = usable | {"available": False, "quarantine": {"reason": "it is loud", "since": "2026-01-01T00:00:00Z"}}
    away = usable | {"available": False, "reason": "no worker"}
    release, quarantine = ["release", usable["id"]], ["quarantine", usable["id"], "--reason", "it is loud"]
    for words, document, status, said in (
        (release, usable, ExitStatus.OK, "is released, and can be used"),
        (release, away, ExitStatus.OK, "is released, and cannot be used: no worker"),
        (release, usable | {"changed": False}, ExitStatus.NEGATIVE, "is in no quarantine; it can be used"),
        (quarantine, held, ExitStatus.OK, "is in quarantine: it is loud"),
        (
            quarantine,
            held | {"changed": False},
            ExitStatus.NEGATIVE,
            "is in quarantine already, since 2026-01-01T00:00:00Z: it is loud",
        ),
    ):
        service.answer(f"POST /v1/devices/cpu%3A0123456789ab/{words[0]}", document)
        assert run(["devices", *words, "--url", service.url]) == status
        assert capsys.readouterr().out == f"{usable['id']} {said}\n"
        assert run(["devices", *words, "--url", service.url, "--json"]) == status
        assert json.loads(capsys.readouterr().out) == document
    assert service.bodies("POST /v1/devices/cpu%3A0123456789ab/quarantine")[0] == {"reason": "it is loud"}
    assert run(["devices", "quarantine", usable["id"], "--url", service.url]) == ExitStatus.BAD_INPUT
    assert "--reason" in capsys.readouterr().err


def test_workers_are_listed_with_what_they_do_and_forgotten(service: Any, capsys: pytest.CaptureFixture[str]) -> None:
    task = {"job_id": "job_1", "queue": "device", "device_id": "cpu:1", "step": "finals", "begun": False}
    worker = {
        "id": "h:7:a",
        "host": "h",
        "pid": 7,
        "state": "lost",
        "version": "1.2",
        "devices": ["cpu:1"],
        "compile_keys": [],
        "compile_slots": 2,
        "tasks": [task, {**task, "step": "build", "begun": True}],
        "started_at": "2026-01-01T00:00:00Z",
        "heartbeat_at": "2026-01-01T00:00:00Z",
        "silent_seconds": 61.0,
    }
    service.answer("GET /v1/workers", page(worker))
    assert run(["workers", "--state", "lost", "--url", service.url]) == 0
    said = capsys.readouterr().out
    for words in ("h:7:a", "lost", "61 s ago", "cpu:1", "finals of job_1 (waits for quiet), build of job_1", "1.2"):
        assert words in said
    assert ("GET", "/v1/workers", {"state": "lost", "limit": "500"}, None) in service.asked
    assert run(["workers", "--url", service.url, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["items"] == [worker]
    service.answer("POST /v1/workers/h%3A7%3Aa/forget", worker)
    assert run(["workers", "forget", "h:7:a", "--url", service.url]) == 0
    assert capsys.readouterr().out == "worker h:7:a is forgotten; it was heard of 61 s ago\n"
    assert run(["workers", "forget", "h:8:b", "--url", service.url]) == ExitStatus.BAD_INPUT


def test_what_was_pruned_is_said_in_words(service: Any, capsys: pytest.CaptureFixture[str]) -> None:
    removed = {"jobs": 1, "cases": 1, "trials": 2, "events": 0, "idempotency_keys": 1, "queue_tasks": 1, "artifacts": 1}
    answer = {"removed": removed, "kept": [], "kept_total": 1, "complete": True, "finished_before": "2026"}
    service.answer("POST /v1/prune", answer)
    assert run(["prune", "--older-than", "30d", "--url", service.url]) == 0
    assert capsys.readouterr().out == (
        "removed 1 job, 1 case, 2 trials, 0 events, 1 idempotency key, 1 queue task, 1 artifact (ended before 2026)\n"
        "kept 1 job in all\n"
    )


def test_plan_counts_rejections_by_reason(service: Any, documents: Any, capsys: pytest.CaptureFixture[str]) -> None:
    planned = {**documents.trial(), "outcome": "planned"}
    default = {**planned, "in_space": False, "is_default": True}
    case = documents.trial()["case"]
    counts = {**case, "enumerated": 3, "planned": 1, "rejected": 2, "inert_knobs": ["materialize"]}
    items = [planned, documents.rejected("x"), documents.rejected("y"), default]
    service.answer("POST /v1/plans", {**page(*items), "cases": [counts]})
    assert run(["plan", "rms_norm", "--shape", "4x33", "--all", "--url", service.url]) == 0
    out = capsys.readouterr().out
    summary = next(line for line in out.splitlines() if line.endswith("materialize"))
    assert summary.split()[2:5] == ["3", "1", "2"]
    assert any(line.split() == ["constraints", "private_budget", "2"] for line in out.splitlines())
    assert "private_scalars=129, budget=64" in out
    assert "the default, not in the space" in out


def test_jobs_and_one_job(service: Any, documents: Any, capsys: pytest.CaptureFixture[str]) -> None:
    service.answer("GET /v1/jobs", page(documents.listed_job(), documents.listed_job(id="job_2", case_count=1)))
    service.answer("GET /v1/jobs/job_1", documents.job())
    service.answer("GET /v1/jobs/job_1/trials", page(documents.trial()))
    assert run(["jobs", "--state", "running", "--label", "team=kernels", "--url", service.url]) == 0
    out = capsys.readouterr().out
    case = "rms_norm 4×33"
    assert [line.split("  ")[2].strip() for line in out.splitlines()[1:]] == [f"{case} and 2 more", case]
    assert service.asked[-1][2] == {"state": "running", "label": "team=kernels", "limit": "500"}
    assert run(["jobs", "job_1", "--url", service.url]) == 0
    assert "0.30 [0.25, 0.35]" in capsys.readouterr().out


def test_an_unknown_job_exits_2(service: Any, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["jobs", "job_9", "--url", service.url]) == ExitStatus.BAD_INPUT
    assert "no /v1/jobs/job_9" in capsys.readouterr().err


def test_trials_are_listed_with_outcome_and_reason(
    service: Any, documents: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    twin = documents.trial("trl_5", same_code_as="trl_1")
    found = {**page(documents.trial(), documents.rejected("trl_4"), twin), "total": 7}
    service.answer("GET /v1/jobs/job_1/trials", found)
    arguments = ["trials", "job_1", "--outcome", "rejected", "--sort=-width", "--limit", "3", "--url", service.url]
    assert run(arguments) == 0
    assert service.asked[-1][2] == {"outcome": "rejected", "sort": "-width", "limit": "3"}
    out, err = capsys.readouterr()
    assert "3 of 7: --limit cut the list" in err
    assert "rejected: constraints/private_budget" in out
    assert "same code as trl_1" in out


def test_one_trial_is_shown_and_exported(
    service: Any, documents: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = {
        "source_sha256": "a" * 64,
        "tilelang_text": "import tilelang\n",
        "c_text": "int main;\n",
        "header_name": "tuner.h",
        "header_text": "#pragma once\n",
        "build_command": ["gcc", "-O3", "kernel.c", "-o", "kernel.so"],
        "files": {},
    }
    service.answer("GET /v1/trials/trl_1", documents.trial())
    service.answer("GET /v1/trials/trl_1/source", source)
    folder = tmp_path / "out" / "trial"
    assert run(["trials", "--id", "trl_1", "--export", str(folder), "--url", service.url]) == 0
    assert {path.name: path.read_text() for path in folder.iterdir() if path.name != "trial.json"} == {
        "kernel.py": "import tilelang\n",
        "kernel.c": "int main;\n",
        "tuner.h": "#pragma once\n",
        "build.sh": "#!/bin/sh\nset -eu\ngcc -O3 kernel.c -o kernel.so\n",
    }
    assert json.loads((folder / "trial.json").read_text()) == documents.trial()
    captured = capsys.readouterr()
    assert "a" * 64 in captured.out
    assert f"wrote {folder / 'build.sh'}" in captured.err


def test_an_export_never_leaves_its_folder(service: Any, documents: Any, tmp_path: Path) -> None:
    source = {
        "source_sha256": "a" * 64,
        "tilelang_text": "",
        "c_text": "",
        "header_name": "../tuner.h",
        "header_text": "",
        "build_command": ["gcc", "kernel.c"],
    }
    service.answer("GET /v1/trials/trl_1", documents.trial())
    service.answer("GET /v1/trials/trl_1/source", source)
    arguments = ["trials", "--id", "trl_1", "--export", str(tmp_path / "out"), "--url", service.url]
    assert run(arguments) == 0
    assert not (tmp_path / "tuner.h").exists()


def test_cancel(service: Any, documents: Any, capsys: pytest.CaptureFixture[str]) -> None:
    service.answer("POST /v1/jobs/job_1/cancel", documents.job("cancelled"))
    assert run(["cancel", "job_1", "--url", service.url]) == 0
    assert capsys.readouterr().out == "job_1 cancelled: 2 measured, 1 rejected\n"


def test_a_hit_is_asked_with_the_whole_key(service: Any, documents: Any, capsys: pytest.CaptureFixture[str]) -> None:
    entry = {
        "candidate": documents.candidate(),
        "median_seconds": 3e-6,
        "trial_id": "trl_1",
        "job_id": "job_1",
        "code": {"source_sha256": "a" * 64, "artifact_sha256": "b" * 64},
    }
    service.answer("GET /v1/winners", entry)
    assert run(["lookup", "rms_norm", "--shape", "4x33", "--param", "eps=1e-6", "--url", service.url]) == 0
    assert "W32 reload private simd:all  median 3 µs" in capsys.readouterr().out
    asked = {"kernel": "rms_norm", "dims": "rows:4,cols:33", "params": "eps:1e-06", "device": "cpu"}
    assert service.asked[-1][2] == asked
    assert run(["lookup", "rms_norm", "--shape", "4x33", "--toolchain", "any", "--url", service.url]) == 0
    assert service.asked[-1][2]["toolchain"] == "any"


@pytest.mark.parametrize("as_json", [False, True])
def test_a_miss_is_explained_and_exits_1(as_json: bool, service: Any, capsys: pytest.CaptureFixture[str]) -> None:
    misses = [{"entry": "e" * 64, "differs": {"dims.rows": [4, 512]}}]
    problem = {"title": "No winner", "status": 404, "reason": "differs in dims.rows", "misses": misses}
    service.answer("GET /v1/winners", problem, status=404)
    arguments = ["lookup", "rms_norm", "--shape", "4x33", "--url", service.url]
    assert run([*arguments, "--json"] if as_json else arguments) == ExitStatus.NEGATIVE
    captured = capsys.readouterr()
    assert "dims.rows asked 4, there 512" in captured.err
    assert (json.loads(captured.out) == problem) if as_json else (captured.out == "")


def test_an_unknown_kernel_is_not_a_miss(service: Any, capsys: pytest.CaptureFixture[str]) -> None:
    service.answer("GET /v1/jobs", {"items": [], "next": None, "total": 0})
    assert run(["lookup", "nonsense", "--shape", "4x33", "--url", service.url]) == ExitStatus.BAD_INPUT
    assert "'nonsense' is no built-in kernel, and no job has tuned" in capsys.readouterr().err


def test_a_program_is_looked_up_by_its_name_or_its_file(service: Any, documents: Any, tmp_path: Path) -> None:
    program = {"name": "mine", "dims": ["cols", "rows"]}
    entry = {
        "candidate": documents.candidate(),
        "median_seconds": 3e-6,
        "trial_id": "trl_1",
        "job_id": "job_1",
        "code": {"source_sha256": "a" * 64, "artifact_sha256": "b" * 64},
    }
    service.answer("GET /v1/jobs", page(documents.listed_job()))
    cases = [{"kernel": "other"}, {"kernel": "mine", "program": program}]
    service.answer("GET /v1/jobs/job_1", documents.job(request={"cases": cases}))
    service.answer("GET /v1/winners", entry)
    assert run(["lookup", "mine", "--shape", "33x4", "--url", service.url]) == 0
    assert service.asked[-1][2] == {"kernel": "mine", "dims": "cols:33,rows:4", "device": "cpu"}
    service.answer("POST /v1/winners", entry)
    (tmp_path / "mine.json").write_text(json.dumps(program))
    arguments = ["--program", str(tmp_path / "mine.json"), "--shape", "33x4", "--param", "eps=1e-3"]
    assert run(["lookup", *arguments, "--url", service.url]) == 0
    asked = {"program": program, "dims": {"cols": 33, "rows": 4}, "params": {"eps": 1e-3}, "device": "cpu"}
    assert service.bodies("POST /v1/winners") == [asked]
    assert run(["lookup", "mine", *arguments, "--url", service.url]) == ExitStatus.BAD_INPUT


def test_a_service_that_does_not_get_ready_says_what_it_waits_for(service: Any) -> None:
    service.answer("GET /readyz", {"ready": True, "database": "ok", "devices": "probing"})
    with Client(service.url) as client, pytest.raises(CommandError, match="devices: probing") as raised:
        await_ready(client, timeout_seconds=0.2)
    assert raised.value.status == ExitStatus.UNREACHABLE


def test_a_private_service_that_cannot_start_says_why(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").write_text("")
    assert run(["devices", "--data-dir", str(tmp_path / "file")]) == ExitStatus.BAD_INPUT
    assert "cannot use data directory" in capsys.readouterr().err
    (tmp_path / "taken").mkdir()
    (tmp_path / "taken" / "tuner.sqlite3").mkdir()
    assert run(["devices", "--data-dir", str(tmp_path / "taken")]) == ExitStatus.UNREACHABLE
    said = capsys.readouterr().err
    assert "the service did not start" in said
    assert "Traceback" not in said
