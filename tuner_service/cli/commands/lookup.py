"""``tuner lookup``: exact lookup of a winner. A hit is the entry; a miss is explained and exits 1."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

import typer

from tuner_service.cli.connect import connected
from tuner_service.cli.errors import CommandError, ExitStatus
from tuner_service.cli.options import (
    CacheContextOption,
    DataDirOption,
    DeviceOption,
    DimsOption,
    DtypeOption,
    JsonOption,
    ParamOption,
    ProgramOption,
    ShapeOption,
    UrlOption,
)
from tuner_service.cli.output import print_json, print_line
from tuner_service.cli.request import build_cases, read_words
from tuner_service.cli.words import candidate_words, seconds_words
from tuner_service.client import ApiProblem, Client, Document

NOT_FOUND = 404


def lookup(
    kernel: Annotated[
        str | None, typer.Argument(help="Name of a built-in kernel, or of a program that was tuned.")
    ] = None,
    program: ProgramOption = None,
    shape: ShapeOption = None,
    dims: DimsOption = None,
    param: ParamOption = None,
    dtype: DtypeOption = None,
    device: DeviceOption = "cpu",
    toolchain: Annotated[
        str | None,
        typer.Option(help="A toolchain fingerprint, or `any`. Default: the device's toolchain as it is now."),
    ] = None,
    cache_context: CacheContextOption = None,
    url: UrlOption = None,
    data_dir: DataDirOption = None,
    as_json: JsonOption = False,
) -> None:
    """Look a winner up by its exact key. Never guesses: a miss says which fields differ, and exits 1."""
    stated = read_words(kernel=kernel, program=program, shapes=shape, dims=dims, params=param, dtypes=dtype)
    with connected(url=url, data_dir=data_dir) as client:
        cases = build_cases(
            stated, shapes=shape, dims=dims, kernel_document=lambda name: kernel_or_program(client, name)
        )
        if len(cases) != 1:
            raise CommandError("look one shape up at a time")
        try:
            entry = look_up(client, cases[0], device=device, toolchain=toolchain, cache_context=cache_context)
        except ApiProblem as problem:
            if "misses" not in problem.problem:
                raise
            if as_json:
                print_json(problem.problem)
            raise CommandError(miss_words(problem.problem), status=ExitStatus.NEGATIVE) from None
    if as_json:
        print_json(entry)
        return
    print_line(f"{candidate_words(entry['candidate'])}  median {seconds_words(entry['median_seconds'])}")
    print_line(f"trial {entry['trial_id']} of {entry['job_id']}")
    print_line(f"source {entry['code']['source_sha256']}")
    print_line(f"machine code {entry['code']['artifact_sha256']}")


def look_up(
    client: Client, case: Document, *, device: str, toolchain: str | None = None, cache_context: str | None = None
) -> Document:
    """The winner's entry for a case of a request. ``toolchain`` None: the attached device's, as it is now."""
    return client.winner(
        kernel=case.get("kernel"),
        program=case.get("program"),
        dims=case["dims"],
        dtypes=case.get("dtypes"),
        params=case.get("params"),
        device=device,
        toolchain=toolchain,
        cache_context=cache_context,
    )


def kernel_or_program(client: Client, name: str) -> Mapping[str, Any]:
    """The built-in kernel of that name, or the program that the newest job under it brought: both have ``dims``."""
    try:
        return client.kernel(name)
    except ApiProblem as problem:
        if problem.status != NOT_FOUND:
            raise
    for newest in client.jobs(kernel=name, limit=1):
        for case in client.job(newest["id"])["request"]["cases"]:
            if case["kernel"] == name and "program" in case:
                program: Mapping[str, Any] = case["program"]
                return program
    raise CommandError(f"{name!r} is no built-in kernel, and no job has tuned a program of that name")


def miss_words(problem: Document) -> str:
    """A miss for people: why, and how the nearest entries' keys differ from what was asked."""
    lines = [f"miss: {problem.get('reason') or problem.get('detail')}"]
    for near in problem["misses"]:
        differences = ", ".join(_difference(name, pair) for name, pair in near["differs"].items())
        lines.append(f"  {near['entry'][:12]}…: {differences}")
    return "\n".join(lines)


def _difference(name: str, pair: Any) -> str:
    asked, there = pair
    return f"{name} asked {_shown(asked)}, there {_shown(there)}"


def _shown(value: Any) -> str:
    text = str(value)
    return text if len(text) <= 24 else text[:12] + "…"
