"""``tuner reproduce``: rebuild, re-check and re-time a recorded trial on this machine. Exits 1 on a mismatch."""

from __future__ import annotations

import contextlib
import tempfile
from pathlib import Path
from typing import Annotated, Any

import typer

from tuner_service.cli.connect import connected
from tuner_service.cli.errors import CommandError, ExitStatus
from tuner_service.cli.options import DataDirOption, JsonOption, UrlOption
from tuner_service.cli.output import print_json, print_line, print_table, say
from tuner_service.cli.words import NOTHING, candidate_words, case_words
from tuner_service.client import Document


def reproduce(
    trial_id: Annotated[str, typer.Argument(metavar="TRIAL", help="The trial's id.")],
    anyway: Annotated[
        bool, typer.Option("--anyway", help="Go on where device or toolchain differ from the record.")
    ] = False,
    url: UrlOption = None,
    data_dir: DataDirOption = None,
    as_json: JsonOption = False,
) -> None:
    """Do a trial again from its record: plan, build in new processes, check with the oracle, time beside the default.

    Source, machine code, plan and outcome must equal the record; times are shown with their ratio.
    """
    with connected(url=url, data_dir=data_dir) as client:
        trial = client.trial(trial_id)
        job = client.job(trial["job_id"])
        defaults = client.trials(job["id"], is_default="true", case_index=trial["case_index"])
        default = next(iter(defaults), None)
    if trial["outcome"] not in ("measured", "checked", "rejected"):
        raise CommandError(f"{trial_id} is {trial['outcome']}: there is nothing to reproduce")
    result = _replay(trial, default, job, anyway=anyway)
    if as_json:
        print_json({"trial": trial_id, **result.document()})
    else:
        print_line(f"{trial_id}: {case_words(trial['case'])}  {candidate_words(trial['candidate'])}")
        rows = [
            [c.name, _shown(c.recorded), _shown(c.now), "" if not c.must_equal else "equal" if c.holds else "DIFFERS"]
            for c in result.comparisons
        ]
        print_table(["fact", "recorded", "now", ""], rows)
        for note in result.notes:
            print_line(note)
    if not result.reproduced:
        differing = ", ".join(c.name for c in result.comparisons if not c.holds)
        raise CommandError(f"not reproduced: {differing}", status=ExitStatus.NEGATIVE)


def _replay(trial: Document, default: Document | None, job: Document, *, anyway: bool) -> Any:
    # Imported here: planning and measuring would slow every other command down.
    from search.device.spec import DeviceSpec
    from search.lowering.builder import Builder
    from search.measuring.attach import attached_devices
    from search.measuring.attach_cuda import compile_only_devices
    from search.measuring.checker import SimulationChecker
    from search.measuring.run import Measurer
    from search.program.resolve import resolve_case
    from tuner_service.cli.replay import device_differences, replay

    recorded = DeviceSpec.from_document(job["device"])
    with tempfile.TemporaryDirectory(prefix="tuner-reproduce-") as folder, contextlib.ExitStack() as stack:
        work = Path(folder)
        found = attached_devices(work) if recorded.timed else compile_only_devices([recorded.id], work)
        here = next((d for d in found if d.kind == recorded.kind), None)
        differing = device_differences(recorded, here)
        for line in differing:
            say(f"differs from the record: {line}")
        if here is None or not here.available or (differing and not anyway):
            hint = "" if here is None or not here.available else "; --anyway goes on"
            raise CommandError(f"this machine is not that of the record{hint}", status=ExitStatus.NEGATIVE)
        artifacts = work / "artifacts"
        made = Builder(artifacts, cpus=here.compile_cpus, target=here.target, architecture=here.architecture)
        builder = stack.enter_context(contextlib.closing(made))
        measurer: Measurer | None = None
        checker: SimulationChecker | None = None
        if here.timed:
            measurer = stack.enter_context(contextlib.closing(Measurer(here, work / "measuring")))
        else:
            checker = stack.enter_context(SimulationChecker(artifacts, work / "simulating", cpus=here.compile_cpus))
        return replay(
            trial,
            default,
            resolve_case(trial["case"], admitted=True),
            budget_scalars=job["request"].get("private_budget_scalars"),
            builder=builder,
            measurer=measurer,
            checker=checker,
        )


def _shown(value: Any) -> str:
    if value is None:
        return NOTHING
    text = str(value)
    return text if len(text) <= 70 else text[:70] + "…"
