"""``tuner trials``: the trials of a job, or one with everything known about it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from tuner_service.cli.connect import connected
from tuner_service.cli.errors import CommandError
from tuner_service.cli.export import export_trial
from tuner_service.cli.options import DataDirOption, JsonOption, LimitOption, UrlOption
from tuner_service.cli.output import print_json, print_line, print_table, say, say_cut
from tuner_service.cli.untimed import code_words, merged_words, names_registers
from tuner_service.cli.words import (
    NOTHING,
    candidate_words,
    case_words,
    detail_words,
    median_seconds,
    outcome_words,
    seconds_words,
)
from tuner_service.client import Document, Listing


def trials(
    job_id: Annotated[str | None, typer.Argument(metavar="[JOB]", help="The job whose trials to list.")] = None,
    outcome: Annotated[
        str | None, typer.Option(help="pending, measured, checked (compile-only devices), rejected or not_run.")
    ] = None,
    stage: Annotated[str | None, typer.Option(help="Only trials rejected at this stage.")] = None,
    reason: Annotated[str | None, typer.Option(help="Only trials rejected for this reason.")] = None,
    kernel: Annotated[str | None, typer.Option(help="Only trials of this kernel.")] = None,
    sort: Annotated[
        str | None, typer.Option(help="ordinal, median_seconds, registers, width…; with - before it: descending.")
    ] = None,
    max_registers: Annotated[
        int | None, typer.Option(min=0, help="Only machine code that takes at most so many registers (CUDA).")
    ] = None,
    spills: Annotated[
        bool | None, typer.Option("--spills/--no-spills", help="Only machine code that spills registers (CUDA).")
    ] = None,
    limit: LimitOption = None,
    trial_id: Annotated[str | None, typer.Option("--id", metavar="TRIAL", help="Show this trial alone.")] = None,
    export: Annotated[
        Path | None, typer.Option("--export", metavar="DIR", help="With --id: write its source as a folder.")
    ] = None,
    url: UrlOption = None,
    data_dir: DataDirOption = None,
    as_json: JsonOption = False,
) -> None:
    """List a job's trials with their outcomes, or show one (``--id``) and export its source (``--export``)."""
    if (job_id is None) == (trial_id is None):
        raise CommandError("name one JOB, or one trial with --id")
    if export is not None and trial_id is None:
        raise CommandError("--export needs --id TRIAL")
    with connected(url=url, data_dir=data_dir) as client:
        if trial_id is not None:
            trial = client.trial(trial_id)
            written = export_trial(client.source(trial_id), trial, export) if export is not None else []
        else:
            assert job_id is not None
            query: dict[str, Any] = {"outcome": outcome, "stage": stage, "reason": reason, "kernel": kernel}
            query |= {"sort": sort, "max_registers": max_registers}
            query["spills"] = None if spills is None else str(spills).lower()
            given = {name: value for name, value in query.items() if value is not None}
            found = Listing(client.trials(job_id, limit=limit, **given))
    if trial_id is not None:
        if as_json:
            print_json(trial)
        else:
            _print_trial(trial)
        for path in written:
            say(f"wrote {path}")
        return
    if as_json:
        print_json({"items": found, "next": None, "total": found.total})
        return
    _print_trials(found)
    say_cut(len(found), found.total)


def _print_trials(found: list[Document]) -> None:
    """One row a trial; what its machine code takes stands beside what was planned, where the code says it."""
    columns = ["trial", "case", "candidate", ">private scalars", "outcome", ">median", "detail"]
    rows = [_row(trial) for trial in found]
    if names_registers(found):
        columns[4:4] = [">registers", ">spill bytes", ">shared bytes"]
        for row, trial in zip(rows, found, strict=True):
            row[4:4] = code_words(trial)
    print_table(columns, rows)


def _row(trial: Document) -> list[str]:
    private = (trial.get("plan") or {}).get("private_scalars")
    note = detail_words(trial.get("detail"))
    if trial.get("same_code_as"):
        note = ", ".join(filter(None, (note, f"same code as {trial['same_code_as']}")))
    code = trial.get("code") or {}
    if code.get("reload_merged"):
        note = ", ".join(filter(None, (note, merged_words(code))))
    return [
        trial["id"],
        case_words(trial["case"]),
        candidate_words(trial["candidate"]) + (" (default)" if trial["is_default"] else ""),
        NOTHING if private is None else str(private),
        outcome_words(trial),
        seconds_words(median_seconds(trial)),
        note,
    ]


def _print_trial(trial: Document) -> None:
    print_line(f"{trial['id']} of {trial['job_id']}: {case_words(trial['case'])}")
    print_line(f"candidate  {candidate_words(trial['candidate'])}")
    print_line(f"outcome    {outcome_words(trial)}")
    for name, value in (trial.get("detail") or {}).items():
        print_line(f"  {name}: {value}")
    for section in ("plan", "code"):
        facts = trial.get(section)
        if facts:
            print_line(section)
            _print_facts(facts)
    timing = trial.get("timing") or {}
    for phase, taken in timing.items():
        if taken:
            samples = ", ".join(seconds_words(s) for s in taken["samples_seconds"])
            print_line(f"{phase}  median {seconds_words(taken['median_seconds'])}  samples {samples}")
    checks = trial.get("checks")
    if checks:
        print_line(f"checks     {'passed' if checks['passed'] else 'FAILED'}")
        rows = [
            [
                check["name"],
                str(check["elements_checked"]),
                str(check["guard_elements_checked"]),
                *(_error(check[name]) for name in ("max_abs_error", "max_rel_error", "max_ulp_error")),
            ]
            for check in checks["inputs"]
        ]
        print_table(["inputs", ">elements", ">guards", ">max abs", ">max rel", ">max ULP"], rows)


def _print_facts(facts: dict[str, Any], indent: str = "  ") -> None:
    for name, value in facts.items():
        if isinstance(value, dict):
            print_line(f"{indent}{name}")
            _print_facts(value, indent + "  ")
        elif value is not None:
            print_line(f"{indent}{name}: {value}")


def _error(value: float | None) -> str:
    return "not finite" if value is None else f"{value:.3g}"
