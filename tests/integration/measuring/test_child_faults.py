"""What a candidate does to its machine instead of computing: it forks, eats memory, crashes, prints without end.

It is charged with it, the next one is measured, nothing of it runs on, and nobody holds the device.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from search.measuring.benches import ChildKind, Children
from search.measuring.device_lock import DeviceLock
from search.measuring.protocol import MeasureItem
from search.measuring.run import Measurer
from search.measuring.timers import ensure_timer
from search.outcome import Rejected
from search.program.case import Case

Build = Callable[..., MeasureItem]
Outcomes = Callable[..., list[Rejected | None]]

MEMORY_BYTES = 4 << 30
FORKS = 64
BOMB = f"""static void bomb(const char *path) {{
    for (int i = 0; i < {FORKS}; i++) {{
        pid_t pid = fork();
        if (pid == 0) {{ if (i % 2) setsid(); sleep(1000); _exit(0); }}
        FILE *f = fopen(path, "a"); fprintf(f, "%d\\n", pid); fclose(f);
    }}
}}"""
LONE = """
from search.children import forks
from search.measuring import kernel_child

forks.Forks.forbid = classmethod(lambda cls: cls("group_kill"))
kernel_child.main()
"""


def bombing(path: Path) -> str:
    """The body of a kernel that is right but for a bomb in its first call."""
    return f'static int once; if (!once++) bomb("{path}"); softmax(x, y, rows); return 0;'


def running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


@pytest.fixture
def outcomes(make_measurer: Callable[..., Measurer], build: Build, case: Case, tmp_path: Path) -> Outcomes:
    """``outcomes((body, outside), ...)``: the rejections of such kernels, after all else was looked at."""

    def measured(*kernels: tuple[str, str], **options: object) -> list[Rejected | None]:
        pids = set()
        items = [build(str(place), body, outside=outside) for place, (body, outside) in enumerate(kernels)]
        with make_measurer(**options) as measurer:
            results = []
            for result in measurer.search(case, [*items, build("after")]):
                results.append(result)
                pids.add(measurer._kernels.pid)
        *results, after = results
        assert after.rejection is None
        assert after.timing
        assert [pid for pid in pids - {None} if running(pid)] == []
        lock = DeviceLock("cpu:test", lock_dir=tmp_path / "locks")
        assert lock.try_acquire()
        lock.close()
        return [result.rejection for result in results]

    return measured


def test_fork_bombs_start_nothing_and_are_rejected(outcomes: Outcomes, tmp_path: Path) -> None:
    pids = tmp_path / "pids"
    early = f'{BOMB} __attribute__((constructor)) static void early(void) {{ bomb("{pids}"); }}'
    for bad in outcomes((bombing(pids), BOMB), ("softmax(x, y, rows); return 0;", early)):
        assert bad is not None
        assert (bad.stage, bad.reason, bad.detail) == ("runtime", "forked", {"refused": FORKS})
    assert pids.read_text().split() == ["-1"] * (2 * FORKS)


def test_threads_that_end_and_a_gigabyte_of_output_are_no_fault(outcomes: Outcomes) -> None:
    nap = "static void *nap(void *p) { return p; }"
    threads = """pthread_t t; void *back = 0; if (pthread_create(&t, 0, nap, x) || pthread_join(t, &back) || back != x)
                 return 5; softmax(x, y, rows); return 0;"""
    loud = """static char noise[1 << 16]; memset(noise, 'x', sizeof noise); static int once;
              if (!once++) for (int i = 0; i < 16384; i++) if (write(1 + i % 2, noise, sizeof noise) != sizeof noise)
                  return 5;
              softmax(x, y, rows); return 0;"""
    assert outcomes((threads, nap), (loud, "")) == [None, None]


def test_all_memory_and_a_wild_write_end_the_child(
    outcomes: Outcomes,
) -> None:
    body = """size_t mib = 0; while (malloc((size_t)64 << 20)) mib += 64;
              fprintf(stderr, "%zu MiB", mib); abort();"""
    bad, wild = outcomes((body, ""), ("*(volatile int *)8 = 1; return 0;", ""), memory_limit_bytes=MEMORY_BYTES)
    assert bad is not None
    assert wild is not None
    assert wild.detail["signal"] == "SIGSEGV"
    assert (bad.reason, bad.detail["signal"]) == ("crashed", "SIGABRT")
    mebibytes = int(str(bad.detail["log_tail"]).split()[-2])
    assert 0 < mebibytes < MEMORY_BYTES >> 20


def test_where_nothing_forbids_forks_they_die_with_the_group(
    outcomes: Outcomes, tmp_path: Path, work_dir: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A child as it is on a system without seccomp, for root."""
    (tmp_path / "lone_child.py").write_text(LONE)
    path = os.pathsep.join([str(tmp_path), str(Path(__file__).parents[3])])
    lone = ChildKind(module="lone_child", arguments=[str(ensure_timer(work_dir))], environment={"PYTHONPATH": path})
    pids = tmp_path / "pids"
    (bad,) = outcomes((bombing(pids), BOMB), children=Children(kernels=lone, torch=lone))
    assert bad is not None
    assert bad.reason == "left_running"
    assert bad.detail["processes"]
    started = [int(line) for line in pids.read_text().split()]
    assert len(started) >= FORKS
    assert [pid for pid in started if pid > 0 and running(pid)] == []
    (said,) = {record.getMessage() for record in caplog.records if record.levelname == "WARNING"}
    assert said == "lone_child: what keeps kernels from starting processes is group_kill"
