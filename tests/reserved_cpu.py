"""Tests that replay an acceptance have a CPU to themselves while the other workers of the run share the rest.

What is timed beside other work on its CPU differs from itself, and its acceptance is inconclusive. Such tests
(``alone``) come first, on one worker, whose processes stay on the CPU that measures (the last one); until they are over
every other worker keeps its processes off it. Without ``--dist loadfile``, or with one CPU, nothing is reserved.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import Any

import pytest

ALONE = (
    "tests/integration/test_acceptance_service.py::",
    "tests/e2e/test_docs.py::test_a_page_runs_as_it_stands[docs/how-to/catalogs.md]",
    "tests/e2e/test_demo.py::",
)
"""Beginnings of the ids of tests that are marked ``alone``: who distributes tests knows no marks."""
LONG = (
    "test_recovery.py",
    "test_docs.py",
    "test_serve_failures.py",
    "test_cli_service.py",
    "test_lowering_cpu.py",
    "test_api_serve.py",
)
"""Files that are begun early: a worker that began one last would end long after the others."""
CPUS = frozenset(os.sched_getaffinity(0))
_reserved: dict[str, Path] = {}
"""``until``: the file that tells this worker that nothing is reserved any more; empty when nothing ever is."""


def _alone(item: pytest.Item | None) -> bool:
    return item is not None and item.get_closest_marker("alone") is not None


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """One worker runs a file in a row, for its fixtures' sake, or a page of the documentation, or all that is alone."""
    if config.getoption("dist") != "loadfile":
        return None
    from xdist.scheduler import LoadFileScheduling

    class Scheduling(LoadFileScheduling):  # type: ignore[misc]
        def _split_scope(self, nodeid: str) -> str:
            if nodeid.startswith(ALONE):
                return "alone"
            return nodeid if "::test_a_page_runs_as_it_stands[" in nodeid else str(super()._split_scope(nodeid))

    return Scheduling(config, log)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What is alone first, then what is long."""
    places = {name: place for place, name in enumerate(LONG)}
    items.sort(key=lambda item: (not _alone(item), places.get(item.path.name, len(LONG))))
    for item in items:
        if _alone(item) != item.nodeid.startswith(ALONE):
            raise pytest.UsageError(f"{item.nodeid}: its mark 'alone' and tests/reserved_cpu.py say different things")


def pytest_collection_finish(session: pytest.Session) -> None:
    """Reserve, if some test of this run wants it."""
    if hasattr(session.config, "workerinput") and len(CPUS) > 1 and any(map(_alone, session.items)):
        of_this_run: Path = session.config._tmp_path_factory.getbasetemp().parent  # type: ignore[attr-defined]
        _reserved["until"] = of_this_run / "nothing-is-alone"


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item, nextitem: pytest.Item | None):  # type: ignore[no-untyped-def]
    """Be where this test belongs."""
    until = _reserved.get("until")
    if until is None:
        return (yield)
    reserved = frozenset({max(CPUS)})
    if _alone(item):
        _stay_on(reserved)
    elif until.exists():
        _stay_on(CPUS)
        _reserved.clear()
    else:
        _stay_on(CPUS - reserved)
    try:
        return (yield)
    finally:
        if _alone(item) and not _alone(nextitem):
            until.touch()
            _stay_on(CPUS)
            _reserved.clear()


def _stay_on(cpus: frozenset[int]) -> None:
    """This process with all of its threads; children that are started from now on stay there too."""
    for thread in os.listdir("/proc/self/task"):  # noqa: PTH208 - names are all we need
        with contextlib.suppress(ProcessLookupError):  # it ended meanwhile
            os.sched_setaffinity(int(thread), cpus)
