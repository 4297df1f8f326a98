"""Leader, tie set and tie-break from interleaved finals."""

import pytest

from search.selection.winner import NOTHING, select

ROUNDS = 15


def around(seconds: float, *, scale: float = 0.0) -> list[float]:
    """Samples that stray by ``scale`` to either side in turn (the median round is exact)."""
    return [seconds * (1 + scale * (r % 3 - 1)) for r in range(ROUNDS)]


def test_the_leader_alone_wins_when_every_other_is_clearly_slower(make):
    selection = select({"t0": around(2.0), "t1": around(1.0), "t2": around(1.5)}, [make(0, 1), make(1, 1), make(2, 1)])
    assert (selection.leader, selection.tie_set, selection.winner) == ("t1", ("t1",), "t1")


def test_the_search_medians_no_longer_count(make):
    selection = select({"t0": around(2.0), "t1": around(1.0)}, [make(0, 0.1), make(1, 9.0)])
    assert selection.winner == "t1"


def test_a_paired_interval_that_includes_one_ties_although_the_median_is_higher(make):
    leader = [1.0] * ROUNDS
    near = [1.01 if r % 3 else 0.99 for r in range(ROUNDS)]  # slower in 10 of 15 rounds: not significant
    far = [1.01 if r != 7 else 0.99 for r in range(ROUNDS)]  # slower in 14 of 15 rounds
    contenders = [make(0, 1), make(1, 1), make(2, 1)]
    selection = select({"t0": far, "t1": near, "t2": leader}, contenders)
    assert selection.leader == "t2"
    assert selection.tie_set == ("t1", "t2")
    assert selection.winner == "t1"


def test_pairing_separates_what_drift_would_hide(make):
    drift = [1.0 + 0.1 * r for r in range(ROUNDS)]
    slower = [1.02 * seconds for seconds in drift]
    assert select({"t0": slower, "t1": drift}, [make(0, 1), make(1, 1)]).tie_set == ("t1",)


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ({"private_scalars": 4, "stack_bytes": 0}, {"private_scalars": 3, "stack_bytes": 999}),
        ({"registers": 40, "stack_bytes": 0}, {"registers": 39, "stack_bytes": 8}),
        ({"stack_bytes": 64, "input": "reload"}, {"stack_bytes": 32, "input": "cache"}),
        ({"input": "cache"}, {"input": "reload"}),
    ],
)
def test_ties_go_to_fewer_private_scalars_then_registers_and_stack_then_reload(make, first, second):
    same = {"t0": around(1.0), "t1": around(1.0)}
    selection = select(same, [make(0, 1, **first), make(1, 1, **second)])
    assert selection.winner == "t1"
    assert selection.tie_set == ("t1", "t0")


def test_the_last_tie_break_is_canonical_order(make):
    same = {"t3": around(1.0), "t2": around(1.0)}
    assert select(same, [make(3, 1), make(2, 1)]).tie_set == ("t2", "t3")


def test_an_equal_code_trial_takes_part_in_the_tie_break_by_its_representatives_samples(make):
    contenders = [
        make(0, 1, code="same", inherits=True, private_scalars=9),
        make(1, 1, code="same", private_scalars=5),
        make(2, 1, code="same", inherits=True, private_scalars=2),
        make(3, 1, private_scalars=3),
    ]
    selection = select({"t1": around(1.0), "t3": around(1.0)}, contenders)
    assert selection.winner == "t2"
    assert selection.tie_set == ("t2", "t3"), "one trial for each distinct code"


def test_a_default_outside_the_space_never_wins_nor_ties(make):
    contenders = [make(0, 1), make(1, 1, is_default=True, in_space=False)]
    selection = select({"t0": around(2.0), "t1": around(1.0)}, contenders)
    assert (selection.leader, selection.tie_set, selection.winner) == ("t0", ("t0",), "t0")


def test_code_measured_as_the_outside_default_wins_for_the_trial_of_the_space(make):
    contenders = [
        make(0, 1),
        make(1, 1, code="same", inherits=True),
        make(9, 1, code="same", is_default=True, in_space=False),
    ]
    selection = select({"t0": around(2.0), "t9": around(1.0)}, contenders)
    assert (selection.leader, selection.winner) == ("t9", "t1")


def test_the_reference_is_chosen_the_same_way_among_reloads(make):
    contenders = [make(0, 1), make(1, 1, input="reload"), make(2, 1, input="reload"), make(3, 1, input="reload")]
    samples = {"t0": around(1.0), "t1": around(3.0), "t2": around(2.0), "t3": around(2.0)}
    assert select(samples, contenders).winner == "t0"
    reference = select(samples, contenders, reload_only=True)
    assert (reference.tie_set, reference.winner) == (("t2", "t3"), "t2")


def test_a_rejected_finalists_samples_do_not_count(make):
    assert select({"t0": around(1.0), "t1": around(2.0)}, [make(1, 1)]).winner == "t1"


def test_too_few_rounds_tell_nothing_apart(make):
    assert select({"t0": [2.0] * 5, "t1": [1.0] * 5}, [make(0, 1), make(1, 1)]).tie_set == ("t0", "t1")
    assert select({"t0": [2.0] * 6, "t1": [1.0] * 6}, [make(0, 1), make(1, 1)]).tie_set == ("t1",)


def test_no_finalist_gives_nothing(make):
    assert select({}, [make(0, 1)]) == NOTHING
    assert select({"t0": around(1.0)}, [make(0, 1)], reload_only=True) == NOTHING
