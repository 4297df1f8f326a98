"""The Measurer on a GPU that is only rehearsed: everything but the GPU is real. No time here is a measurement."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from search.device.spec import DeviceSpec
from search.errors import Cancelled, DeviceContended, DeviceUnavailable, InvalidInput
from search.lowering.contract import Argument, Artifact, Launch
from search.measuring.gpu.rehearsed import rehearsed
from search.measuring.protocol import PHASES, MeasureItem
from search.measuring.run import Measurer
from search.outcome import Rejected
from search.program.case import Case
from search.program.resolve import resolve_case

ARGUMENTS = (
    Argument(name="x", kind="tensor"),
    Argument(name="y", kind="tensor"),
    Argument(name="rows", kind="dim"),
)
SYMBOLS = ("k_good", "k_other", "k_bad")
LAUNCH = Launch(threads_per_block=32, rows_per_block=4, dynamic_shared_bytes=0)


@pytest.fixture(scope="module")
def case() -> Case:
    return resolve_case({"kernel": "softmax", "dims": {"rows": 5, "cols": 65}})


@pytest.fixture(scope="module")
def item(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., MeasureItem]:
    cubin = tmp_path_factory.mktemp("cubins") / "batch.cubin"
    cubin.write_text("\n".join(SYMBOLS))

    def made(symbol: str, *, name: str = "", **other: Any) -> MeasureItem:
        fields: dict[str, Any] = {
            "source_sha256": symbol,
            "artifact_sha256": symbol,
            "library_path": str(cubin),
            "library_sha256": hashlib.sha256(cubin.read_bytes()).hexdigest(),
            "symbol": symbol,
            "arguments": ARGUMENTS,
            "launch": LAUNCH,
            "architecture": "sm_90",
        }
        return MeasureItem(id=name or symbol, artifact=Artifact(**{**fields, **other}))

    return made


@pytest.fixture
def measurer(tmp_path: Path, work_dir: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    monkeypatch.setattr("search.measuring.run.own_work_seconds", lambda case: 0.5)
    monkeypatch.setattr("search.measuring.run.CONTENDED_POLL_SECONDS", 0.01)

    @contextmanager
    def opened(
        *, cold: bool = False, seconds: float = 10.0, patience: float = 5.0, **script: Any
    ) -> Iterator[Measurer]:
        with Measurer(
            a_gpu(),
            work_dir,
            lock_dir=tmp_path,
            children=rehearsed(script, cache_context="cold" if cold else "warm"),
            child_timeout_seconds=seconds,
            contended_patience_seconds=patience,
        ) as one:
            yield one

    return opened


def a_gpu(uuid: str | None = "GPU-test") -> DeviceSpec:
    return DeviceSpec(
        id="nvidia-test:1",
        kind="nvidia-test",
        target="cuda",
        name="test",
        identity={},
        identity_digest="",
        toolchain={},
        toolchain_fingerprint="",
        available=True,
        architecture="sm_90",
        uuid=uuid,
    )


def test_checked_and_timed_and_culprits_named(case: Case, item: Any, measurer: Any, tmp_path: Path) -> None:
    """One session: good, poisoned, good again in a fresh process, damage, and what cannot be loaded."""
    with measurer(
        faults={"k_bad": "CUDA_ERROR_ILLEGAL_ADDRESS"}, scribbles=["k_other"], seconds_per_call={"k_good": 3e-4}
    ) as one:
        items = [item("k_good"), item("k_bad"), item("k_good", name="again"), item("k_other"), item("k_gone")]
        items.append(item("k_good", name="no_launch", launch=None))
        items.append(item("k_good", name="edited", library_sha256="0" * 64))
        good, bad, again, other, gone, bare, edited = one.search(case, items)
        assert (tmp_path / "GPU-test.lock").exists()
        for result in (good, again):
            assert result.rejection is None
            assert result.checks is not None
            assert result.checks.passed
            assert result.timing["device_batch"].median_seconds == pytest.approx(3e-4)
            assert result.timing["device_batch"].conditions["deviates"] is None
        assert [check.name for check in good.checks.inputs] == ["normal", "large_offset", "edge_rows"]
        assert all(check.guard_elements_checked >= 2 * 2 * 68 for check in good.checks.inputs)
        reasons = [(r.rejection.stage, r.rejection.reason) for r in (bad, other, gone, bare, edited)]
        assert reasons == [
            ("runtime", "device_fault"),
            ("correctness", "guard_overwritten"),
            ("runtime", "driver_refused"),
            ("runtime", "no_launch"),
            ("runtime", "artifact_changed"),
        ]
        assert bad.rejection.detail["code"] == "CUDA_ERROR_ILLEGAL_ADDRESS"
        every = one.replay(case, item("k_good"), phases=tuple(PHASES), protocol="search")
        assert list(every.timing) == list(PHASES)


def test_a_kernel_that_never_ends_is_killed_and_one_that_writes_nothing_is_wrong(
    case: Case, item: Any, measurer: Any
) -> None:
    with measurer(hangs=["k_bad"], idle=["k_other"], seconds=1.0) as one:
        hung, idle, good = one.check(case, [item("k_bad"), item("k_other"), item("k_good")])
    assert (hung.rejection.stage, hung.rejection.detail["while"]) == ("timeout", "checking")
    assert (idle.rejection.stage, idle.rejection.reason) == ("correctness", "unwritten_elements")
    assert good.rejection is None


def test_finals_rotate_and_take_out_who_fails(case: Case, item: Any, measurer: Any) -> None:
    with measurer(faults={"k_bad": "CUDA_ERROR_LAUNCH_FAILED"}, seconds_per_call={"k_other": 9e-4}) as one:
        items = [item("k_good"), item("k_bad"), item("k_other")]
        finals = one.finals(case, items, all_phases=["k_other"], protocol="search")
    assert finals.order == ("k_good", "k_other")
    assert finals.rejections["k_bad"].reason == "device_fault"
    assert finals.samples_seconds["k_other"] == pytest.approx((9e-4,) * 5)
    assert set(finals.extra_phases["k_other"]) == set(PHASES)
    assert [round_["deviates"] for round_ in finals.conditions] == [None] * 5


def test_others_on_the_device_are_waited_for(case: Case, item: Any, measurer: Any) -> None:
    asleep: list[list[int]] = [[], []]  # looks while the device is opened
    with measurer(strangers=[*asleep, [77], [77], []]) as one:
        (result,) = one.search(case, [item("k_good")])
    assert result.rejection is None
    with measurer(strangers=[*asleep, [77]], patience=0.2) as one:
        with pytest.raises(DeviceContended, match="77"):
            list(one.search(case, [item("k_good")]))
        asked = iter([False] * 3)
        with pytest.raises(Cancelled):
            list(one.search(case, [item("k_good")], cancelled=lambda: next(asked, True)))


def test_a_device_that_vanishes_between_probe_and_launch(case: Case, item: Any, measurer: Any) -> None:
    with measurer(absent="CUDA_ERROR_NO_DEVICE") as one, pytest.raises(DeviceUnavailable, match="NO_DEVICE"):
        list(one.search(case, [item("k_good")]))
    with measurer(faults={"k_bad": "CUDA_ERROR_DEVICE_UNAVAILABLE"}) as one:
        with pytest.raises(DeviceUnavailable, match="DEVICE_UNAVAILABLE"):
            list(one.search(case, [item("k_bad")]))
        (good,) = one.check(case, [item("k_good")])  # it came back
        assert good.rejection is None


def test_too_big_for_the_card_and_cold_buffers(case: Case, item: Any, measurer: Any) -> None:
    with measurer(memory_bytes=5000) as one:
        (result,) = one.check(case, [item("k_good")])
        refused = one.copy(case, 1 << 20, protocol="search")
    assert (result.rejection.stage, result.rejection.reason) == ("runtime", "out_of_device_memory")
    assert isinstance(refused, Rejected)
    assert refused.reason == "out_of_device_memory"
    with measurer(cold=True, last_level_cache_bytes=4000) as one:
        (result,) = one.search(case, [item("k_good")])
    assert result.rejection is None


def test_torch_is_sampled_beside_the_kernel(case: Case, item: Any, measurer: Any) -> None:
    with measurer() as one:
        samples = one.baseline(case, "torch_eager", against=item("k_good"), protocol="search")
    assert samples.error is None
    assert samples.checks is not None
    assert samples.checks.passed
    assert samples.kernel_seconds == pytest.approx((1e-4,) * 5)
    assert set(samples.timing) == set(PHASES)
    assert samples.timing["e2e_batch"].conditions["deviates"] is None


def test_a_compile_only_device_is_not_measured(work_dir: Path) -> None:
    with pytest.raises(InvalidInput, match="compile-only"):
        Measurer(a_gpu(uuid=None), work_dir)
