"""``tuner plan``: a dry run; counts every rejection by reason and measures nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import typer

from tuner_service.cli.connect import connected
from tuner_service.cli.options import (
    BudgetOption,
    DataDirOption,
    DeviceOption,
    DimsOption,
    DtypeOption,
    JsonOption,
    KernelArgument,
    ParamOption,
    ProgramOption,
    ShapeOption,
    SpaceOption,
    UrlOption,
)
from tuner_service.cli.output import print_json, print_line, print_table
from tuner_service.cli.request import build_cases, build_request, read_words
from tuner_service.cli.results import rejection_rows
from tuner_service.cli.words import NOTHING, candidate_words, case_words, detail_words, outcome_words


def plan(
    kernel: KernelArgument = None,
    program: ProgramOption = None,
    shape: ShapeOption = None,
    dims: DimsOption = None,
    param: ParamOption = None,
    dtype: DtypeOption = None,
    space: SpaceOption = None,
    budget: BudgetOption = None,
    device: DeviceOption = "cpu",
    every: Annotated[bool, typer.Option("--all", help="One row per candidate, with its plan or rejection.")] = False,
    url: UrlOption = None,
    data_dir: DataDirOption = None,
    as_json: JsonOption = False,
) -> None:
    """Plan every candidate of a space without measuring: what would be tried, what is rejected and why."""
    stated = read_words(
        kernel=kernel, program=program, shapes=shape, dims=dims, params=param, dtypes=dtype, space=space, budget=budget
    )
    with connected(url=url, data_dir=data_dir) as client:
        cases = build_cases(stated, shapes=shape, dims=dims, kernel_document=client.kernel)
        found = client.plan(build_request(cases=cases, device=device, space=space, budget=budget))
    if as_json:
        print_json(found)
        return
    items = found["items"]
    if every:
        print_table(["case", "candidate", ">private scalars", ">score", "outcome", "detail"], [_row(i) for i in items])
        print_line()
    _print_summary(items, found["cases"])


def _row(item: Mapping[str, Any]) -> list[str]:
    facts = item.get("plan") or {}
    return [
        case_words(item["case"]),
        candidate_words(item["candidate"]) + ("" if item["in_space"] else " (the default, not in the space)"),
        _figure(facts.get("private_scalars")),
        _figure(facts.get("score")),
        outcome_words(item),
        detail_words(item.get("detail")),
    ]


def _figure(value: float | None) -> str:
    return NOTHING if value is None else f"{value:g}"


def _print_summary(items: Sequence[Mapping[str, Any]], cases: Sequence[Mapping[str, Any]]) -> None:
    rows = [
        [
            case_words(case),
            *(str(case[count]) for count in ("enumerated", "planned", "rejected")),
            ", ".join(case["inert_knobs"]) or NOTHING,
        ]
        for case in cases
    ]
    print_table(["case", ">candidates", ">planned", ">rejected", "inert knobs"], rows)
    rejected = rejection_rows(items)
    if rejected:
        print_line()
        print_table(["rejected at", "reason", ">candidates"], rejected)
