"""Events that come while others are written are written together, in their order; what goes wrong comes back."""

from __future__ import annotations

import logging
import threading
from collections.abc import Sequence
from typing import Any, cast

import pytest

from search.events import Event
from tuner_service.telemetry import JsonFormatter, log_ids
from tuner_service.workers.recording import Recording

PATIENCE_SECONDS = 60.0


def event(name: str) -> Event:
    """Whatever is put comes out; it need not be one."""
    return cast(Event, name)


def test_what_comes_while_the_first_is_written_is_written_at_once() -> None:
    writes: list[list[Any]] = []
    begun, go_on = threading.Event(), threading.Event()

    def write(events: Sequence[Event]) -> None:
        writes.append(list(events))
        begun.set()
        assert go_on.wait(PATIENCE_SECONDS)

    with Recording(write) as recording:
        recording.put(event("a"))
        assert begun.wait(PATIENCE_SECONDS)
        for name in "bcd":
            recording.put(event(name))
        go_on.set()
    assert writes == [["a"], ["b", "c", "d"]]


def test_a_write_that_fails_ends_the_block_and_nothing_is_written_after_it() -> None:
    writes: list[list[Any]] = []

    def write(events: Sequence[Event]) -> None:
        writes.append(list(events))
        raise OSError("the ledger is away")

    def put_for_ever(recording: Recording) -> None:
        while True:
            recording.put(event("a"))

    with pytest.raises(OSError, match="away"), Recording(write) as recording:
        put_for_ever(recording)
    with pytest.raises(OSError, match="away"), Recording(write) as recording:
        recording.put(event("z"))  # it fails when the block has ended
    assert len(writes) == 2


def test_what_was_put_before_an_exception_is_written() -> None:
    writes: list[Any] = []

    def put_two_and_fail(recording: Recording) -> None:
        recording.put(event("a"))
        recording.put(event("b"))
        raise KeyError("the child ended")

    with pytest.raises(KeyError, match="child"), Recording(writes.extend) as recording:
        put_two_and_fail(recording)
    assert writes == ["a", "b"]


def test_its_log_lines_carry_the_ids_of_the_task() -> None:
    lines: list[str] = []

    def write(events: Sequence[Event]) -> None:
        record = logging.makeLogRecord({"msg": "written", "levelname": "INFO"})
        lines.append(JsonFormatter().format(record))

    with log_ids(job_id="job_a"), Recording(write) as recording:
        recording.put(event("a"))
    assert '"job_id": "job_a"' in lines[0]
