"""Device copies of guarded buffers: alignment, round trips, what a kernel wrote beside a tensor, what is given back."""

from __future__ import annotations

import ctypes

import numpy as np
import pytest

from search.measuring.bench import Bench
from search.measuring.gpu.driver import DriverFault
from search.measuring.gpu.memory import ALIGNMENT_BYTES, MOST_COPIES, DeviceCopy, copies_wanted, touched_bytes
from search.measuring.gpu.rehearsal import RehearsalDriver, Script


def a_driver(**script: int) -> RehearsalDriver:
    return RehearsalDriver(Script(**script), lambda symbol, tensors, dims: None)


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Bench:
    from search.program.resolve import resolve_case

    case = resolve_case({"kernel": "rms_norm", "dims": {"rows": 3, "cols": 65}})
    return Bench(case, tmp_path_factory.mktemp("oracle"))


def test_a_round_trip_brings_tensors_and_guards(bench: Bench) -> None:
    driver = a_driver()
    copy = DeviceCopy(driver, bench)
    assert all(address % ALIGNMENT_BYTES == 0 for address in copy.addresses.values())
    bench.load_normal()
    copy.upload()
    for buffer in bench.buffers.values():
        buffer.array.view(np.uint8).fill(0)
    copy.download()
    assert bench.harm() is None
    ctypes.memset(copy.addresses["y"] - 4, 0, 4)  # a kernel wrote just before its output
    copy.download()
    harm = bench.harm()
    assert harm is not None
    assert (harm.reason, harm.detail["guard_elements"]) == ("guard_overwritten", {"y": 1})
    copy.free()
    assert driver.log.count("allocate") == driver.log.count("free") == len(bench.buffers)


def test_what_does_not_fit_is_given_back(bench: Bench) -> None:
    first = next(iter(bench.buffers.values()))
    driver = a_driver(memory_bytes=first.span_bytes + 2 * ALIGNMENT_BYTES)
    with pytest.raises(DriverFault, match="OUT_OF_MEMORY"):
        DeviceCopy(driver, bench)
    assert driver.log.count("free") == 1


def test_cold_copies_pass_the_cache_between_two_turns(bench: Bench) -> None:
    cache = 100_000
    driver = a_driver(last_level_cache_bytes=cache)
    assert copies_wanted(driver, bench, cold=False) == 1
    wanted = copies_wanted(driver, bench, cold=True)
    assert (wanted - 1) * touched_bytes(bench) >= 2 * cache > (wanted - 2) * touched_bytes(bench)
    assert copies_wanted(a_driver(last_level_cache_bytes=1 << 30), bench, cold=True) == MOST_COPIES
