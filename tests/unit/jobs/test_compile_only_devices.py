"""Compile-only devices are attached by name and looked at when asked for; and the pool that builders live in."""

from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from search.device.probe import compile_only
from search.device.spec import DeviceSpec
from search.errors import Cancelled
from tuner_service.db.engine import Database
from tuner_service.workers import compile_only as module
from tuner_service.workers.compile_only import CompileOnlyDevices
from tuner_service.workers.pool import Pool
from tuner_service.workers.runtime import Runtime

NAMES = ("cuda-sm_80", "cuda-sm_90")


class Compiler:
    """What there is to be found; ``asked`` counts the looks."""

    def __init__(self, **unavailable: str) -> None:
        self.unavailable: dict[str, str] = unavailable
        self.asked = 0
        self.raises: BaseException | None = None

    def __call__(self, names: Sequence[str]) -> Sequence[DeviceSpec]:
        self.asked += 1
        if self.raises is not None:
            raise self.raises
        return [
            compile_only(name, toolchain={"nvcc": "13"}, unavailable=self.unavailable.get(name.replace("-", "_")))
            for name in names
        ]


def test_nobody_looks_until_somebody_asks() -> None:
    compiler = Compiler()
    devices = CompileOnlyDevices(NAMES, compiler)
    assert list(devices.known) == list(NAMES)
    assert not any(spec.available or spec.timed for spec in devices.known.values())
    assert all("not looked at yet" in str(spec.reason) for spec in devices.known.values())
    assert compiler.asked == 0
    devices.look("cuda-sm_90")
    devices.look("cuda-sm_80")
    devices.look()
    assert all(spec.available and spec.architecture for spec in devices.known.values())
    assert compiler.asked == 1, "what is usable stays so until something breaks"


def test_what_is_absent_says_why_and_is_looked_at_again_after_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    compiler = Compiler(cuda_sm_80="nvcc does not know sm_80")
    devices = CompileOnlyDevices(NAMES, compiler)
    devices.look()
    devices.look("cuda-sm_80")
    assert devices.known["cuda-sm_80"].reason == "nvcc does not know sm_80"
    assert devices.known["cuda-sm_90"].available
    assert compiler.asked == 1
    monkeypatch.setattr(module, "LOOK_AGAIN_SECONDS", 0.0)
    devices.look("cuda-sm_90")
    assert compiler.asked == 1, "what is usable is not tried again for another's sake"
    compiler.unavailable = {}
    devices.look("cuda-sm_80")
    assert devices.known["cuda-sm_80"].available


def test_after_something_broke_the_next_look_is_a_new_one() -> None:
    compiler = Compiler()
    devices = CompileOnlyDevices(NAMES, compiler)
    devices.look()
    compiler.unavailable = {"cuda_sm_90": "nvcc is gone"}
    devices.forget()
    devices.look("cuda-sm_90")
    assert devices.known["cuda-sm_90"].reason == "nvcc is gone"


def test_a_look_that_fails_is_a_reason_and_a_look_that_is_stopped_is_none(caplog: pytest.LogCaptureFixture) -> None:
    compiler = Compiler()
    devices = CompileOnlyDevices(NAMES, compiler)
    compiler.raises = OSError("no space left")
    devices.look()
    assert "no space left" in str(devices.known["cuda-sm_90"].reason)
    compiler.raises = Cancelled("stopping")
    devices.forget()
    devices.look()
    compiler.raises = None
    devices.look()
    assert devices.known["cuda-sm_90"].available


def test_without_any_there_is_nothing_to_look_at() -> None:
    compiler = Compiler()
    devices = CompileOnlyDevices((), compiler)
    devices.look()
    assert (devices.known, compiler.asked) == ({}, 0)


@pytest.fixture
def runtime(database: Database, tmp_path: Path, device: DeviceSpec, tools: Any) -> Any:
    made: list[Runtime] = []

    def make(compiler: Compiler) -> Runtime:
        runtime = Runtime(
            database=database,
            data_dir=tmp_path,
            advance_period_seconds=0.05,
            compile_only=NAMES,
            probe=lambda work, known: [device],
            look=compiler,
            tools=lambda runtime: tools,
        )
        made.append(runtime)
        runtime.start()
        assert runtime.wait_probed(30.0)
        return runtime

    yield make
    for one in made:
        one.close()


def test_a_service_lists_them_beside_the_cpu(runtime: Callable[..., Runtime], device: DeviceSpec) -> None:
    compiler = Compiler()
    running = runtime(compiler)
    assert list(running.devices) == [device.id, *NAMES]
    running.look("cpu")
    running.look("no-such-device")
    assert compiler.asked == 0
    assert running.wait_looked("cpu", 0.0)
    assert running.wait_looked("cuda-sm_90", 30.0)
    assert running.devices["cuda-sm_90"].available
    assert set(running.leases()) == set()


class Held:
    def __init__(self) -> None:
        self.closed = 0

    def close(self) -> None:
        self.closed += 1


def test_a_pool_lends_again_what_came_back_and_keeps_kinds_apart() -> None:
    pool: Pool[Held] = Pool()
    with pool.lent("sm_80", Held) as first, pool.lent("sm_80", Held) as second, pool.lent("sm_90", Held) as other:
        assert len({id(first), id(second), id(other)}) == 3
    with suppress(RuntimeError), pool.lent("sm_90", Held) as again:
        assert again is other
        raise RuntimeError("of no consequence")
    with pool.lent("sm_90", Held) as once_more:
        assert once_more is other
        pool.rest()
        assert (first.closed, second.closed, other.closed) == (1, 1, 0)
        pool.close()
        assert other.closed == 1
    with pool.lent("sm_90", Held) as fresh:
        assert fresh is not other, "what was closed is not lent again"
    assert fresh.closed == 1
    with pool.single(Held) as alone:
        assert alone not in (first, second, other)
    assert alone.closed == 1
