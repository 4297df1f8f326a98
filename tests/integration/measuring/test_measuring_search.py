"""The search's measurement of one item after another: what good kernels get, and what bad ones are charged with."""

from __future__ import annotations

import dataclasses
import math
import os
import subprocess
import sys
from pathlib import Path

import pytest

from search.errors import Cancelled
from search.lowering.contract import Argument
from search.measuring.device_lock import DeviceLock
from search.measuring.protocol import PROTOCOLS, MeasureItem
from search.outcome import Rejected
from search.program.resolve import resolve_case

DEAF = "for (int s = 1; s < 64; s++) signal(s, SIG_IGN);"
HANG = "for (volatile int i = 0;; i = i) ; return 0;"
SETS = ["normal", "large_offset", "edge_rows"]


def test_a_good_kernel_is_checked_and_timed(measurer, build, case) -> None:
    (result,) = measurer.search(case, [build("good")])
    assert result.rejection is None
    assert result.id == "good"
    assert result.started_at < result.finished_at
    assert result.started_at.endswith("Z")
    checks = result.checks
    assert checks.passed
    assert checks.guards_intact
    assert checks.inputs_unchanged
    assert [one.name for one in checks.inputs] == SETS
    for one in checks.inputs:
        passes = 2 if one.name == "edge_rows" else 1  # nine patterns on five rows
        assert one.elements_checked == passes * 5 * 65
        assert one.guard_elements_checked >= passes * 2 * 2 * 68
        assert one.failures == 0
        assert one.first_failure is None
        assert len(one.input_sha256) == 64
    edge = checks.inputs[2]
    assert {p.split(":")[1] for p in edge.patterns} >= {
        "some_minus_infinity",
        "one_hot",
        "constant",
        "denormal",
        "one_nan",
    }
    timing = result.timing["device_batch"]
    assert list(result.timing) == ["device_batch"]
    assert len(timing.samples_seconds) == PROTOCOLS["search"].samples
    assert all(sample > 0 for sample in timing.samples_seconds)
    assert timing.calls_per_sample > 1


def test_input_digests_depend_on_the_case_alone(measurer, build, case) -> None:
    first, second = measurer.check(case, [build("a"), build("b")])
    assert [i.input_sha256 for i in first.checks.inputs] == [i.input_sha256 for i in second.checks.inputs]
    assert len({i.input_sha256 for i in first.checks.inputs}) == 3


def test_check_does_not_time(measurer, build, case) -> None:
    (result,) = measurer.check(case, [build("good")])
    assert result.checks.passed
    assert result.timing == {}


def test_retime_times_and_does_not_check(measurer, build, case) -> None:
    timing = measurer.retime(case, build("good"))
    assert len(timing.samples_seconds) == PROTOCOLS["search"].samples
    assert min(timing.samples_seconds) <= timing.median_seconds <= max(timing.samples_seconds)


def test_retime_of_a_crash_is_a_rejection(measurer, build, case) -> None:
    rejection = measurer.retime(case, build("crash", "abort();"))
    assert isinstance(rejection, Rejected)
    assert rejection.detail["signal"] == "SIGABRT"


def test_one_child_measures_many(measurer, build, case) -> None:
    pids = set()
    for _ in measurer.search(case, [build("a"), build("b"), build("c")]):
        pids.add(measurer._kernels.pid)
    assert len(pids) == 1
    assert None not in pids


def test_children_serve_several_cases(measurer, build) -> None:
    for rows, cols in ((1, 1), (3, 7), (5, 65), (3, 7)):
        case = resolve_case({"kernel": "softmax", "dims": {"rows": rows, "cols": cols}})
        (result,) = measurer.search(case, [build("good", cols=cols)])
        assert result.rejection is None, result.rejection
        assert {p.split(":")[1] for p in result.checks.inputs[2].patterns} >= {"one_nan", "one_plus_infinity"}


