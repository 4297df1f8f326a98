"""Building the native timing loop (parent side) and sampling phases with it (child side). No numpy.

The library is content-addressed by source, flags and compiler version, so children share one build.
"""

from __future__ import annotations

import ctypes
import gc
import hashlib
import os
import shutil
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from search.children.scratch import scratch_folder
from search.errors import ToolchainUnavailable
from search.lowering.command import run_command
from search.measuring.protocol import Phase, PhaseTiming, Protocol, Timing
from search.stats.summary import median

COMPILER_VARIABLE = "TUNER_CC"
MAX_ARGUMENTS = 16
_SOURCE = Path(__file__).with_name("timer.c")
_FLAGS = ("-O2", "-std=gnu11", "-fPIC", "-shared")
_COMPILER_SECONDS = 30.0
_NANO = 1e-9
_RECALIBRATIONS = 3
_FEWEST_BATCHES, _MOST_BATCHES = 0.5, 2.0
"""What the first sample may last, in the protocol's batches, before its calls are counted anew."""


def ensure_timer(work_dir: Path) -> Path:
    """Path of the compiled timing loop, built under ``work_dir`` when it is not there. ToolchainUnavailable if it
    cannot be built."""
    compiler = shutil.which(os.environ.get(COMPILER_VARIABLE) or "gcc")
    if compiler is None:
        raise ToolchainUnavailable(f"no C compiler: install gcc or name one in {COMPILER_VARIABLE}")
    version = _run([compiler, "--version"])
    key = hashlib.sha256("\0".join([version, *_FLAGS]).encode() + _SOURCE.read_bytes()).hexdigest()
    library = work_dir / "timer" / f"{key}.so"
    if not library.exists():
        library.parent.mkdir(parents=True, exist_ok=True)
        with scratch_folder("timer", library.parent) as folder:
            built = Path(folder) / "timer.so"
            _run([compiler, *_FLAGS, "-o", str(built), str(_SOURCE)])
            built.replace(library)  # atomic: a reader sees a whole library or none
    return library


def _run(command: Sequence[str]) -> str:
    done = run_command(command, timeout_seconds=_COMPILER_SECONDS)
    if done.failure is not None:
        raise ToolchainUnavailable(f"{command[0]} does not work: {done.failure}")
    return done.stdout


class KernelFault(Exception):  # noqa: N818 - what the kernel returned, handled next to the call
    """A kernel returned a non-zero code."""

    def __init__(self, code: int) -> None:
        self.code = code
        super().__init__(f"kernel returned {code}")


class NativeTimer:
    """The loaded timing loop."""

    def __init__(self, library: Path) -> None:
        loop = ctypes.CDLL(str(library))
        int64_pointer = ctypes.POINTER(ctypes.c_int64)
        common = (ctypes.c_void_p, ctypes.POINTER(ctypes.c_uint64), ctypes.c_int32, ctypes.c_int64)
        loop.tuner_batch.argtypes = (*common, int64_pointer)
        loop.tuner_batch.restype = ctypes.c_int32
        loop.tuner_warm.argtypes = (*common, int64_pointer, int64_pointer)
        loop.tuner_warm.restype = ctypes.c_int32
        loop.tuner_float_mode.argtypes = ()
        loop.tuner_float_mode.restype = ctypes.c_uint64
        loop.tuner_set_float_mode.argtypes = (ctypes.c_uint64,)
        loop.tuner_set_float_mode.restype = None
        self._loop = loop

    def float_mode(self) -> int:
        """Control bits of this thread's floating-point unit."""
        return int(self._loop.tuner_float_mode())

    def set_float_mode(self, mode: int) -> None:
        """Put control bits back."""
        self._loop.tuner_set_float_mode(mode)

    def batch_seconds(self, call: NativeCall, calls: int) -> float:
        """Seconds of ``calls`` native calls. KernelFault on a non-zero return."""
        elapsed = ctypes.c_int64()
        code = self._loop.tuner_batch(call.address, call.values, call.count, calls, ctypes.byref(elapsed))
        if code:
            raise KernelFault(code)
        return max(elapsed.value, 1) * _NANO

    def warm_seconds_per_call(self, call: NativeCall, seconds: float) -> float:
        """Call natively for ``seconds`` (at least once); seconds per call of the last batch, for calibration."""
        calls, elapsed = ctypes.c_int64(), ctypes.c_int64()
        code = self._loop.tuner_warm(
            call.address, call.values, call.count, round(seconds / _NANO), ctypes.byref(calls), ctypes.byref(elapsed)
        )
        if code:
            raise KernelFault(code)
        return max(elapsed.value, 1) * _NANO / calls.value


