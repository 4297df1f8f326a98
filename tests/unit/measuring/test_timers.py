"""The native loop and the sampling: what is called how often. No test looks at how long anything takes."""

from __future__ import annotations

import ctypes
import gc
import subprocess

import pytest

from search.errors import ToolchainUnavailable
from search.measuring.protocol import PHASES, PROTOCOLS, Protocol
from search.measuring.timers import (
    KernelFault,
    NativeCall,
    NativeTimer,
    calls_per_batch,
    ensure_timer,
    host_seconds,
    quiet_interpreter,
    sample_phases,
    warm_host_seconds_per_call,
)


@pytest.fixture(scope="module")
def timer(tmp_path_factory) -> NativeTimer:
    return NativeTimer(ensure_timer(tmp_path_factory.mktemp("timer")))


def counting(count: int, fail_at: int = -1):
    """A native callback of ``count`` 64-bit arguments that records its calls."""
    seen: list[tuple[int, ...]] = []
    prototype = ctypes.CFUNCTYPE(ctypes.c_int32, *[ctypes.c_uint64] * count)

    def called(*values: int) -> int:
        seen.append(values)
        return 9 if len(seen) - 1 == fail_at else 0

    function = prototype(called)
    return function, ctypes.cast(function, ctypes.c_void_p).value, seen


@pytest.mark.parametrize("count", range(17))
def test_every_argument_arrives(timer, count) -> None:
    keep, address, seen = counting(count)
    values = [2**64 - 1 - i for i in range(count)]
    assert timer.batch_seconds(NativeCall(address, values), 3) > 0
    assert seen == [tuple(values)] * 3
    del keep


def test_more_arguments_are_refused() -> None:
    with pytest.raises(ValueError, match="at most 16"):
        NativeCall(1, range(17))


def test_an_error_code_stops_the_loop(timer) -> None:
    _keep, address, seen = counting(1, fail_at=2)
    with pytest.raises(KernelFault) as fault:
        timer.batch_seconds(NativeCall(address, [0]), 10)
    assert fault.value.code == 9
    assert len(seen) == 3
    with pytest.raises(KernelFault):
        timer.warm_seconds_per_call(NativeCall(counting(0, fail_at=0)[1], []), 0.01)


def test_warming_calls_at_least_once(timer) -> None:
    _keep, address, seen = counting(0)
    assert timer.warm_seconds_per_call(NativeCall(address, []), 0.0) > 0
    assert len(seen) == 1


def test_float_mode_is_put_back(timer) -> None:
    mode = timer.float_mode()
    try:
        timer.set_float_mode(mode | 0x8000)
        assert timer.float_mode() == mode | 0x8000
    finally:
        timer.set_float_mode(mode)
    assert timer.float_mode() == mode


@pytest.mark.parametrize(("per_call", "calls"), [(1e-3, 10), (3.3e-3, 3), (1.0, 1), (1e-6, 10_000)])
def test_calls_per_batch(per_call, calls) -> None:
    assert calls_per_batch(PROTOCOLS["search"], per_call) == calls


def test_sampling_asks_for_what_the_protocol_says() -> None:
    protocol = Protocol(name="probe", warmup_seconds=0.5, samples=4, batch_seconds=0.01)
    asked: dict[str, list[float]] = {"warm": [], "device": [], "host": []}

    def taking(kind: str, per_call: float):
        def take(calls: int) -> float:
            assert not gc.isenabled()
            asked[kind].append(calls)
            return calls * per_call

        return take

    def warm(seconds: float) -> float:
        asked["warm"].append(seconds)
        return 1e-3

    timing = sample_phases(protocol, PHASES, warm=warm, device=taking("device", 1e-3), host=taking("host", 2e-3))
    assert gc.isenabled()
    assert asked == {"warm": [0.5], "device": [10] * 4 + [1] * 4, "host": [10] + [5] * 4 + [1] * 4}
    assert list(timing) == list(PHASES)
    assert timing["device_batch"].median_seconds == pytest.approx(1e-3)
    assert timing["e2e_batch"].calls_per_sample == 5
    assert timing["e2e_batch"].median_seconds == pytest.approx(2e-3)
    assert {len(phase.samples_seconds) for phase in timing.values()} == {4}