FAR = 1 << 20
BAD = {
    "segfault": ("*(volatile int *)8 = 1; return 0;", "runtime", "crashed"),
    "abort": ('fprintf(stderr, "assertion failed: tile"); abort();', "runtime", "crashed"),
    "division": ("volatile int zero = 0; return 100 / zero;", "runtime", "crashed"),
    "kills itself": ("kill(getpid(), SIGKILL); return 0;", "runtime", "crashed"),
    "exit": ("exit(0);", "runtime", "exited"),
    "error code": ("return 7;", "runtime", "error_code"),
    "far write": (f"softmax(x, y, rows); y[{FAR}] = 1; return 0;", "runtime", "crashed"),
    "far write before": (f"softmax(x, y, rows); y[-{FAR}] = 1; return 0;", "runtime", "crashed"),
    "just past the end": ("softmax(x, y, rows); y[rows * COLS] = 1; return 0;", "correctness", "guard_overwritten"),
    "just before": ("softmax(x, y, rows); y[-1] = 1; return 0;", "correctness", "guard_overwritten"),
    "last guard": ("softmax(x, y, rows); y[rows * COLS + 67] = 1; return 0;", "correctness", "guard_overwritten"),
    "input guard": ("softmax(x, y, rows); x[-68] = 1; return 0;", "correctness", "guard_overwritten"),
    "input changed": ("softmax(x, y, rows); x[3] += 1; return 0;", "correctness", "input_modified"),
    "nothing written": ("return 0;", "correctness", "unwritten_elements"),
    "one row short": ("softmax(x, y, rows - 1); return 0;", "correctness", "unwritten_elements"),
    "last element": (
        "float keep = y[rows * COLS - 1]; softmax(x, y, rows); y[rows * COLS - 1] = keep; return 0;",
        "correctness",
        "unwritten_elements",
    ),
    "wrong": ("softmax(x, y, rows); y[rows * COLS - 1] *= 1.001f; return 0;", "correctness", "wrong_values"),
    "swallows NaN": (
        "softmax(x, y, rows); for (int i = 0; i < rows * COLS; i++) if (y[i] != y[i]) y[i] = 0; return 0;",
        "correctness",
        "nan_mismatch",
    ),
    "invents NaN": ("softmax(x, y, rows); y[0] = NAN; return 0;", "correctness", "nan_mismatch"),
    "infinity": ("softmax(x, y, rows); if (y[7] == y[7]) y[7] = INFINITY; return 0;", "correctness", "wrong_values"),
    "all memory": (
        "volatile char *p = malloc((size_t)1 << 46); *p = 1; softmax(x, y, rows); return 0;",
        "runtime",
        "crashed",
    ),
    "sleepers": (
        "for (int i = 0; i < 20; i++) if (fork() == 0) { sleep(1000); _exit(0); } softmax(x, y, rows); return 0;",
        "runtime",
        "forked",
    ),
    "flush to zero": (
        "__builtin_ia32_ldmxcsr(__builtin_ia32_stmxcsr() | 0x8040); softmax(x, y, rows); return 0;",
        "runtime",
        "changed_float_mode",
    ),
}


@pytest.mark.parametrize("name", BAD)
def test_a_bad_kernel_is_charged_and_the_next_one_measured(name, measurer, build, case) -> None:
    body, stage, reason = BAD[name]
    before, bad, after = measurer.search(case, [build("before"), build("bad", body), build("after")])
    assert (before.rejection, after.rejection) == (None, None)
    assert before.timing
    assert after.timing
    assert bad.timing == {}
    assert (bad.rejection.stage, bad.rejection.reason) == (stage, reason), bad.rejection
    if stage == "correctness":
        assert bad.checks is not None
        assert not bad.checks.passed
        assert bad.checks.guards_intact == (reason != "guard_overwritten")
        assert bad.checks.inputs_unchanged == (reason != "input_modified")


