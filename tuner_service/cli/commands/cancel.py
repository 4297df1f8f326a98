"""``tuner cancel``: stop a job."""

from __future__ import annotations

from typing import Annotated

import typer

from tuner_service.cli.connect import connected
from tuner_service.cli.options import DataDirOption, JsonOption, UrlOption
from tuner_service.cli.output import print_json, print_line
from tuner_service.cli.untimed import ended_well


def cancel(
    job_id: Annotated[str, typer.Argument(metavar="JOB", help="The job's id.")],
    url: UrlOption = None,
    data_dir: DataDirOption = None,
    as_json: JsonOption = False,
) -> None:
    """Stop a job: queued work is withdrawn, running children are killed; what was measured stays."""
    with connected(url=url, data_dir=data_dir) as client:
        job = client.cancel(job_id)
    if as_json:
        print_json(job)
        return
    progress = job["progress"]
    well = ended_well(job)
    print_line(f"{job['id']} {job['state']}: {progress[well]} {well}, {progress['rejected']} rejected")
