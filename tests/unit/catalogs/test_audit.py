"""Valid bundles pass whatever they look like; the report and the command say what was checked."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

sys.path.append(str(Path(__file__).parent))

import bundle_factory as make

from catalogs import audit as package_audit
from catalogs.audit import CHECKS_RECORDED_CORRECTNESS, audit, audit_search, main

ROOT = Path(__file__).parents[3]
VALID = {
    "plain": {},
    "one case": {"cases": 1},
    "seven cases, eight rounds": {"cases": 7, "rounds": 8},
    "no incumbent": {"incumbent": False},
    "no torch": {"torch": False},
    "neither": {"incumbent": False, "torch": False},
    "the reference is the candidate": {"same": {"R": "C"}},
    "the candidate is the reference": {"same": {"C": "R"}},
    "one machine code for all": {"same": {"R": "C", "D": "C", "I": "C"}},
    "two pairs": {"same": {"I": "C", "D": "R"}},
    "worse than the reference": {"times": {"R": 0.9}},
    "worse than the incumbent": {"times": {"I": 0.9}},
    "slower than torch": {"times": {"T": 0.5}},
    "inconclusive": {"times": {"A": 1.2}},
    "mixed": {"times": {"R": 1.0}, "noise": 0.05},
}


@pytest.mark.parametrize("how", VALID.values(), ids=VALID.keys())
def test_a_valid_bundle_passes(how: dict[str, Any]) -> None:
    bundle = make.bundle(**how)
    report = audit(bundle)
    assert report.findings == ()
    assert report.ok
    assert audit(make.canonical(bundle)).document() == report.document()


@pytest.mark.parametrize(
    ("how", "verdict", "states"),
    [
        ({}, "accepted", ["ok", "ok"]),
        ({"times": {"R": 0.9}}, "rejected", ["worse", "worse"]),
        ({"times": {"T": 0.5}}, "accepted", ["ok", "ok"]),  # torch is reported and never decides
        ({"times": {"A": 1.2}}, "rejected", ["inconclusive", "inconclusive"]),
        ({"times": {"R": 0.5}, "same": {"R": "C"}}, "rejected", ["ok", "worse"]),  # a control cannot lose
    ],
)
def test_the_factory_makes_the_verdicts_that_the_auditor_works_out(
    how: dict[str, Any], verdict: str, states: list[str]
) -> None:
    bundle = make.bundle(**how)
    assert bundle["results"]["verdict"] == verdict
    assert [case["state"] for case in bundle["results"]["cases"]] == states
    other = "rejected" if verdict == "accepted" else "accepted"
    forged = make.sealed({**bundle, "results": {**bundle["results"], "verdict": other}})
    assert any(f.field == "verdict" and verdict in f.message for f in audit(forged).findings)


def test_a_margin_grows_with_the_spread() -> None:
    """5 % slower than the reference is worse, unless the candidate's own code strays by more."""
    assert make.bundle(times={"R": 0.95})["results"]["cases"][0]["state"] == "worse"
    strays = make.bundle(times={"R": 0.95, "A": 1.08})
    assert strays["results"]["cases"][0]["state"] == "ok"
    assert audit(strays).ok


def test_the_report_counts_what_it_checked() -> None:
    checked = audit(make.bundle(cases=3, rounds=4)).checked
    assert checked["cases"] == 3
    assert checked["records"] == checked["correctness records"] == 3 * 4 * 6
    assert checked["samples"] == 3 * 4 * 6 * 2 * 9
    assert checked["medians recomputed"] == 3 * 4 * 6 * 2
    assert checked["ratios recomputed"] == 3 * 4 * 2 * 4
    assert checked["classes recomputed"] == 3 * 2 * 4
    assert checked["search rejections"] == 3 * 2
    assert checked["verdicts recomputed"] == 1


def test_a_bundle_may_be_spelled_in_any_json() -> None:
    assert audit(json.dumps(make.bundle(), indent=2).encode()).ok


def test_the_callers_document_is_left_alone() -> None:
    bundle = make.bundle()
    before = make.canonical(bundle)
    audit(bundle)
    assert make.canonical(bundle) == before


def test_a_search_bundle_alone() -> None:
    search = make.bundle()["search"][0]
    report = audit_search(search)
    assert report.ok
    assert report.checked["search trials"] == 12
    assert "job_1" in report.subject
    del search["cases"][0]["trials"][3]
    assert any("removed" in finding.message for finding in audit_search(search).findings)


