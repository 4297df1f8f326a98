"""A service that rests ends what is idle, and nothing that measures."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from search.device.spec import DeviceSpec
from search.ledger import CaseState
from search.perform import Tools
from search.steps import Measure
from tuner_service.workers import toolbox
from tuner_service.workers.toolbox import Toolbox

STATE = CaseState(id="case", trials=(), baselines_wanted=())


class Held:
    """A measurer that is only counted."""

    made: list[Held]

    def __init__(self, *_: Any, **__: Any) -> None:
        self.closed = 0
        Held.made.append(self)

    def close(self) -> None:
        self.closed += 1


def a_device() -> DeviceSpec:
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
        uuid="GPU-1",
    )


def test_a_measurer_in_use_outlives_a_rest(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    Held.made = []

    def perform(step: Any, state: Any, case: Any, tools: Tools) -> Iterator[Any]:
        measurer: Any = tools.measurer
        for turn in range(3):
            assert not measurer.closed
            yield turn

    monkeypatch.setattr(toolbox, "Measurer", Held)
    monkeypatch.setattr(toolbox, "perform", perform)
    device = a_device()
    tools = Toolbox(
        devices=lambda: {device.id: device},
        artifacts=tmp_path,
        work=tmp_path,
        child_timeout_seconds=1.0,
        overlap_watch=lambda: lambda: False,
    )
    words: dict[str, Any] = {"device_id": device.id, "cancelled": lambda: False}
    step: Any = Measure.__new__(Measure)
    events = tools.perform(step, STATE, None, **words)  # type: ignore[arg-type]
    assert next(events) == 0
    tools.rest()
    assert list(events) == [1, 2]
    assert list(tools.perform(step, STATE, None, **words)) == [0, 1, 2]  # type: ignore[arg-type]
    assert [one.closed for one in Held.made] == [0], "one measurer serves a device as long as nobody rests"
    tools.rest()
    assert [one.closed for one in Held.made] == [1]
    events = tools.perform(step, STATE, None, **words)  # type: ignore[arg-type]
    next(events)
    tools.close()
    assert [one.closed for one in Held.made] == [1, 1]
