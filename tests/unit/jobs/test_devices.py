"""Devices come, go and come back: what is shown, what waits for them, and that no look disturbs a measurement."""

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from search.device.gpu import absent_gpu
from search.device.spec import DeviceSpec
from search.errors import ChildFailed, DeviceUnavailable, ToolchainUnavailable
from search.steps import Finals, Measure
from tuner_service.db.engine import Database
from tuner_service.db.queries.devices import list_devices, seen_device
from tuner_service.db.queries.jobs import get_job
from tuner_service.jobs.request import Limits, resolve_request
from tuner_service.jobs.submit import submit
from tuner_service.workers import devices as module
from tuner_service.workers.devices import merged
from tuner_service.workers.runtime import Runtime

PATIENCE_SECONDS = 30.0
"""Upper bound of a wait; nothing is concluded from how long anything took."""


def wait(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def a_gpu(cpu: DeviceSpec, **changes: Any) -> DeviceSpec:
    """A GPU on paper; its target is the CPU's, whose steps the paper tools act out."""
    fields = {"id": "nvidia-h200:0", "kind": "nvidia-h200", "name": "NVIDIA H200", "uuid": "GPU-0", **changes}
    return replace(cpu, **fields)


class Machine:
    """What is there now. ``asked`` holds, for each look, the devices that were known and believed."""

    def __init__(self, *devices: DeviceSpec) -> None:
        self.devices: Sequence[DeviceSpec] = devices
        self.asked: list[list[str]] = []
        self.looked = threading.Event()

    def __call__(self, work: Path, known: Sequence[DeviceSpec]) -> Sequence[DeviceSpec]:
        self.asked.append([spec.id for spec in known if spec.available])
        self.looked.set()
        return self.devices


@pytest.fixture
def start(
    database: Database, tmp_path: Path, tools: Any, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[..., Runtime]]:
    made: list[Runtime] = []

    def start(machine: Machine, *, period_seconds: float = 0.02, **options: Any) -> Runtime:
        monkeypatch.setattr(module, "PROBE_AGAIN_SECONDS", period_seconds)
        monkeypatch.setattr(module, "UNDISTURBED_POLL_SECONDS", 0.01)
        runtime = Runtime(
            database=database,
            data_dir=tmp_path,
            advance_period_seconds=0.05,
            probe=machine,
            tools=lambda runtime: tools,
            **options,
        )
        made.append(runtime)
        runtime.start()
        assert runtime.wait_probed(PATIENCE_SECONDS)
        return runtime

    yield start
    for runtime in made:
        runtime.close()


def asked_on(database: Database, runtime: Runtime, body: dict[str, Any], device: str) -> str:
    """A job on a device, submitted while the device is there."""
    resolved = resolve_request({**body, "device": device}, devices=runtime.devices, limits=Limits())
    return submit(database, resolved, idempotency_key=None, body_sha256="5")


def job(database: Database, job_id: str) -> dict[str, Any]:
    with database.read() as session:
        return get_job(session, job_id)


def recorded(database: Database) -> dict[str, dict[str, Any]]:
    with database.read() as session:
        return {one["id"]: one for one in list_devices(session)}


def test_a_gpu_that_vanished_says_so_and_is_back_when_it_is_back(
    start: Callable[..., Runtime], database: Database, device: DeviceSpec
) -> None:
    gpu = a_gpu(device)
    machine = Machine(device, gpu)
    runtime = start(machine)
    assert list(runtime.devices) == [device.id, gpu.id]
    machine.devices = [device, absent_gpu("the NVIDIA driver did not answer within 8 s")]
    wait(lambda: not runtime.devices[gpu.id].available)
    assert list(runtime.devices) == [device.id, gpu.id], "the one that stands for absent GPUs is not shown beside it"
    assert runtime.devices[gpu.id].reason == "not attached any more: the NVIDIA driver did not answer within 8 s"
    wait(lambda: not recorded(database)[gpu.id]["available"])
    then = recorded(database)
    assert "did not answer" in then[gpu.id]["reason"]
    wait(lambda: recorded(database)[device.id]["heartbeat_at"] > then[device.id]["heartbeat_at"])
    assert recorded(database)[gpu.id]["heartbeat_at"] == then[gpu.id]["heartbeat_at"], "it was not seen since"
    machine.devices = [device, gpu]
    wait(lambda: runtime.devices[gpu.id].available)


def test_a_gpu_that_came_later_takes_jobs(
    start: Callable[..., Runtime], database: Database, device: DeviceSpec, small: dict[str, Any]
) -> None:
    machine = Machine(device, absent_gpu("the NVIDIA driver has no GPU for this process"))
    runtime = start(machine)
    assert list(runtime.devices) == [device.id, "nvidia"]
    gpu = a_gpu(device)
    machine.devices = [device, gpu]
    wait(lambda: list(runtime.devices) == [device.id, gpu.id])
    job_id = asked_on(database, runtime, small, gpu.id)
    wait(lambda: job(database, job_id)["state"] == "succeeded")
    assert all(device.id in known for known in machine.asked[1:]), "what compiles for the CPU is not tried again"


def test_a_job_that_has_not_begun_waits_for_its_device_and_says_so(
    start: Callable[..., Runtime], database: Database, device: DeviceSpec, small: dict[str, Any]
) -> None:
    gpu = a_gpu(device)
    machine = Machine(device)
    runtime = start(machine)
    resolved = resolve_request({**small, "device": gpu.id}, devices={gpu.id: gpu}, limits=Limits())
    job_id = submit(database, resolved, idempotency_key=None, body_sha256="5")
    wait(lambda: "not attached" in runtime.waiting().get(job_id, ""))
    assert job(database, job_id)["state"] == "queued"
    machine.devices = [device, replace(gpu, available=False, reason="this GPU is split (MIG)")]
    wait(lambda: "split (MIG)" in runtime.waiting().get(job_id, ""))
    machine.devices = [device, gpu]
    wait(lambda: job(database, job_id)["state"] == "succeeded")
    assert runtime.waiting() == {}


def test_a_job_may_wait_for_what_was_attached_once(
    start: Callable[..., Runtime], database: Database, device: DeviceSpec, small: dict[str, Any]
) -> None:
    gpu, old = a_gpu(device), a_gpu(device, id="nvidia-h100:0", kind="nvidia-h100", uuid="GPU-9")
    with database.write() as session:
        for spec in (old, replace(device, id="cuda-sm_90", timed=False), absent_gpu("no driver is loaded")):
            seen_device(session, spec.document())
    machine = Machine(device, gpu)
    runtime = start(machine)
    assert list(runtime.away()) == [old.id], "neither what times nothing nor what stands for absent GPUs"
    assert "has not seen it since it was started" in str(runtime.away()[old.id].reason)
    machine.devices = [replace(device, available=False, reason="gcc is gone"), absent_gpu("no driver is loaded")]
    wait(lambda: not runtime.devices[gpu.id].available)
    assert set(runtime.away()) == {gpu.id, old.id}, "a compiler that is gone is nothing to wait for"
    resolved = resolve_request(
        {**small, "device": gpu.kind}, devices=runtime.devices, limits=Limits(), away=runtime.away()
    )
    job_id = submit(database, resolved, idempotency_key=None, body_sha256="5")
    wait(lambda: "no driver is loaded" in runtime.waiting().get(job_id, ""))
    machine.devices = [device, gpu]
    wait(lambda: job(database, job_id)["state"] == "succeeded")


def test_after_a_device_failed_it_is_looked_at_soon(
    start: Callable[..., Runtime], database: Database, device: DeviceSpec, small: dict[str, Any], tools: Any
) -> None:
    gpu = a_gpu(device)
    machine = Machine(device, gpu)

    def lost(step: Any, state: Any) -> BaseException | None:
        if isinstance(step, Measure):
            machine.devices = [device, absent_gpu("no GPU")]
            return DeviceUnavailable("CUDA_ERROR_DEVICE_UNAVAILABLE")
        return None

    tools.faults = lost
    runtime = start(machine, period_seconds=3600.0)
    job_id = asked_on(database, runtime, small, gpu.id)
    wait(lambda: not runtime.devices[gpu.id].available)
    wait(lambda: "goes on when it is back" in runtime.waiting().get(job_id, ""))
    assert job(database, job_id)["state"] == "running"
    assert machine.asked[:2] == [[], [device.id, gpu.id]], "a lost card says nothing about compilers"


def test_after_a_compiler_broke_nothing_stale_is_told_as_if_it_held(
    start: Callable[..., Runtime], database: Database, device: DeviceSpec, small: dict[str, Any], tools: Any
) -> None:
    """Whoever asks hears that a look goes on, and whoever wants the device waits for what comes of it."""
    over, broken = threading.Event(), replace(device, available=False, reason="gcc is gone")

    class Held(Machine):
        def __call__(self, work: Path, known: Sequence[DeviceSpec]) -> Sequence[DeviceSpec]:
            if self.asked:
                assert over.wait(PATIENCE_SECONDS)
            return super().__call__(work, known)

    def gone(step: Any, state: Any) -> BaseException | None:
        machine.devices = [broken]
        return ToolchainUnavailable("gcc is gone")

    machine = Held(device)
    tools.faults = gone
    runtime = start(machine, period_seconds=3600.0)
    assert not runtime.looking
    assert runtime.wait_looked(device.id, 0.0)
    first = asked_on(database, runtime, small, device.id)
    try:
        wait(lambda: job(database, first)["state"] == "failed")
        wait(lambda: runtime.looking)
        assert not runtime.wait_looked(device.id, 0.0)
        second = asked_on(database, runtime, small, device.id)
        wait(lambda: runtime.waiting().get(second) == f"device {device.id} is being looked at")
    finally:
        over.set()
    assert runtime.wait_looked(device.id, PATIENCE_SECONDS)
    assert runtime.devices[device.id].reason == "gcc is gone"
    assert not runtime.looking
    assert machine.asked == [[], []], "what is in doubt is not believed"
    wait(lambda: "gcc is gone" in runtime.waiting().get(second, ""))


def test_a_failed_child_is_reason_enough_to_look(
    start: Callable[..., Runtime], database: Database, device: DeviceSpec, small: dict[str, Any], tools: Any
) -> None:
    left = [ChildFailed("the measuring child died by itself")]
    tools.faults = lambda step, state: left.pop() if left and isinstance(step, Measure) else None
    machine = Machine(device)
    runtime = start(machine, period_seconds=3600.0)
    job_id = asked_on(database, runtime, small, device.id)
    wait(lambda: len(machine.asked) == 2)
    wait(lambda: job(database, job_id)["state"] == "succeeded")


def test_no_look_at_a_device_runs_beside_a_quiet_measurement(
    start: Callable[..., Runtime], database: Database, device: DeviceSpec, small: dict[str, Any], tools: Any
) -> None:
    """Neither at the drivers nor at compile-only devices; and who asks for one does not wait for it."""
    machine, looked = Machine(device), threading.Event()
    quiet, over = threading.Event(), threading.Event()
    perform = tools.perform

    def finals_take_time(step: Any, *arguments: Any, **options: Any) -> Any:
        if isinstance(step, Finals) and not over.is_set():
            quiet.set()
            assert over.wait(PATIENCE_SECONDS)
        yield from perform(step, *arguments, **options)

    def look(names: Sequence[str]) -> Sequence[DeviceSpec]:
        looked.set()
        return []

    tools.perform = finals_take_time
    runtime = start(machine, compile_only=("cuda-sm_90",), look=look)
    job_id = asked_on(database, runtime, small, device.id)
    assert quiet.wait(PATIENCE_SECONDS)
    with runtime._devices._changed:  # a look that began before the measurement has ended
        machine.asked.clear()
    runtime.look()
    assert runtime.looking
    assert not runtime.wait_looked("cuda-sm_90", 0.2)
    assert (machine.asked, looked.is_set()) == ([], False)
    over.set()
    assert runtime.wait_looked("cuda-sm_90", PATIENCE_SECONDS)
    assert looked.is_set()
    wait(lambda: len(machine.asked) > 0)
    wait(lambda: job(database, job_id)["state"] == "succeeded")


def test_devices_are_told_without_waiting_for_a_compiler_that_hangs(
    start: Callable[..., Runtime], device: DeviceSpec
) -> None:
    hangs, over = threading.Event(), threading.Event()

    def look(names: Sequence[str]) -> Sequence[DeviceSpec]:
        hangs.set()
        assert over.wait(PATIENCE_SECONDS)
        return []

    runtime = start(Machine(device), compile_only=("cuda-sm_90",), look=look)
    try:
        runtime.look()
        assert hangs.wait(PATIENCE_SECONDS)
        runtime.look()
        assert runtime.looking
        assert list(runtime.devices) == [device.id, "cuda-sm_90"]
        assert not runtime.wait_looked("cuda-sm_90", 0.0)
    finally:
        over.set()
    assert runtime.wait_looked("cuda-sm_90", PATIENCE_SECONDS)
    wait(lambda: not runtime.looking)


def test_what_a_look_leaves_of_what_was_known(device: DeviceSpec) -> None:
    one, two = a_gpu(device), a_gpu(device, id="nvidia-h200:1", uuid="GPU-1")
    absent = absent_gpu("no driver is loaded")
    assert merged({}, [device, absent]) == {device.id: device, "nvidia": absent}
    assert merged({"nvidia": absent}, [device, one]) == {device.id: device, one.id: one}
    left = merged({spec.id: spec for spec in (device, one, two)}, [device, two])
    assert list(left) == [device.id, one.id, two.id]
    assert left[one.id].reason == "not attached any more: the last look at this machine did not find it"
    assert (left[two.id], left[device.id]) == (two, device)
    again = merged(left, [device, absent])
    assert {again[spec.id].reason for spec in (one, two)} == {"not attached any more: no driver is loaded"}
    assert "nvidia" not in again
