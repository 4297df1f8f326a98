"""Whatever is no bundle is refused in one finding, and nothing is raised."""

from __future__ import annotations

import copy
import sys
from pathlib import Path
from typing import Any

import pytest

sys.path.append(str(Path(__file__).parent))

import bundle_factory as make
from bundle_damage import PLAIN, named

from catalogs.audit import audit, audit_search
from catalogs.auditing import reading


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"null",
        b"[]",
        b"{",
        b'"text"',
        b"\xff\xfe",
        b"[" * 100_000,
        b'{"a":' * 5000 + b"1" + b"}" * 5000,
        b'{"a":' * 500 + b"1" + b"}" * 500,
        b'{"sha256":NaN}',
        b'{"sha256":1e999}',
        b'{"sha256":"\\ud800"}',
        b'{"sha256":1,"sha256":1}',
        b'{"rounds":' + b"9" * 5000 + b"}",
        make.canonical(PLAIN)[:-1],
        make.canonical(PLAIN)[: len(make.canonical(PLAIN)) // 2],
        make.canonical(PLAIN) + b"{}",
        make.canonical(PLAIN).replace(b'"schema_version":1', b'"schema_version":9'),
    ],
)
def test_what_is_no_bundle_is_one_finding(data: bytes) -> None:
    for report in (audit(data), audit_search(data)):
        assert not report.ok
        assert not named(report, "auditor")
    assert audit(data).findings_total == 1


@pytest.mark.parametrize("document", [None, 7, "text", [], {1: 2}, {"a": {1}}, {"a": float("nan")}, {"a": b"x"}])
def test_what_is_no_json_is_refused(document: Any) -> None:
    for report in (audit(document), audit_search(document)):
        assert not report.ok
        assert not named(report, "auditor")


def test_a_bundle_of_many_faults_is_cut_short() -> None:
    bundle = copy.deepcopy(PLAIN)
    for one in bundle["records"]:
        one["checks"] = {"a": 1, "b": 2, "c": 3, "d": 4}
    report = audit(make.sealed(bundle))
    assert report.findings_total > len(report.findings) == 200
    assert any("more" in line for line in report.lines())


def test_huge_bundles_are_refused_unread(monkeypatch: pytest.MonkeyPatch) -> None:
    data = make.canonical(PLAIN)
    monkeypatch.setattr(reading, "MAX_BYTES", len(data) - 1)
    report = audit(data)
    assert [finding.where for finding in report.findings] == ["bundle"]
    assert f"{len(data):,} bytes" in report.findings[0].message