@pytest.mark.parametrize(
    ("body", "signal"),
    [
        ("*(volatile int *)8 = 1; return 0;", "SIGSEGV"),
        ("abort();", "SIGABRT"),
        ("volatile int zero = 0; return 100 / zero;", "SIGFPE"),
        ("__builtin_trap();", "SIGILL"),
    ],
)
def test_a_crash_names_its_signal(body, signal, measurer, build, case) -> None:
    (result,) = measurer.search(case, [build("bad", body)])
    assert result.rejection.detail["signal"] == signal
    assert result.rejection.detail["while"] == "checking"


def test_what_a_crashing_kernel_printed_is_kept(measurer, build, case) -> None:
    (result,) = measurer.search(case, [build("bad", BAD["abort"][0])])
    assert result.rejection.detail["log_tail"].endswith("assertion failed: tile")


def test_an_error_code_is_kept(measurer, build, case) -> None:
    (result,) = measurer.search(case, [build("bad", "return -12;")])
    assert result.rejection.detail == {"code": -12}


def test_a_wrong_value_is_located(measurer, build, case) -> None:
    (result,) = measurer.search(case, [build("bad", "softmax(x, y, rows); y[2 * COLS + 9] = 3; return 0;")])
    normal = result.checks.inputs[0]
    assert normal.failures == 1
    first = normal.first_failure
    assert (first["tensor"], first["index"], first["got"], first["kind"]) == ("y", [2, 9], 3.0, "wrong_values")
    assert 0 < first["expected"] < 1
    assert 0 < first["tolerance"] < 1e-5
    assert normal.max_abs_error == pytest.approx(3 - first["expected"])
    assert result.rejection.detail["first_failure"] == first


def test_errors_that_are_not_finite_are_null(measurer, build, case) -> None:
    (result,) = measurer.search(case, [build("bad", BAD["invents NaN"][0])])
    normal = result.checks.inputs[0]
    assert (normal.max_abs_error, normal.max_rel_error, normal.max_ulp_error) == (None, None, None)
    assert normal.first_failure["got"] == "nan"


def test_a_hang_that_ignores_signals_is_killed_and_the_next_one_measured(impatient, build, case, tmp_path) -> None:
    pid = tmp_path / "pid"
    body = f'FILE *f = fopen("{pid}", "w"); fprintf(f, "%d", getpid()); fclose(f); {DEAF} {HANG}'
    hang, after = impatient.search(case, [build("hang", body), build("after")])
    assert (hang.rejection.stage, hang.rejection.reason) == ("timeout", "no_result")
    assert hang.rejection.detail["seconds"] >= 2
    assert hang.rejection.detail["while"] == "checking"
    assert after.rejection is None
    assert not Path(f"/proc/{pid.read_text()}").exists()
    lock = DeviceLock("cpu:test", lock_dir=tmp_path / "locks")
    assert lock.try_acquire()
    lock.close()


def test_printing_and_reading_cannot_break_the_protocol(measurer, build, case) -> None:
    body = """printf("{\\"event\\":\\"result\\"}\\n"); fflush(stdout); char c; if (read(0, &c, 1) != 0) return 5;
              softmax(x, y, rows); return 0;"""
    (result,) = measurer.search(case, [build("talker", body)])
    assert result.rejection is None
    assert result.checks.passed


def test_threads_left_running_are_charged(measurer, build, case) -> None:
    outside = "static void *nap(void *p) { sleep(1000); return p; }"
    body = "pthread_t t; pthread_create(&t, 0, nap, 0); softmax(x, y, rows); return 0;"
    bad, after = measurer.search(case, [build("threads", body, outside=outside), build("after")])
    assert bad.rejection.reason == "left_running"
    assert bad.rejection.detail["threads"] >= 1
    assert after.rejection is None


def test_a_late_crash_is_not_charged_to_the_next_item(measurer, build, case) -> None:
    """The first kernel sets an alarm that kills the process while a later, innocent one runs."""
    late = build("late", "alarm(2); softmax(x, y, rows); return 0;")
    slow = build("slow", "softmax(x, y, rows); usleep(250000); return 0;")
    first, second, third = measurer.search(case, [late, slow, build("after")])
    assert second.rejection is None
    assert third.rejection is None
    assert first.rejection is None  # nothing pointed at it while it ran


