"""Who is charged when a GPU's driver refuses: the candidate, the device, or ourselves. The driver is rehearsed."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from search.lowering.contract import Argument, Artifact, Launch
from search.lowering.cuda.resources import LAUNCH_LIMITS
from search.measuring.gpu.cubins import MOST_LOADED, Cubins
from search.measuring.gpu.driver import DriverFault, fault_kind
from search.measuring.gpu.rehearsal import RehearsalCard, RehearsalDriver, Script
from search.measuring.gpu.rehearsal_child import play_case
from search.measuring.gpu_child import CopyRefused, GpuChild

CASE = {"kernel": "softmax", "dims": {"rows": 3, "cols": 33}}
SHORT = {"name": "test", "warmup_seconds": 1e-3, "samples": 2, "batch_seconds": 1e-4}
ARGUMENTS = tuple(Argument(name=n, kind="dim" if n == "rows" else "tensor") for n in ("x", "y", "rows"))


class Channel:
    def __init__(self) -> None:
        self.answers: list[Mapping[str, Any]] = []

    def progress(self, number: int) -> None:
        pass

    def answer(self, message: Mapping[str, Any]) -> None:
        self.answers.append(message)


class Failing(RehearsalDriver):
    """Fails at the n-th call of one kind, once or (a poisoned context) ever after."""

    def __init__(self, script: Script, play: Any, at: tuple[str, int, str] | None) -> None:
        self._at, self._seen = at, 0
        super().__init__(script, play)

    def _enter(self, what: str) -> None:
        super()._enter(what)
        if self._at is not None and what == self._at[0]:
            self._seen += 1
            if self._seen == self._at[1]:
                code = self._at[2]
                if fault_kind(code) == "poisoned":
                    self._broken = code
                raise DriverFault(code, fault_kind(code), what)


class Ended(BaseException):
    """The process would have ended."""


Make = Callable[..., tuple[GpuChild, dict[str, Callable[..., dict[str, Any]]]]]


@pytest.fixture
def make(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Make:
    def end(code: int) -> None:
        raise Ended

    monkeypatch.setattr(os, "_exit", end)
    work_dir = str(tmp_path_factory.getbasetemp() / "gpu-child-oracle")

    def made(*, at: tuple[str, int, str] | None = None, play: Any = None, cold: bool = False, **script: Any) -> Any:
        words = Script(last_level_cache_bytes=4000, **script)

        def usual(symbol: str, tensors: Mapping[str, int], dims: Mapping[str, int]) -> None:
            play_case(child._on_bench().case, tensors, beyond=False)

        child = GpuChild(
            Channel(),  # type: ignore[arg-type]
            open_card=lambda: RehearsalCard(words),
            open_driver=lambda: Failing(words, play or usual, at),
            cache_context="cold" if cold else "warm",
        )
        handlers = child.handlers()
        assert handlers["case"](document=CASE, work_dir=work_dir)["event"] == "ready"
        return child, handlers

    return made


@pytest.fixture
def artifact(tmp_path: Path) -> dict[str, Any]:
    cubin = tmp_path / "batch.cubin"
    cubin.write_text("k_one k_two")
    return Artifact(
        source_sha256="s",
        artifact_sha256="a",
        library_path=str(cubin),
        library_sha256=hashlib.sha256(cubin.read_bytes()).hexdigest(),
        symbol="k_one",
        arguments=ARGUMENTS,
        launch=Launch(threads_per_block=32, rows_per_block=1, dynamic_shared_bytes=0),
        architecture="sm_90",
    ).located_document()


def measured(handlers: Any, artifact: dict[str, Any], *, check: bool = True) -> dict[str, Any]:
    answer: dict[str, Any] = handlers["measure"](
        artifact=artifact, protocol=SHORT, phases=["device_batch"], check=check
    )
    return answer


def test_guards_that_were_overwritten_while_timing_taint_the_process(make: Make, artifact: dict[str, Any]) -> None:
    """A kernel that is right when it is checked, and writes beside its output later."""

    def play(symbol: str, tensors: Mapping[str, int], dims: Mapping[str, int]) -> None:
        play_case(child._on_bench().case, tensors, beyond=child._sampler._watching)

    child, handlers = make(play=play)
    answer = measured(handlers, artifact)
    assert answer["checks"]["passed"]
    assert answer["rejection"]["reason"] == "guard_overwritten"
    assert answer["timing"] is None
    assert answer["tainted"]


def test_a_fault_of_the_kernel_is_charged_to_it_and_ends_the_context(make: Make, artifact: dict[str, Any]) -> None:
    _, handlers = make(faults={"k_one": "CUDA_ERROR_ILLEGAL_ADDRESS"})
    answer = measured(handlers, artifact)
    assert (answer["rejection"]["reason"], answer["tainted"]) == ("device_fault", True)
    with pytest.raises(Ended):
        measured(handlers, artifact)


def test_a_context_that_breaks_before_anything_ran_is_the_devices_fault(make: Make, artifact: dict[str, Any]) -> None:
    _, handlers = make(at=("upload", 1, "CUDA_ERROR_UNKNOWN"))
    answer = measured(handlers, artifact)
    assert answer["event"] == "unavailable"
    assert "before any kernel ran" in answer["reason"]


@pytest.mark.parametrize("operation", ["measure", "case", "copy"])
def test_a_context_that_broke_after_the_last_item_asks_for_a_fresh_process(
    make: Make, artifact: dict[str, Any], operation: str
) -> None:
    """Its faults come out in what follows, which is not to blame."""
    child, handlers = make()
    assert measured(handlers, artifact)["rejection"] is None
    driver = child._on_device()
    assert isinstance(driver, Failing)
    driver._broken = "CUDA_ERROR_ILLEGAL_ADDRESS"
    words: dict[str, dict[str, Any]] = {
        "measure": {"artifact": artifact, "protocol": SHORT, "phases": ["device_batch"], "check": True},
        "case": {"document": CASE, "work_dir": "nowhere"},
        "copy": {"size_bytes": 100, "protocol": SHORT},
    }
    with pytest.raises(Ended):
        handlers[operation](**words[operation])


def test_copies_of_ours_that_are_refused_are_no_candidates_doing(make: Make, artifact: dict[str, Any]) -> None:
    for what in ("upload", "download", "allocate"):
        _, handlers = make(at=(what, 2, "CUDA_ERROR_INVALID_VALUE"))
        with pytest.raises(CopyRefused, match=what):
            measured(handlers, artifact)


def test_memory_that_is_not_there(make: Make, artifact: dict[str, Any]) -> None:
    _, handlers = make(memory_bytes=4000)
    assert measured(handlers, artifact)["rejection"]["reason"] == "out_of_device_memory"
    answer = handlers["copy"](size_bytes=1 << 20, protocol=SHORT)
    assert (answer["event"], answer["rejection"]["reason"]) == ("fault", "out_of_device_memory")
    assert handlers["copy"](size_bytes=64, protocol=SHORT)["event"] == "copied"


def test_a_device_that_is_lost_while_copying_is_unavailable(make: Make, artifact: dict[str, Any]) -> None:
    for what in ("upload", "download"):
        _, handlers = make(at=(what, 3, "CUDA_ERROR_DEVICE_UNAVAILABLE"))
        assert measured(handlers, artifact)["event"] == "unavailable"


def test_a_launch_that_takes_too_much_has_the_compilers_word_for_it(make: Make, artifact: dict[str, Any]) -> None:
    _, handlers = make(at=("launch", 1, "CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES"))
    rejection = measured(handlers, artifact)["rejection"]
    assert (rejection["stage"], rejection["reason"]) == ("resources", LAUNCH_LIMITS)


def test_single_launches_of_a_cold_child_rotate_too(make: Make, artifact: dict[str, Any]) -> None:
    seen: list[int] = []

    def play(symbol: str, tensors: Mapping[str, int], dims: Mapping[str, int]) -> None:
        seen.append(tensors["x"])
        play_case(child._on_bench().case, tensors, beyond=False)

    child, _ = make(play=play, cold=True)
    loop = child._load(artifact)
    child._put_normal()
    seen.clear()
    for _ in range(12):
        loop.device_seconds(1)
        loop.host_seconds(1)
    copies = len(child._copies)
    assert copies > 3
    assert seen[copies:] == seen[:-copies]
    assert len(set(seen)) == copies


def test_loaded_cubins_are_bounded_and_go_with_the_case(make: Make, artifact: dict[str, Any], tmp_path: Path) -> None:
    driver = RehearsalDriver(Script(), lambda *_: None)
    cubins = Cubins(driver)
    for place in range(MOST_LOADED + 5):
        path = tmp_path / f"{place}.cubin"
        path.write_text(f"k_one {place}")
        one = {**artifact, "library_path": str(path), "library_sha256": hashlib.sha256(path.read_bytes()).hexdigest()}
        for _ in range(2):
            cubins.kernel(Artifact.from_document(one), {"rows": 3}, rows=3)
    assert driver.log.count("load") == MOST_LOADED + 5
    assert len(cubins._modules) == MOST_LOADED
    child, handlers = make()
    measured(handlers, artifact)
    assert len(child._cubins._modules) == 1
    handlers["case"](document=CASE, work_dir=str(tmp_path))
    assert not child._cubins._modules
