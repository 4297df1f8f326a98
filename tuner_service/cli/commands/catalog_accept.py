"""``tuner catalog accept | audit``: the replay of a catalog, and the independent check of its evidence."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from catalogs import canonical_json
from tuner_service.cli.connect import connected
from tuner_service.cli.errors import BadOptionError, CommandError, ExitStatus
from tuner_service.cli.options import DataDirOption, IdempotencyKeyOption, JsonOption, UrlOption
from tuner_service.cli.output import print_json, print_line, print_table, say
from tuner_service.cli.words import NOTHING, case_words, percent_words, times_words
from tuner_service.client import Client, ClientError, Document

OPPONENTS = ("reference", "default", "incumbent", "torch")


def accept(
    digest: Annotated[str, typer.Argument(metavar="DIGEST", help="Digest of a candidate catalog.")],
    rounds: Annotated[int, typer.Option(help="A multiple of four.")] = 4,
    alias: Annotated[str, typer.Option(help="What this alias names now takes part as the incumbent.")] = "prod",
    evidence: Annotated[Path | None, typer.Option(help="Write the evidence bundle there.")] = None,
    idempotency_key: IdempotencyKeyOption = None,
    wait: Annotated[bool, typer.Option("--wait/--no-wait", help="Follow it, or print its id and leave.")] = True,
    url: UrlOption = None,
    data_dir: DataDirOption = None,
    as_json: JsonOption = False,
) -> None:
    """Replay a candidate catalog against reference, default, incumbent and torch. Exit status 1 unless accepted."""
    refusal = "--no-wait leaves the replay to a service that stays; start one with `tuner serve`"
    with connected(url=url, data_dir=data_dir, private=wait, without=refusal) as client:
        acceptance = client.accept(digest, rounds=rounds, alias=alias, idempotency_key=idempotency_key)
        if not wait:
            if as_json:
                print_json(acceptance)
            else:
                print_line(acceptance["id"])
            return
        acceptance = follow_acceptance(client, acceptance["id"], quiet=as_json)
        if evidence is not None and acceptance["evidence_sha256"]:
            write_evidence(client, acceptance["id"], evidence)
    if as_json:
        print_json(acceptance)
    else:
        show_acceptance(acceptance)
    if acceptance["verdict"] != "accepted":
        why = acceptance["error"] or "; ".join(acceptance["reasons"]) or acceptance["state"]
        raise CommandError(f"not accepted: {why}", status=ExitStatus.NEGATIVE)


def audit(
    bundle: Annotated[Path, typer.Argument(metavar="BUNDLE", help="File with an evidence bundle.")],
    as_json: JsonOption = False,
) -> None:
    """Check an evidence bundle independently; the same as `python -m catalogs.audit`. Exit status 1 on any finding."""
    from catalogs.audit import main

    status = main([str(bundle), *(["--json"] if as_json else [])])
    if status:
        raise typer.Exit(status)


def follow_acceptance(client: Client, acceptance_id: str, *, quiet: bool = False) -> Document:
    """Wait for a replay, saying each round on stderr; the answer is the acceptance. Ctrl-C cancels it."""
    said: set[str] = set()

    def report(acceptance: Document) -> None:
        progress = acceptance["progress"]
        per_round = max(1, progress["expected"] // acceptance["rounds"])
        line = f"round {min(progress['records'] // per_round + 1, acceptance['rounds'])} of {acceptance['rounds']}"
        waits = f"waiting: {acceptance['waiting']}" if acceptance.get("waiting") else None
        if waits and not quiet and waits not in said:
            said.add(waits)
            say(f"{acceptance_id}: {waits}")
        if acceptance["state"] == "running" and not quiet and line not in said:
            said.add(line)
            say(f"{acceptance_id}: {line}, {progress['records']} of {progress['expected']} records")

    try:
        return client.wait_acceptance(acceptance_id, report)
    except KeyboardInterrupt:
        with contextlib.suppress(ClientError):
            client.cancel_acceptance(acceptance_id)
        raise CommandError("interrupted; the acceptance was cancelled", status=ExitStatus.INTERRUPTED) from None


def write_evidence(client: Client, acceptance_id: str, path: Path) -> None:
    """Write the evidence bundle of an acceptance as canonical JSON."""
    try:
        path.write_bytes(canonical_json(client.evidence(acceptance_id)))
    except OSError as error:
        raise BadOptionError("--evidence", str(path), f"cannot be written: {error.strerror or error}") from None
    say(f"wrote the evidence to {path}")


def show_acceptance(acceptance: Mapping[str, Any]) -> None:
    """The ratios per case, the verdict in words, and everything that keeps the figures honest."""
    print_line(f"{acceptance['id']}: {verdict_words(acceptance)}")
    rows = []
    for case in acceptance["cases"]:
        against = (case["metrics"] or {}).get("device_batch") or {}
        ratios = [ratio_words(against.get(name)) for name in OPPONENTS]
        rows.append([case_words(case), *ratios, percent_words(case["margin"]), case["state"] or NOTHING])
    print_table(["case", *(f">{name}" for name in OPPONENTS), ">margin", "state"], rows)
    print_line(
        "Each column: the opponent's time over the candidate's on device_batch; above 1 the candidate is faster."
    )
    print_line()
    for reason in acceptance["reasons"]:
        print_line(f"because {reason}")
    for statement in acceptance["statements"]:
        print_line(statement)


def verdict_words(acceptance: Mapping[str, Any]) -> str:
    """A verdict for people."""
    if acceptance["verdict"] == "accepted":
        return (
            f"accepted: in {acceptance['rounds']} rounds no case was worse than its reference, its default or the "
            "incumbent by more than its own noise"
        )
    if acceptance["verdict"] == "rejected":
        return f"rejected, for {len(acceptance['reasons'])} reason(s)"
    return f"{acceptance['state']}, no verdict"


def ratio_words(comparison: Mapping[str, Any] | None) -> str:
    """A comparison as ``1.23 [1.20, 1.31] positive``."""
    if comparison is None:
        return NOTHING
    if comparison["class"] == "control":
        return "same code"
    middle, low, high = (times_words(comparison[f"ratio_{name}"]) for name in ("median", "min", "max"))
    return f"{middle} [{low}, {high}] {comparison['class']}"
