"""``tuner demo``: the whole way on this machine: service, one job over HTTP, results, exact lookups, one miss."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from tuner_service.cli.commands.lookup import look_up, miss_words
from tuner_service.cli.connect import connected, resolve_data_dir, running_url
from tuner_service.cli.database import bring_up, look
from tuner_service.cli.demo_catalog import catalog_winners
from tuner_service.cli.demo_job import ACCEPTED_CASES, MISSING_ROWS, SMALL_ACCEPTED_CASES, demo_request
from tuner_service.cli.errors import CommandError, ExitStatus
from tuner_service.cli.follow import follow
from tuner_service.cli.options import JsonOption
from tuner_service.cli.output import print_json, print_line, print_table, say
from tuner_service.cli.results import (
    baseline_ratio,
    case_counts,
    rejection_rows,
    shortfalls,
)
from tuner_service.cli.show import show_results
from tuner_service.cli.words import candidate_words, case_words, seconds_words
from tuner_service.client import ApiProblem, Client, Document
from tuner_service.counting import counted
from tuner_service.settings import DATABASE_FILE, load_settings

DEMO_DATA_DIR = Path(".demo")


def demo(
    data_dir: Annotated[Path, typer.Option("--data-dir", help="Where the demo keeps its data.")] = DEMO_DATA_DIR,
    small: Annotated[bool, typer.Option("--small", help="One tiny shape and few candidates: a quick look.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Tune softmax, rms_norm and layer_norm at four shapes on this CPU and look every winner up over HTTP; then freeze
    one case of each, accept it in a replay, audit the evidence, promote it, and look it up as JIT code does.

    Exits non-zero when anything is wrong: no device, a failed job, a case without a winner, a lookup that misses,
    evidence that does not pass the audit.
    """
    started = time.monotonic()
    where = resolve_data_dir(data_dir)
    already = running_url(where)
    if already is not None:
        say(f"a service already runs on {where} at {already}: using it")
    else:
        _renew(where)
    with connected(url=already, data_dir=where) as client:
        device = _device(client)
        say(f"device    {device['name']} ({device['id']})")
        say(f"toolchain {device['toolchain_fingerprint']}")
        earlier = len(client.jobs(state="succeeded"))
        if earlier:
            say(
                f"{counted(earlier, 'earlier job')} in {where}: every time below is measured anew; "
                "only the machine code of equal sources is taken from the artifact store"
            )
        request = demo_request(small=small)
        job = client.submit(request)
        opening = (
            f"POST {client.url}/v1/jobs → {job['id']}: {job['progress']['enumerated']} candidates in "
            f"{counted(len(request['cases']), 'case')}; watch it at {client.url}/docs"
        )
        job = follow(client, job["id"], opening, quiet=as_json)
        trials = list(client.trials(job["id"]))
        if not as_json:
            show_results(job, trials)
        wrong = shortfalls(job)
        lookups, missed = _lookups(client, job, device)
        wrong += missed
        miss, unexplained = _deliberate_miss(client, job, device)
        wrong += unexplained
        if not as_json:
            _print_lookups(lookups, miss)
        at_most = SMALL_ACCEPTED_CASES if small else ACCEPTED_CASES
        catalogued = catalog_winners(client, job, device, where, at_most=at_most, quiet=as_json)
        wrong += catalogued.wrong
    seconds = time.monotonic() - started
    if as_json:
        print_json(_summary(job, trials, lookups, miss, seconds) | {"catalog": catalogued.document()})
    say(f"done in {seconds:.0f} s")
    if wrong:
        raise CommandError("; ".join(wrong), status=ExitStatus.NEGATIVE)


def _renew(where: Path) -> None:
    """The demo's own data of an earlier version is brought to this one's schema; a user's waits for a word."""
    settings = load_settings(data_dir=where)
    if settings.database_url is None and (where / DATABASE_FILE).exists() and look(settings).state == "outdated":
        say(f"the data in {where} is of an earlier version: bringing it to this one's schema")
        bring_up(settings)


def _device(client: Client) -> Document:
    found = client.devices()
    for device in found:
        if device["kind"] == "cpu":
            if not device["available"]:
                raise CommandError(f"the CPU cannot be used: {device['reason']}", status=ExitStatus.NEGATIVE)
            return device
    raise CommandError(f"no cpu device is attached to {client.url}", status=ExitStatus.NEGATIVE)


def _lookups(client: Client, job: Document, device: Document) -> tuple[list[Document], list[str]]:
    """The exact lookup of every case, over HTTP; and what was wrong with any."""
    entries, wrong = [], []
    for case, asked in zip(job["cases"], job["request"]["cases"], strict=True):
        if case.get("winner") is None:
            continue
        try:
            entry = look_up(client, asked, device=device["id"], toolchain=device["toolchain_fingerprint"])
        except ApiProblem as problem:
            wrong.append(f"the lookup of {case_words(case)} does not answer: {problem}")
            continue
        if entry["trial_id"] != case["winner"]["id"]:
            wrong.append(f"the lookup of {case_words(case)} answers {entry['trial_id']}, not {case['winner']['id']}")
        entries.append(entry)
    return entries, wrong


def _deliberate_miss(client: Client, job: Document, device: Document) -> tuple[Document | None, list[str]]:
    """A lookup that must miss, and explain itself: of a kernel that has winners, where there is one."""
    pairs = zip(job["cases"], job["request"]["cases"], strict=True)
    asked = next((asked for case, asked in pairs if case.get("winner")), job["request"]["cases"][0])
    other = {**asked, "dims": {**asked["dims"], "rows": MISSING_ROWS}}
    try:
        entry = look_up(client, other, device=device["id"], toolchain=device["toolchain_fingerprint"])
    except ApiProblem as problem:
        if "misses" in problem.problem:
            return problem.problem, []
        return None, [f"the deliberate miss was answered with {problem}"]
    return None, [f"a lookup of {MISSING_ROWS} rows, which were never tuned, answered {entry['trial_id']}"]


def _print_lookups(entries: Sequence[Document], miss: Document | None) -> None:
    print_line()
    rows = [
        [
            f"{entry['kernel']} {'×'.join(str(extent) for extent in entry['key']['dims'].values())}",
            candidate_words(entry["candidate"]),
            seconds_words(entry["median_seconds"]),
            entry["trial_id"],
        ]
        for entry in entries
    ]
    print_table(["GET /v1/winners", "answers", ">median", "trial"], rows)
    if miss is not None:
        print_line()
        print_line(f"and a shape that was never tuned ({MISSING_ROWS} rows) is a {miss_words(miss)}")


def _summary(
    job: Document, trials: Sequence[Document], lookups: Sequence[Document], miss: Document | None, seconds: float
) -> dict[str, Any]:
    counts = case_counts(job)
    return {
        "job": job["id"],
        "state": job["state"],
        "cases": [
            {
                "kernel": case["kernel"],
                "dims": case["dims"],
                **count,
                "winner": case["winner"] and case["winner"]["candidate"],
                "ratio": baseline_ratio(case, "torch_eager"),
                "tie_set": case["tie_set"],
                "regret": case["regret"],
                "noise_floor": case["noise_floor"],
            }
            for case, count in zip(job["cases"], counts, strict=True)
        ],
        "rejections": [
            {"stage": stage, "reason": reason, "candidates": int(count)}
            for stage, reason, count in rejection_rows(trials)
        ],
        "lookups": [{"kernel": e["kernel"], "dims": e["key"]["dims"], "trial_id": e["trial_id"]} for e in lookups],
        "miss": miss,
        "seconds": seconds,
    }
