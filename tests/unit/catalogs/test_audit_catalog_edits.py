"""A catalog inside a bundle that was edited is refused, even when its digest was worked out again."""

from __future__ import annotations

import copy
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

sys.path.append(str(Path(__file__).parent))

import bundle_factory as make
from bundle_damage import OTHER, PLAIN, named

from catalogs.audit import audit


def test_a_missing_entry_of_the_reference_catalog() -> None:
    bundle = copy.deepcopy(PLAIN)
    catalog = bundle["catalogs"]["reference"]
    gone = catalog["entries"].pop(0)
    del catalog["digest"]
    catalog["digest"] = make.sha(catalog)
    report = audit(make.sealed(bundle))
    assert named(report, "catalogs.reference", "", gone["kernel"])


@pytest.mark.parametrize(
    ("change", "field"),
    [
        (lambda c: c["entries"].reverse(), "entries"),
        (lambda c: c["entries"].append(copy.deepcopy(c["entries"][1])), "key"),
        (lambda c: c["entries"][0].update(tie_set=["trl_other"]), "tie_set"),
        (lambda c: c["entries"][0]["tie_set"].append("trl_unknown"), "tie_set"),
        (lambda c: c["entries"][0]["tie_set"].append(c["entries"][1]["trial_id"]), "tie_set"),
        (lambda c: c["entries"][0].pop("candidate"), ""),
        (lambda c: c["entries"][0].update(median_seconds=10**400), ""),
        (lambda c: c["entries"][0]["key"].update(device=OTHER), "key.device"),
        (lambda c: c["entries"][0]["key"].update(toolchain=OTHER), "key.toolchain"),
        (lambda c: c["entries"][0]["key"].update(program_digest=OTHER), "key.program_digest"),
        (lambda c: c["kernels"][0].update(name="other"), "key.program_digest"),
        (lambda c: c["device_identity"]["identity"].update(model="Another"), "device"),
        (lambda c: c["toolchain_description"].update(flags=[]), "toolchain"),
        (lambda c: c.update(role="reference"), "role"),
        (lambda c: c.update(kernels=[]), "kernels"),
    ],
)
def test_a_catalog_that_was_edited_with_its_digest(change: Callable[[Any], object], field: str) -> None:
    bundle = copy.deepcopy(PLAIN)
    catalog = bundle["catalogs"]["candidate"]
    change(catalog)
    del catalog["digest"]
    catalog["digest"] = make.sha(catalog)
    report = audit(make.sealed(bundle))
    assert named(report, "catalogs.candidate", field), "\n".join(report.lines())
    assert not named(report, "auditor")