def test_a_library_that_changed_is_not_opened(measurer, build, case) -> None:
    good = build("good")
    other = dataclasses.replace(good.artifact, library_sha256="0" * 64)
    gone = dataclasses.replace(good.artifact, library_path=good.artifact.library_path + ".gone")
    nameless = dataclasses.replace(good.artifact, symbol="nothing")
    items = [MeasureItem(id=str(i), artifact=a) for i, a in enumerate((other, gone, nameless))]
    results = list(measurer.search(case, [*items, good]))
    assert [r.rejection and r.rejection.reason for r in results] == [
        "artifact_changed",
        "artifact_missing",
        "symbol_missing",
        None,
    ]


def test_an_argument_of_another_case_is_refused(measurer, build, case) -> None:
    item = build("odd", arguments=(Argument(name="weight", kind="tensor"), Argument(name="rows", kind="dim")))
    (result,) = measurer.search(case, [item])
    assert result.rejection.reason == "unknown_argument"
    assert result.rejection.detail["allowed"] == ["x", "y"]


def test_a_constructor_that_crashes_is_charged(measurer, build, case) -> None:
    outside = "__attribute__((constructor)) static void boom(void) { abort(); }"
    bad, after = measurer.search(case, [build("bad", outside=outside), build("after")])
    assert (bad.rejection.reason, bad.rejection.detail["while"]) == ("crashed", "loading")
    assert after.rejection is None


def test_fast_math_startup_code_is_noticed(measurer, build, case) -> None:
    fast, after = measurer.search(case, [build("fast", flags=("-ffast-math",)), build("after")])
    assert fast.rejection.reason == "changed_float_mode"
    assert after.rejection is None


def test_cancel_kills_the_child_and_the_measurer_goes_on(measurer, build, case) -> None:
    def during_the_hang() -> bool:
        return measurer._kernels.used

    with pytest.raises(Cancelled):
        list(measurer.search(case, [build("hang", HANG)], cancelled=during_the_hang))
    assert measurer._kernels.pid is None
    (result,) = measurer.search(case, [build("good")])
    assert result.rejection is None


def test_the_parent_holds_no_numpy_and_no_torch() -> None:
    code = "import sys, search.measuring.run; print([m for m in ('numpy', 'torch', 'tilelang') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=os.environ)
    assert done.stdout.strip() == "[]"


def test_many_arguments_reach_the_kernel_in_order(measurer, build) -> None:
    """Sixteen arguments: registers and stack, pointers and sizes mixed."""
    inputs = [f"a{i}" for i in range(13)]
    program = {
        "name": "many",
        "dims": ["rows", "cols"],
        "axes": {"row": {"dim": "rows", "kind": "row"}, "col": {"dim": "cols", "kind": "column"}},
        "tensors": {
            **{name: {"axes": ["row", "col"], "role": "input", "dtype": "float32"} for name in inputs},
            "y": {"axes": ["row", "col"], "role": "output", "dtype": "float32"},
        },
        "body": [{"store": {"tensor": "y", "over": ["col"], "value": " + ".join(inputs)}}],
    }
    case = resolve_case({"program": program, "dims": {"rows": 3, "cols": 5}})
    arguments = tuple(
        Argument(name=name, kind="dim" if name in ("rows", "cols") else "tensor")
        for name in ("rows", *inputs, "y", "cols")
    )
    names = ", ".join(f"float *{name}" for name in inputs)
    total = " + ".join(f"{name}[i]" for name in inputs)
    body = f"for (int i = 0; i < rows * cols; i++) y[i] = {total}; return 0;"
    item = build("many", body, cols=5, signature=f"int32_t rows, {names}, float *y, int32_t cols", arguments=arguments)
    (result,) = measurer.search(case, [item])
    assert result.rejection is None, result.rejection
    assert math.isfinite(result.timing["device_batch"].median_seconds)