def test_a_calibration_that_was_interrupted_is_seen_by_the_first_sample() -> None:
    """A warm-up that says 2 ms where a call takes 0.1 ms: samples of 5 calls would be a twentieth of a batch."""
    protocol = Protocol(name="probe", warmup_seconds=0.5, samples=3, batch_seconds=0.01)
    asked: list[int] = []

    def device(calls: int) -> float:
        asked.append(calls)
        return calls * 1e-4

    def host(calls: int) -> float:
        raise AssertionError("no phase of the host was asked for")

    timing = sample_phases(protocol, ("device_batch",), warm=lambda _: 2e-3, device=device, host=host)
    assert asked == [5, 100, 100, 100]
    assert timing["device_batch"].calls_per_sample == 100
    assert timing["device_batch"].samples_seconds == (1e-4,) * 3


def test_recalibration_ends_and_one_long_call_is_a_sample() -> None:
    protocol = Protocol(name="probe", warmup_seconds=0.5, samples=2, batch_seconds=0.01)
    asked: list[int] = []

    def fickle(calls: int) -> float:
        asked.append(calls)
        return 0.001 if len(asked) % 2 else 0.1

    def long(calls: int) -> float:
        return calls * 0.5

    timing = sample_phases(protocol, ("device_batch",), warm=lambda _: 1e-3, device=fickle, host=fickle)
    assert len(asked) == 1 + 3 + 1
    assert timing["device_batch"].calls_per_sample == asked[-1]
    timing = sample_phases(protocol, ("device_batch",), warm=lambda _: 0.5, device=long, host=long)
    assert (timing["device_batch"].calls_per_sample, timing["device_batch"].median_seconds) == (1, 0.5)


def test_host_loops_call_as_often_as_asked() -> None:
    calls: list[None] = []
    assert host_seconds(lambda: calls.append(None), 7) > 0
    assert len(calls) == 7
    assert warm_host_seconds_per_call(lambda: calls.append(None), 0.0) > 0
    assert len(calls) == 8


def test_a_quiet_interpreter_leaves_collection_as_it_was() -> None:
    gc.disable()
    try:
        with quiet_interpreter():
            pass
        assert not gc.isenabled()
    finally:
        gc.enable()


def test_the_library_is_built_once(tmp_path, monkeypatch) -> None:
    first = ensure_timer(tmp_path)
    stamp = first.stat().st_mtime_ns
    assert ensure_timer(tmp_path) == first
    assert first.stat().st_mtime_ns == stamp
    assert [path.name for path in first.parent.iterdir()] == [first.name]


def test_a_missing_or_broken_compiler_is_said(tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("TUNER_CC", str(tmp_path / "no-such-compiler"))
    with pytest.raises(ToolchainUnavailable, match="TUNER_CC"):
        ensure_timer(tmp_path)
    broken = tmp_path / "broken"
    broken.write_text("#!/bin/sh\necho out of order >&2\nexit 1\n")
    broken.chmod(0o755)
    monkeypatch.setenv("TUNER_CC", str(broken))
    with pytest.raises(ToolchainUnavailable, match="out of order"):
        ensure_timer(tmp_path)


def test_the_loop_calls_through_a_pointer_it_cannot_see(timer, tmp_path) -> None:
    """The timed loop must really call: the kernel is in another library and counts."""
    source = tmp_path / "count.c"
    source.write_text("int calls; int kernel(int *x, int n) { calls++; *x += n; return 0; }")
    library = tmp_path / "count.so"
    subprocess.run(["gcc", "-O3", "-shared", "-fPIC", "-o", str(library), str(source)], check=True)
    loaded = ctypes.CDLL(str(library))
    total = ctypes.c_int32(0)
    address = ctypes.cast(loaded.kernel, ctypes.c_void_p).value
    assert address is not None
    timer.batch_seconds(NativeCall(address, [ctypes.addressof(total), 2**32 - 3]), 1000)
    assert ctypes.c_int.in_dll(loaded, "calls").value == 1000
    assert total.value == -3000  # the upper half of a size is not seen: 2^32 - 3 is -3
