"""Finals: interleaved rounds, rotation, extra phases, and finalists that fail."""

from __future__ import annotations

import pytest

from search.errors import Cancelled
from search.measuring.protocol import PHASES, PROTOCOLS, Protocol

ROUNDS = PROTOCOLS["finals"].samples
SITTINGS = PROTOCOLS["finals"].sittings
BRIEF = Protocol(name="brief", warmup_seconds=0.005, samples=6, batch_seconds=0.002, sittings=2)
"""For what is not about how long and how often finals sample; six rounds in two processes."""


@pytest.fixture(autouse=True)
def brief(monkeypatch) -> None:
    monkeypatch.setitem(PROTOCOLS, "brief", BRIEF)


# Writes which kernel ran in which process, in order: the letters show the interleaving that really happened.
TRACED = """
static FILE *trace; if (!trace) trace = fopen("{path}", "a");
static int calls; softmax(x, y, rows); usleep(20000);
fprintf(trace, "%d {letter}\\n", getpid()); fflush(trace); return 0;
"""


def test_every_round_times_each_finalist_once(measurer, build, case) -> None:
    items = [build("a"), build("b"), build("c")]
    finals = measurer.finals(case, items, all_phases=["c", "a"])
    assert finals.order == ("a", "b", "c")
    assert finals.protocol == "finals"
    assert finals.rejections == {}
    assert {name: len(samples) for name, samples in finals.samples_seconds.items()} == dict.fromkeys("abc", ROUNDS)
    assert all(sample > 0 for samples in finals.samples_seconds.values() for sample in samples)
    assert sorted(finals.extra_phases) == ["a", "c"]
    for name, timing in finals.extra_phases.items():
        assert sorted(timing) == sorted(PHASES)
        assert timing["device_batch"].samples_seconds == finals.samples_seconds[name]
        assert timing["device_single"].calls_per_sample == 1
        assert timing["e2e_single"].calls_per_sample == 1
        assert timing["e2e_batch"].calls_per_sample > 1
        assert {len(phase.samples_seconds) for phase in timing.values()} == {ROUNDS}
    assert finals.started_at < finals.finished_at


def test_the_start_rotates_by_one_each_round(measurer, build, case, tmp_path) -> None:
    """A kernel of 20 ms fills a sample with one call; each turn is one untimed and one timed call."""
    path = tmp_path / "trace"
    items = [build(letter, TRACED.format(path=path, letter=letter)) for letter in "abc"]
    measurer.finals(case, items, protocol="brief")
    sittings: dict[str, str] = {}
    for line in path.read_text().splitlines():
        process, letter = line.split()
        sittings[process] = sittings.get(process, "") + letter
    assert len(sittings) == BRIEF.sittings
    # what went before, checks and a warm-up, is as many calls as the machine had time for
    turns = "".join(letters[-2 * 3 * BRIEF.samples // BRIEF.sittings :] for letters in sittings.values())
    assert turns[::2] == turns[1::2]
    assert turns[::2] == "".join(("abc", "bca", "cab")[turn % 3] for turn in range(BRIEF.samples))


def test_every_sitting_is_a_process_of_its_own(measurer, build, case, tmp_path) -> None:
    path = tmp_path / "pids"
    body = f"""
    static FILE *out; if (!out) {{ out = fopen("{path}", "a"); fprintf(out, "%d\\n", getpid()); fflush(out); }}
    softmax(x, y, rows); return 0;
    """
    finals = measurer.finals(case, [build("a"), build("b", body)])
    assert finals.sittings == SITTINGS == len(set(path.read_text().split())) == len(path.read_text().split())


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ("static int n; if (n++ > 3) abort(); softmax(x, y, rows); return 0;", "crashed"),
        ("static int n; softmax(x, y, rows); return n++ > 3;", "error_code"),
        ("softmax(x, y, rows); y[-1] = 0; return 0;", "guard_overwritten"),
        ("exit(3);", "exited"),
    ],
)
def test_a_finalist_that_fails_is_taken_out_and_the_rest_measured(body, reason, measurer, build, case) -> None:
    finals = measurer.finals(
        case, [build("a"), build("bad", body), build("c")], all_phases=["a", "bad"], protocol="brief"
    )
    assert {name: rejection.reason for name, rejection in finals.rejections.items()} == {"bad": reason}
    assert finals.order == ("a", "c")
    assert {name: len(samples) for name, samples in finals.samples_seconds.items()} == {
        "a": BRIEF.samples,
        "c": BRIEF.samples,
    }
    assert list(finals.extra_phases) == ["a"]


def test_a_finalist_that_hangs_is_taken_out(impatient, build, case) -> None:
    body = "static int n; if (n++ > 2) for (volatile int i = 0;; i = i) ; softmax(x, y, rows); return 0;"
    finals = impatient.finals(case, [build("a"), build("bad", body)], protocol="brief")
    assert finals.rejections["bad"].stage == "timeout"
    assert len(finals.samples_seconds["a"]) == BRIEF.samples


def test_all_finalists_may_fail(measurer, build, case) -> None:
    finals = measurer.finals(case, [build("a", "abort();"), build("b", "return 1;")], protocol="brief")
    assert finals.order == ()
    assert finals.samples_seconds == {}
    assert sorted(finals.rejections) == ["a", "b"]


def test_a_child_broken_by_an_earlier_item_is_not_a_finalist_s_fault(measurer, build, case) -> None:
    (earlier,) = measurer.search(case, [build("late", "alarm(2); softmax(x, y, rows); return 0;")])
    assert earlier.rejection is None
    finals = measurer.finals(case, [build(name, "softmax(x, y, rows); usleep(60000); return 0;") for name in "ab"])
    assert finals.rejections == {}


def test_finals_can_be_cancelled(measurer, build, case) -> None:
    asked = []

    def cancelled() -> bool:
        asked.append(True)
        return len(asked) > 3

    with pytest.raises(Cancelled):
        measurer.finals(case, [build("a"), build("b")], cancelled=cancelled)
    assert measurer._kernels.pid is None
    assert measurer.finals(case, [build("a")], protocol="brief").order == ("a",)