class NativeCall:
    """One kernel bound to its arguments: an address and 64-bit values (pointers, int32 sizes)."""

    def __init__(self, address: int, values: Sequence[int]) -> None:
        if len(values) > MAX_ARGUMENTS:
            raise ValueError(f"a kernel takes at most {MAX_ARGUMENTS} arguments, not {len(values)}")
        self.address = address
        self.count = len(values)
        self.values = (ctypes.c_uint64 * max(1, self.count))(*values)


def calls_per_batch(protocol: Protocol, seconds_per_call: float) -> int:
    """Calls that make one sample last about the protocol's batch; at least one."""
    return max(1, round(protocol.batch_seconds / seconds_per_call))


class quiet_interpreter:  # noqa: N801 - used as a context manager, like a function
    """No garbage collection inside the block."""

    def __enter__(self) -> None:
        gc.collect()
        self._was_enabled = gc.isenabled()
        gc.disable()

    def __exit__(self, *_: object) -> None:
        if self._was_enabled:
            gc.enable()


def phase_timing(samples_seconds: Iterable[float], calls: int) -> PhaseTiming:
    """A PhaseTiming of raw samples (seconds per call)."""
    samples = tuple(samples_seconds)
    return PhaseTiming(samples_seconds=samples, median_seconds=median(samples), calls_per_sample=calls)


def sample_phases(
    protocol: Protocol,
    phases: Iterable[Phase],
    *,
    warm: Callable[[float], float],
    device: Callable[[int], float],
    host: Callable[[int], float],
) -> Timing:
    """Warm up, then sample each phase in turn.

    ``warm(seconds)`` calls for so long and gives seconds per call; ``device(calls)`` and ``host(calls)`` give the
    seconds that so many calls took natively and from Python.
    """
    timing: dict[Phase, PhaseTiming] = {}
    per_call = warm(protocol.warmup_seconds)
    with quiet_interpreter():
        for phase in phases:
            take = device if phase.startswith("device") else host
            if phase == "e2e_batch":  # dispatch included, so calibrated anew
                probe = min(16, calls_per_batch(protocol, per_call))
                per_call = take(probe) / probe
            calls, first = _first_sample(protocol, phase, take, per_call)
            rest = (take(calls) / calls for _ in range(protocol.samples - 1))
            timing[phase] = phase_timing([first / calls, *rest], calls)
    return timing


def _first_sample(protocol: Protocol, phase: Phase, take: Callable[[int], float], per_call: float) -> tuple[int, float]:
    """Calls per sample, and the seconds of the first sample.

    What calibrated may have been interrupted, which would make every sample too short: the first one shows it.
    """
    if not phase.endswith("batch"):
        return 1, take(1)
    calls = calls_per_batch(protocol, per_call)
    seconds = take(calls)
    for _ in range(_RECALIBRATIONS):
        better = calls_per_batch(protocol, seconds / calls)
        if better == calls or _FEWEST_BATCHES <= seconds / protocol.batch_seconds <= _MOST_BATCHES:
            break
        calls, seconds = better, take(better)
    return calls, seconds


def host_seconds(call: Callable[[], object], calls: int) -> float:
    """Wall seconds of ``calls`` calls from a Python loop."""
    repeats = range(calls)
    start = time.perf_counter_ns()
    for _ in repeats:
        call()
    return max(time.perf_counter_ns() - start, 1) * _NANO


def warm_host_seconds_per_call(call: Callable[[], object], seconds: float) -> float:
    """Call from Python for ``seconds`` (at least once); seconds per call of the last batch, for calibration."""
    end = time.monotonic() + seconds
    calls = 1
    while True:
        elapsed = host_seconds(call, calls)
        if time.monotonic() >= end:
            return elapsed / calls
        if elapsed < 1e-3:
            calls *= 2
