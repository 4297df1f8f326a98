"""``tuner prune``: remove jobs that ended long ago, and say what stays and why."""

from __future__ import annotations

from collections import Counter
from typing import Annotated, Any

import typer

from tuner_service.cli.connect import connected
from tuner_service.cli.options import DataDirOption, JsonOption, UrlOption
from tuner_service.cli.output import print_json, print_line, say
from tuner_service.cli.request import parse_pairs
from tuner_service.counting import counted


def prune(
    older_than: Annotated[
        str, typer.Option("--older-than", metavar="AGE", help="How long ago the jobs ended at least: 30d, 12h, 8w.")
    ],
    label: Annotated[
        list[str] | None,
        typer.Option("--label", metavar="KEY=VALUE", help="Only jobs with this label. Repeatable: all of them."),
    ] = None,
    state: Annotated[
        list[str] | None,
        typer.Option("--state", help="Only jobs that ended so: succeeded, failed, cancelled. Repeatable."),
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Count what would go, and change nothing.")] = False,
    url: UrlOption = None,
    data_dir: DataDirOption = None,
    as_json: JsonOption = False,
) -> None:
    """Remove jobs that ended long ago, with their trials. Never one that a catalog was frozen from. There is no way
    back but a backup."""
    body: dict[str, Any] = {"older_than": older_than, "dry_run": dry_run}
    if label:
        body["labels"] = dict(parse_pairs("--label", label))
    if state:
        body["states"] = state
    removed: Counter[str] = Counter()
    with connected(url=url, data_dir=data_dir) as client:
        while True:
            answer = client.prune(body)
            removed.update(answer["removed"])
            if answer["complete"]:
                break
            say(f"removed so far: {_said(removed)}")
    answer = {**answer, "removed": dict(removed)}
    if as_json:
        print_json(answer)
        return
    does = "would remove" if dry_run else "removed"
    print_line(f"{does} {_said(removed)} (ended before {answer['finished_before']})")
    for kept in answer["kept"]:
        print_line(f"kept {kept['job_id']}: {kept['reason']} {', '.join(kept['referred_to_by'])}".rstrip())
    if answer["kept_total"] > len(answer["kept"]):
        print_line(f"kept {counted(answer['kept_total'], 'job')} in all")


def _said(removed: Counter[str]) -> str:
    return ", ".join(counted(number, word.removesuffix("s").replace("_", " ")) for word, number in removed.items())
