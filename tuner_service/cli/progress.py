"""Progress of a job on stderr: one bar per case on a terminal, sparse plain lines otherwise."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import Any, Protocol, Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from tuner_service.cli.output import stderr
from tuner_service.cli.untimed import ended_well
from tuner_service.cli.words import case_words, in_flight_words

PLAIN_PERIOD_SECONDS = 15.0
"""Without a terminal, at most one line in so many seconds, and one per case that is done."""


class Reporter(Protocol):
    """Context manager that is called with every state of the job."""

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None: ...

    def __call__(self, job: Mapping[str, Any]) -> None: ...


def reporter(*, quiet: bool = False) -> Reporter:
    """Bars on a terminal, plain lines elsewhere, nothing when ``quiet``."""
    console = stderr()
    if quiet:
        return PlainReporter(None)
    return BarReporter(console) if console.is_terminal else PlainReporter(console)


def case_progress(job: Mapping[str, Any]) -> Sequence[tuple[str, Mapping[str, int], bool]]:
    """Per case: its name, its counts, and whether its result is there."""
    return [(case_words(case), case["progress"], case["state"] == "settled") for case in job["cases"]]


def ended(progress: Mapping[str, int]) -> int:
    """Trials that have an outcome."""
    return sum(progress.get(outcome, 0) for outcome in ("measured", "checked", "rejected", "not_run"))


class BarReporter:
    """One bar per case: trials that have an outcome, of those enumerated."""

    def __init__(self, console: Console) -> None:
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=30),
            MofNCompleteColumn(),
            TextColumn("{task.fields[counts]}"),
            TimeElapsedColumn(),
            console=console,
        )
        self._tasks: list[TaskID] = []
        self._waiting: str | None = None
        self._silence = Silence()

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._progress.stop()

    def __call__(self, job: Mapping[str, Any]) -> None:
        """Draw a state of the job."""
        if (reason := job.get("waiting")) != self._waiting:
            self._waiting = reason
            if reason:
                self._progress.console.print(f"waiting: {reason}", markup=False, soft_wrap=True)
        rows = case_progress(job)
        if (seconds := self._silence.lasts(job)) is not None:
            line = f"nothing new for {seconds:.0f} s: {in_flight_words(job) or 'no task is under way'}"
            self._progress.console.print(line, highlight=False, markup=False, soft_wrap=True)
        if len(self._tasks) != len(rows):
            for task in self._tasks:
                self._progress.remove_task(task)
            self._tasks = [self._progress.add_task(name, total=None, counts="") for name, _, _ in rows]
        well = ended_well(job)
        for task, (_, progress, settled) in zip(self._tasks, rows, strict=True):
            done = ended(progress)
            # A case whose trials have all ended still has finals, baselines and revalidation before it.
            stage = "done" if settled else "selecting" if done and done == progress["enumerated"] else ""
            counts = f"{progress['rejected']} rejected, {progress[well]} {well} {stage}"
            self._progress.update(task, completed=done, total=progress["enumerated"] or None, counts=counts)
            if settled or job["state"] not in ("queued", "running"):
                self._progress.stop_task(task)


class Silence:
    """Notices when nothing comes of a job for a while: one slow candidate may compile for minutes."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._counts: object = None
        self._since = self._said = clock()

    def lasts(self, job: Mapping[str, Any]) -> float | None:
        """For how many seconds nothing has changed, once in :data:`PLAIN_PERIOD_SECONDS`; else None."""
        now, counts = self._clock(), [(dict(progress), settled) for _, progress, settled in case_progress(job)]
        if counts != self._counts or job.get("waiting") or job["state"] not in ("queued", "running"):
            self._counts, self._since, self._said = counts, now, now
        if now - self._said < PLAIN_PERIOD_SECONDS:
            return None
        self._said = now
        return now - self._since


class PlainReporter:
    """Lines for logs: the counts now and then, and a line for each case that is done."""

    def __init__(self, console: Console | None) -> None:
        self._console = console
        self._started = time.monotonic()
        self._last = self._started - PLAIN_PERIOD_SECONDS
        self._done: set[int] = set()
        self._waiting: str | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        return None

    def __call__(self, job: Mapping[str, Any]) -> None:
        """Print what is new in a state of the job."""
        if self._console is None:
            return
        now, well = time.monotonic(), ended_well(job)
        if (reason := job.get("waiting")) != self._waiting:
            self._waiting = reason
            if reason:
                self._line(now, f"waiting: {reason}")
        rows = case_progress(job)
        for index, (name, progress, settled) in enumerate(rows):
            if settled and index not in self._done:
                self._done.add(index)
                self._line(now, f"{name} done: {progress[well]} {well}, {progress['rejected']} rejected")
        if now - self._last >= PLAIN_PERIOD_SECONDS and job["state"] in ("queued", "running"):
            self._last = now
            total = job["progress"]
            self._line(
                now,
                f"{job['state']}: {total['enumerated']} enumerated, {total['rejected']} rejected, "
                f"{total[well]} {well}, {total['pending']} pending; {len(self._done)}/{len(rows)} cases done"
                + (f"; {doing}" if (doing := in_flight_words(job)) else ""),
            )

    def _line(self, now: float, text: str) -> None:
        assert self._console is not None
        self._console.print(f"[{now - self._started:6.1f} s] {text}", markup=False, soft_wrap=True)
