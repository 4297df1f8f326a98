"""Which arms are timed, in which order: balanced over four rounds, nothing twice."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from search.errors import InvalidInput
from search.selection.replay import Arm, Replay, ReplayCase, arm_order, arms_of, check_rounds, sequence


def arm(code: str, trial: str = "t") -> Arm:
    return Arm(trial_id=trial, candidate={"width": 8}, plan={}, source_sha256=code, artifact_sha256=code)


def case(index: int, codes: dict[str, str], *, torch: bool = True) -> ReplayCase:
    incumbent = arm(codes["I"]) if "I" in codes else None
    arms = arms_of(reference=arm(codes["R"]), candidate=arm(codes["C"]), default=arm(codes["D"]), incumbent=incumbent)
    document = {"kernel": "softmax", "params": {}, "dims": {"rows": 8 + index}, "dtypes": {}}
    return ReplayCase(index=index, case=document, key_digest=f"{index:064x}", arms=arms, torch=torch)


def test_equal_code_is_timed_once_and_never_chained() -> None:
    found = case(0, {"R": "a", "C": "a", "D": "b", "I": "b"})
    assert {name: one.same_code_as for name, one in found.arms.items()} == {
        "C": None,
        "R": "C",
        "D": None,
        "I": "D",
        "A": None,
    }
    assert found.built == ("C", "R", "D", "I"), "what is said to be the same is built and compared in every round"
    assert found.measured == {"C", "D", "A", "T"}


def test_the_candidate_is_always_timed_itself_and_again() -> None:
    found = case(0, {"R": "a", "C": "a", "D": "a", "I": "a"}, torch=False)
    assert found.measured == {"C", "A"}


def test_the_four_rounds_in_full() -> None:
    assert [arm_order(number) for number in range(4)] == [
        ("R", "C", "T", "D", "I", "A"),
        ("C", "R", "T", "I", "A", "D"),
        ("T", "R", "C", "A", "D", "I"),
        ("T", "C", "R", "D", "I", "A"),
    ]


@given(st.integers(1, 5), st.integers(1, 4))
def test_every_order_is_balanced_and_every_arm_is_timed_once_a_round(cases: int, fours: int) -> None:
    codes = {"R": "r", "C": "c", "D": "d", "I": "i"}
    replay = Replay(rounds=4 * fours, cases=tuple(case(index, codes) for index in range(cases)))
    seen: Counter[tuple[bool, bool]] = Counter()
    for number in range(replay.rounds):
        order = sequence(replay, number)
        assert len(set(order)) == len(order) == 6 * cases
        # cases rotate left by the round, and each is timed as a whole
        first = [index for place, (index, _) in enumerate(order) if place % 6 == 0]
        assert first == [(number + place) % cases for place in range(cases)]
        for index in range(cases):
            arms = [arm for at, arm in order if at == index]
            kernels_first = max(arms.index("R"), arms.index("C")) < arms.index("T")
            assert kernels_first or arms[0] == "T"
            seen[arms.index("R") < arms.index("C"), kernels_first] += 1
            assert set(arms[3:]) == {"D", "I", "A"}
    assert len(seen) == 4
    assert set(seen.values()) == {fours * cases}


@pytest.mark.parametrize("rounds", [0, -4, 1, 2, 3, 5, 6, 68, 4.0, "4", True, None])
def test_rounds_that_cannot_be_balanced_are_refused(rounds: Any) -> None:
    with pytest.raises(InvalidInput, match="/rounds"):
        check_rounds(rounds)


def test_good_rounds() -> None:
    assert [check_rounds(rounds) for rounds in (4, 8, 64)] == [4, 8, 64]
