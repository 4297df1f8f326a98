"""``tuner tune``: submit a job, follow it, print what it found."""

from __future__ import annotations

from typing import Annotated

import typer

from tuner_service.cli.connect import connected
from tuner_service.cli.errors import CommandError, ExitStatus
from tuner_service.cli.follow import follow
from tuner_service.cli.options import (
    BaselineOption,
    BudgetOption,
    CacheContextOption,
    DataDirOption,
    DeviceOption,
    DeviceSecondsOption,
    DimsOption,
    DtypeOption,
    IdempotencyKeyOption,
    JsonOption,
    KernelArgument,
    LabelOption,
    NoSpillsOption,
    ParamOption,
    PriorityOption,
    ProgramOption,
    ShapeOption,
    SpaceOption,
    UrlOption,
    WallSecondsOption,
)
from tuner_service.cli.output import print_json, print_line, say
from tuner_service.cli.request import build_cases, build_request, parse_number, read_words
from tuner_service.cli.results import shortfalls
from tuner_service.cli.show import show_results
from tuner_service.counting import counted


def tune(
    kernel: KernelArgument = None,
    program: ProgramOption = None,
    shape: ShapeOption = None,
    dims: DimsOption = None,
    param: ParamOption = None,
    dtype: DtypeOption = None,
    space: SpaceOption = None,
    budget: BudgetOption = None,
    device: DeviceOption = "cpu",
    forbid_spills: NoSpillsOption = False,
    cache_context: CacheContextOption = None,
    baseline: BaselineOption = None,
    label: LabelOption = None,
    priority: PriorityOption = None,
    device_seconds: DeviceSecondsOption = None,
    wall_seconds: WallSecondsOption = None,
    idempotency_key: IdempotencyKeyOption = None,
    wait: Annotated[bool, typer.Option("--wait/--no-wait", help="Follow the job, or print its id and leave.")] = True,
    url: UrlOption = None,
    data_dir: DataDirOption = None,
    as_json: JsonOption = False,
) -> None:
    """Tune one kernel at one or more shapes and print the winners.

    Exit status 1: the job failed or was cancelled, or some case has no winner.
    """
    stated = read_words(
        kernel=kernel,
        program=program,
        shapes=shape,
        dims=dims,
        params=param,
        dtypes=dtype,
        space=space,
        budget=budget,
        labels=label,
    )
    limits = {
        word: parse_number(f"--{word.replace('_', '-')}", given)
        for word, given in {"device_seconds": device_seconds, "wall_seconds": wall_seconds}.items()
        if given is not None
    }
    refusal = "--no-wait leaves the job to a service that stays; start one with `tuner serve`"
    with connected(url=url, data_dir=data_dir, private=wait, without=refusal) as client:
        cases = build_cases(stated, shapes=shape, dims=dims, kernel_document=client.kernel)
        body = build_request(
            cases=cases,
            device=device,
            space=space,
            budget=budget,
            baselines=baseline,
            labels=label,
            priority=priority,
            limits=limits,
            spills_allowed=not forbid_spills,
            cache_context=cache_context,
        )
        job = client.submit(body, idempotency_key=idempotency_key)
        if not wait:
            if as_json:
                print_json(job)
            else:
                print_line(job["id"])
                if job.get("waiting"):
                    say(f"waiting: {job['waiting']}")
            return
        found = f"{counted(job['progress']['enumerated'], 'candidate')} in {counted(len(job['cases']), 'case')}"
        opening = f"{job['id']}: {found} on {job['device']['name']}"
        job = follow(client, job["id"], opening, quiet=as_json)
        if as_json:
            print_json(job)
        else:
            show_results(job, list(client.trials(job["id"])))
    missing = shortfalls(job)
    if missing:
        raise CommandError("; ".join(missing), status=ExitStatus.NEGATIVE)
