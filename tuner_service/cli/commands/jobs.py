"""``tuner jobs``: the jobs of a service, or one with its results."""

from __future__ import annotations

from typing import Annotated

import typer

from tuner_service.cli.connect import connected
from tuner_service.cli.options import DataDirOption, JsonOption, LimitOption, UrlOption
from tuner_service.cli.output import print_json, print_line, print_table, say_cut
from tuner_service.cli.show import show_results
from tuner_service.cli.words import case_words, state_words

COUNTS = ("enumerated", "rejected", "measured", "checked", "pending", "not_run")


def jobs(
    job_id: Annotated[str | None, typer.Argument(metavar="[JOB]", help="Show this job with its results.")] = None,
    state: Annotated[str | None, typer.Option(help="queued, running, succeeded, failed or cancelled.")] = None,
    kernel: Annotated[str | None, typer.Option(help="Only jobs with a case of this kernel.")] = None,
    label: Annotated[str | None, typer.Option(metavar="KEY=VALUE", help="Only jobs with this label.")] = None,
    limit: LimitOption = None,
    url: UrlOption = None,
    data_dir: DataDirOption = None,
    as_json: JsonOption = False,
) -> None:
    """List jobs, newest first, or show one with its results so far."""
    with connected(url=url, data_dir=data_dir) as client:
        if job_id is not None:
            job = client.job(job_id)
            trials = [] if as_json else list(client.trials(job_id))
        else:
            filters = {"state": state, "kernel": kernel, "label": label}
            found = client.jobs(limit=limit, **{name: value for name, value in filters.items() if value is not None})
    if job_id is not None:
        if as_json:
            print_json(job)
            return
        print_line(f"{job['id']} {job['state']}, created {job['created_at']}, finished {job['finished_at'] or '–'}")
        if job.get("waiting"):
            print_line(f"waiting: {job['waiting']}")
        show_results(job, trials)
        return
    if as_json:
        print_json({"items": found, "next": None, "total": found.total})
        return
    rows = []
    for job in found:
        progress = job["progress"]
        others = job["case_count"] - 1
        what = case_words(job["first_case"]) + (f" and {others} more" if others else "")
        counts = [str(progress[name]) for name in COUNTS]
        rows.append([job["id"], state_words(job), what, *counts, job["created_at"]])
    columns = [f">{name.replace('_', ' ')}" for name in COUNTS]
    print_table(["job", "state", "cases", *columns, "created"], rows)
    say_cut(len(found), found.total)
