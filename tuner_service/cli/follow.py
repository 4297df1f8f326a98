"""Follow a job to its end; Ctrl-C cancels it in order."""

from __future__ import annotations

import contextlib

from tuner_service.cli.errors import CommandError, ExitStatus
from tuner_service.cli.output import say
from tuner_service.cli.progress import reporter
from tuner_service.client import Client, ClientError, Document


def follow(client: Client, job_id: str, opening: str = "", *, quiet: bool = False) -> Document:
    """Say ``opening``, then wait for a job with progress on stderr; the answer is the finished job.

    Ctrl-C cancels the job and raises CommandError with status INTERRUPTED.
    """
    try:
        if opening:  # said in here: whoever reads it may interrupt at once
            say(opening)
        with reporter(quiet=quiet) as report:
            return client.wait(job_id, report)
    except KeyboardInterrupt:
        with contextlib.suppress(ClientError):
            client.cancel(job_id)
            client.wait(job_id, poll_seconds=0.2, patience_seconds=5.0)
        say(f"{job_id} cancelled; what was measured is kept")
        raise CommandError("interrupted", status=ExitStatus.INTERRUPTED) from None
