"""The seed's joint search, row by row: the same candidates, the same private scalars, the same 101 and 19."""

import json
from pathlib import Path

import pytest

from search.planning.plan import plan_case
from search.program.resolve import resolve_case
from search.space.resolve import resolve_space

SEED = json.loads((Path(__file__).parent / "data" / "seed_search_space.json").read_text())


def planned_rows(case_document):
    case = resolve_case(case_document)
    space = resolve_space(SEED["request"]["space"], case, SEED["request"]["device"])
    planned = plan_case(case, space, budget_scalars=SEED["request"]["private_budget_scalars"])
    return [
        {
            "kernel": case.kernel,
            **case.dims,
            "width": item.candidate.width,
            "input": item.candidate.input,
            "private_scalars": item.plan.private_scalars,
            "accepted": item.rejection is None,
        }
        for item in planned
        if item.in_space
    ]


@pytest.mark.parametrize("document", SEED["request"]["cases"], ids=lambda d: f"{d['kernel']}-{d['dims']['cols']}")
def test_each_case_plans_to_the_seed_rows(document):
    wanted = [
        row
        for row in SEED["candidates"]
        if row["kernel"] == document["kernel"] and {k: row[k] for k in ("rows", "cols")} == document["dims"]
    ]
    assert planned_rows(document) == wanted


def test_the_whole_search_accepts_101_and_rejects_19():
    rows = [row for document in SEED["request"]["cases"] for row in planned_rows(document)]
    assert rows == SEED["candidates"]
    assert (sum(row["accepted"] for row in rows), sum(not row["accepted"] for row in rows)) == (101, 19)


def test_the_rejections_are_budget_rejections_with_both_numbers():
    case = resolve_case({"kernel": "softmax", "dims": {"rows": 128, "cols": 8193}})
    space = resolve_space(SEED["request"]["space"], case, "cpu")
    rejected = [item for item in plan_case(case, space) if item.in_space and item.rejection is not None]
    assert {item.rejection.reason for item in rejected} == {"private_budget"}
    for item in rejected:
        assert item.rejection.stage == "constraints"
        assert item.rejection.detail["private_scalars"] == item.plan.private_scalars > 64
        assert item.rejection.detail["budget_scalars"] == 64
