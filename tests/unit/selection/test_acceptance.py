"""The arithmetic of a verdict, worked out by hand."""

from __future__ import annotations

from typing import Any

import pytest

from search.selection.acceptance import judge, losses, reasons_of
from search.selection.replay import Arm, Replay, ReplayCase, arms_of

ROUNDS = 4


def arm(code: str) -> Arm:
    return Arm(trial_id=code, candidate={}, plan={}, source_sha256=code, artifact_sha256=code)


def replay_of(*, reference: str = "r", default: str = "d", incumbent: str | None = None, torch: bool = True) -> Replay:
    arms = arms_of(
        reference=arm(reference),
        candidate=arm("c"),
        default=arm(default),
        incumbent=arm(incumbent) if incumbent else None,
    )
    document = {"kernel": "softmax", "params": {}, "dims": {"rows": 8}, "dtypes": {}}
    one = ReplayCase(index=0, case=document, key_digest="0" * 64, arms=arms, torch=torch)
    return Replay(rounds=ROUNDS, cases=(one,))


def values(**columns: list[float]) -> dict[Any, Any]:
    """arm → device_batch of each round; e2e_batch is ten times as much."""
    return {
        (number, 0, arm): {"device_batch": seconds, "e2e_batch": 10 * seconds}
        for arm, column in columns.items()
        for number, seconds in enumerate(column)
    }


FLAT = {"C": [1.0] * 4, "A": [1.0] * 4, "R": [1.0] * 4, "D": [1.0] * 4, "T": [1.0] * 4}


def test_a_faster_candidate_is_ok_with_its_ratios_and_classes() -> None:
    columns = {**FLAT, "R": [1.5, 2.0, 1.2, 1.8], "D": [3.0, 0.5, 2.0, 2.0], "A": [1.0, 1.01, 0.97, 1.0]}
    (result,) = judge(replay_of(), values(**columns))
    against = result.document()["metrics"]["device_batch"]
    assert against["reference"] == {
        "class": "positive",
        "ratio_median": (1.5 + 1.8) / 2,
        "ratio_min": 1.2,
        "ratio_max": 2.0,
    }
    assert against["default"]["class"] == "mixed"
    assert against["incumbent"] is None
    assert against["torch"]["class"] == "mixed"  # a ratio of exactly 1 is neither above nor below
    assert result.spread == abs(0.97 / 1.0 - 1)
    assert result.margin == result.spread > 0.02
    assert (result.state, result.reasons) == ("ok", ())


@pytest.mark.parametrize("opponent", ["R", "D", "I"])
def test_being_slower_than_any_deciding_opponent_by_more_than_the_margin_is_worse(opponent: str) -> None:
    columns = {**FLAT, "I": [1.0] * 4, opponent: [0.97] * 4}
    (result,) = judge(replay_of(incumbent="i"), values(**columns))
    assert result.state == "worse"
    assert {"R": "reference", "D": "default", "I": "incumbent"}[opponent] in result.reasons[0]
    assert reasons_of([result]) == result.reasons


def test_within_the_margin_is_ok_and_at_its_edge_too() -> None:
    (result,) = judge(replay_of(), values(**{**FLAT, "R": [0.98] * 4}))
    assert result.margin == 0.02
    assert result.state == "ok"
    # the case's own noise widens the margin
    (noisy,) = judge(replay_of(), values(**{**FLAT, "R": [0.91] * 4, "A": [1.0, 1.1, 1.0, 1.0]}))
    assert noisy.margin == abs(1.1 / 1.0 - 1)
    assert noisy.state == "ok"


def test_torch_is_reported_and_never_decides() -> None:
    (result,) = judge(replay_of(), values(**{**FLAT, "T": [0.1] * 4}))
    assert result.state == "ok"
    assert result.document()["metrics"]["device_batch"]["torch"]["class"] == "negative"
    assert any("torch is faster" in loss for loss in losses([result]))


def test_too_much_noise_is_inconclusive_whatever_the_ratios() -> None:
    (result,) = judge(replay_of(), values(**{**FLAT, "R": [5.0] * 4, "A": [1.0, 1.0, 0.8, 1.0]}))
    assert result.state == "inconclusive"
    assert "inconclusive" in result.reasons[0]
    # at exactly the limit it still counts
    (edge,) = judge(replay_of(), values(**{**FLAT, "A": [1.0, 1.0, 0.85, 1.0]}))
    assert edge.spread == pytest.approx(0.15)


def test_identical_code_is_a_control_with_ratio_one() -> None:
    columns = {name: column for name, column in FLAT.items() if name != "R"}
    (result,) = judge(replay_of(reference="c"), values(**columns))
    for metric in ("device_batch", "e2e_batch"):
        found = result.document()["metrics"][metric]["reference"]
        assert found == {"class": "control", "ratio_median": 1.0, "ratio_min": 1.0, "ratio_max": 1.0}


def test_an_arm_with_another_arms_code_takes_its_values() -> None:
    columns = {name: column for name, column in FLAT.items() if name != "D"}
    (result,) = judge(replay_of(reference="x", default="x"), values(**{**columns, "R": [2.0, 2.1, 2.2, 2.3]}))
    against = result.document()["metrics"]["device_batch"]
    assert against["default"] == against["reference"]
    assert against["default"]["class"] == "positive"


def test_only_device_batch_decides() -> None:
    found = values(**FLAT)
    for number in range(ROUNDS):
        found[(number, 0, "R")] = {"device_batch": 1.0, "e2e_batch": 0.1}
    (result,) = judge(replay_of(), found)
    assert result.state == "ok"
    assert result.document()["metrics"]["e2e_batch"]["reference"]["class"] == "negative"


def test_a_missing_record_is_no_result() -> None:
    found = values(**FLAT)
    del found[(3, 0, "D")]
    with pytest.raises(KeyError):
        judge(replay_of(), found)


def test_without_torch_there_is_no_comparison_with_it() -> None:
    columns = {name: column for name, column in FLAT.items() if name != "T"}
    (result,) = judge(replay_of(torch=False), values(**columns))
    assert result.document()["metrics"]["device_batch"]["torch"] is None
