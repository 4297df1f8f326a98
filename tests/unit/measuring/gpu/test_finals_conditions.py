"""Conditions of finals are those of the rounds that count; a child's answers are played."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from search.children.child import ChildExit, ChildGone
from search.lowering.contract import Artifact
from search.measuring.finals import measure_finals
from search.measuring.progress import FINALS
from search.measuring.protocol import PROTOCOLS, MeasureItem
from search.measuring.workbench import Timeouts, Workbench
from search.outcome import Rejected
from search.program.resolve import resolve_case

ROUNDS = PROTOCOLS["search"].samples
FAULT = Rejected(stage="runtime", reason="device_fault").document()


def items(*names: str) -> list[MeasureItem]:
    artifact = Artifact(
        source_sha256="s", artifact_sha256="a", library_path="", library_sha256="", symbol="k", arguments=()
    )
    return [MeasureItem(id=name, artifact=artifact) for name in names]


def rounds(word: str, count: int, contenders: int) -> Iterator[dict[str, Any]]:
    for turn in range(count):
        yield {"event": "round", "seconds": [1.0] * contenders, "conditions": {"states": [], "round": f"{word} {turn}"}}


class Played:
    """A workbench whose child answers what is written here; an exception is how it ends."""

    def __init__(self, answers: Iterator[Any]) -> None:
        self._answers = answers
        self.used = True

    def open(self, *_: Any) -> None:
        pass

    def tell(self, *_: Any, **__: Any) -> None:
        pass

    def answer(self, *_: Any) -> Any:
        found = next(self._answers)
        if isinstance(found, Exception):
            raise found
        return found

    def discard(self) -> None:
        pass  # whatever dies here is of earlier work


def test_rounds_that_were_thrown_away_leave_no_conditions() -> None:
    """A finalist fails after one round; then the child dies of what ran in it before, after two."""
    gone = ChildGone(ChildExit(signal_name="SIGSEGV", exit_code=None, log_tail="", progress=FINALS))

    def answers() -> Iterator[Any]:
        yield from rounds("fault", 1, 2)
        yield {"event": "fault", "index": 1, "rejection": FAULT}
        yield from rounds("lost", 2, 1)
        yield gone
        yield from rounds("kept", ROUNDS, 1)
        yield {"event": "done", "calls_per_sample": [1]}

    found = finals(Played(answers()), "a", "b")
    assert found.order == ("a",)
    assert found.samples_seconds == {"a": (1.0,) * ROUNDS}
    assert [one["round"] for one in found.conditions] == [f"kept {turn}" for turn in range(ROUNDS)]


def test_no_rounds_no_conditions() -> None:
    def answers() -> Iterator[Any]:
        yield from rounds("fault", 1, 1)
        yield {"event": "fault", "index": 0, "rejection": FAULT}

    found = finals(Played(answers()), "a")
    assert (found.order, found.samples_seconds, found.conditions) == ((), {}, ())


def finals(played: Played, *names: str) -> Any:
    case = resolve_case({"kernel": "softmax", "dims": {"rows": 4, "cols": 8}})
    bench: Workbench = played  # type: ignore[assignment]
    return measure_finals(
        bench,
        case,
        items(*names),
        all_phases=[],
        protocol=PROTOCOLS["search"],
        timeouts=Timeouts(),
        cancelled=lambda: False,
    )


@pytest.mark.parametrize("place", [0, 1])
def test_what_is_taken_out_is_named(place: int) -> None:
    def answers() -> Iterator[Any]:
        yield {"event": "fault", "index": place, "rejection": FAULT}
        yield from rounds("kept", ROUNDS, 1)
        yield {"event": "done", "calls_per_sample": [3]}

    found = finals(Played(answers()), "a", "b")
    assert list(found.rejections) == ["ab"[place]]
    assert len(found.conditions) == ROUNDS