def test_an_incumbent_of_another_toolchain_stands_in_with_its_own_code() -> None:
    bundle = make.bundle()
    other = make.sha({"compiler": "an older one"})
    catalog = bundle["catalogs"]["incumbent"]
    del catalog["toolchain_description"], catalog["digest"]
    catalog["toolchain"] = other
    for entry in catalog["entries"]:
        entry["key"]["toolchain"] = other
        digests = {name: entry["code"][name] for name in ("source_sha256", "artifact_sha256")}
        entry["code"] |= {name: make.sha(f"old {digest}") for name, digest in digests.items()}
    catalog["digest"] = make.sha(catalog)
    assert audit(make.sealed(bundle)).findings == ()
    bundle["cases"][0]["arms"]["I"]["plan"] = {"private_scalars": 7}
    findings = audit(make.sealed(bundle)).findings
    assert any(finding.field == "arms.I.plan" for finding in findings)


def test_the_command_accepts(tmp_path: Path) -> None:
    path = tmp_path / "evidence.json"
    path.write_bytes(make.canonical(make.bundle()))
    run = subprocess.run(
        [sys.executable, "-W", "error", "-m", "catalogs.audit", str(path)],
        cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert (run.returncode, run.stderr) == (0, "")
    assert "acc_test" in run.stdout
    assert "accepted" in run.stdout
    assert "records 48" in run.stdout
    assert CHECKS_RECORDED_CORRECTNESS in run.stdout


def test_the_command_refuses_and_names_the_record(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    bundle = make.bundle()
    bundle["records"][17]["timing"]["device_batch"]["samples_seconds"][3] *= 2
    path = tmp_path / "evidence.json"
    path.write_bytes(make.canonical(make.sealed(bundle)))
    assert main([str(path)]) == 1
    out = capsys.readouterr().out
    assert "REFUSED" in out
    assert "records[17] (round " in out
    assert CHECKS_RECORDED_CORRECTNESS in out
    assert main([str(path), "--json"]) == 1
    told = json.loads(capsys.readouterr().out)
    assert told["ok"] is False
    assert told["findings_total"] == len(told["findings"]) >= 1
    assert told["findings"][0].keys() == {"where", "field", "message"}


def test_the_command_audits_a_search_bundle_too(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "search.json"
    path.write_bytes(make.canonical(make.bundle()["search"][0]))
    assert main(["--json", str(path)]) == 0
    assert json.loads(capsys.readouterr().out)["checked"]["search trials"] == 12


@pytest.mark.parametrize("words", [[], ["a", "b"], ["--what"], ["/no/such/file"], ["/"]])
def test_the_command_says_how_it_is_used(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(words) == 2
    assert capsys.readouterr().err


def test_a_terminal_without_the_bundles_letters(tmp_path: Path) -> None:
    bundle = make.bundle()
    bundle["id"] = "akzeptiert für 東京"
    path = tmp_path / "evidence.json"
    path.write_bytes(make.canonical(make.sealed(bundle)))
    run = subprocess.run(
        [sys.executable, "-m", "catalogs.audit", str(path)],
        cwd=ROOT, capture_output=True, check=False, env={"PYTHONIOENCODING": "ascii"},
    )  # fmt: skip
    assert run.returncode == 0
    assert b"akzeptiert f\\xfcr" in run.stdout


def test_the_auditor_needs_the_standard_library_alone() -> None:
    """-S: no site-packages; and of our own it brings what defines the documents, nothing that measures or selects."""
    code = (
        "import sys; sys.path.insert(0, sys.argv[1]); import catalogs.audit; "
        "print([m for m in sys.modules if m.split('.')[0] in ('search', 'tuner_service', 'numpy', 'torch')])"
    )
    run = subprocess.run(
        [sys.executable, "-I", "-S", "-c", code, str(ROOT)], capture_output=True, text=True, check=False
    )
    assert (run.stdout.strip(), run.stderr) == ("[]", "")


def test_the_auditor_shares_no_arithmetic() -> None:
    allowed = {"catalogs.canonical", "catalogs.errors", "catalogs.format", "catalogs.key"}
    folder = Path(package_audit.__file__).parent
    for path in [folder / "audit.py", *(folder / "auditing").glob("*.py")]:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and node.module and not node.module.startswith("catalogs.auditing"):
                top = node.module.split(".")[0]
                assert node.module in allowed or top in sys.stdlib_module_names, (path.name, node.module)
                assert top != "statistics", path.name
            if isinstance(node, ast.Import):
                assert {alias.name for alias in node.names} <= sys.stdlib_module_names - {"statistics"}, path.name
