"""Finalists: within the floor of the best (≤ 8), reloads within the floor of the best reload (≤ 4), the default."""

from search.selection.contender import is_reload
from search.selection.finalists import Finalists, choose_finalists


def test_those_within_the_floor_of_the_best_are_finalists_up_to_and_including_the_limit(make):
    trials = [make(0, 1.0), make(1, 1.05), make(2, 1.0500001), make(3, 1.2)]
    assert choose_finalists(trials, floor=0.05).trials == ("t0", "t1")


def test_at_most_eight_and_the_slowest_of_the_near_ones_are_left_out(make):
    trials = [make(n, 1.0 + 0.001 * (20 - n)) for n in range(20)]
    assert choose_finalists(trials, floor=0.25).trials == tuple(f"t{n}" for n in range(12, 20))


def test_two_finalists_at_least_although_the_second_is_far_away(make):
    assert choose_finalists([make(0, 9.0), make(1, 1.0), make(2, 5.0)], floor=0.01).trials == ("t1", "t2")
    assert choose_finalists([make(0, 9.0)], floor=0.01).trials == ("t0",)


def test_best_reloads_are_finalists_by_the_floor_of_the_best_reload(make):
    caches = [make(n, 1.0 + n / 1000) for n in range(3)]
    reloads = [make(10 + n, 5.0 + n / 1000, input="reload") for n in range(6)]
    far = make(20, 6.0, input="reload")
    chosen = choose_finalists([*caches, *reloads, far], floor=0.05)
    assert chosen.trials == ("t0", "t1", "t2", "t10", "t11", "t12", "t13")
    assert chosen.provisional == ("t0", "t10")


def test_a_fused_or_partly_cached_candidate_is_no_reload(make):
    assert is_reload(make(0, 1.0, input="reload").candidate)
    assert not is_reload(make(0, 1.0, input="reload", fusion="fused").candidate)
    assert is_reload(make(0, 1.0, input=(("weight", "reload"), ("x", "reload"))).candidate)
    assert not is_reload(make(0, 1.0, input=(("weight", "cache"), ("x", "reload"))).candidate)


def test_the_default_is_a_finalist_however_slow_and_although_the_space_does_not_hold_it(make):
    trials = [make(0, 1.0), make(1, 1.0), make(2, 50.0, is_default=True, in_space=False)]
    chosen = choose_finalists(trials, floor=0.01)
    assert chosen.trials == ("t0", "t1", "t2")
    assert chosen.provisional == ("t0", "t2")


def test_a_default_outside_the_space_sets_no_limit_and_does_not_count_among_the_two(make):
    trials = [make(0, 2.0), make(1, 3.0), make(2, 1.0, is_default=True, in_space=False)]
    assert choose_finalists(trials, floor=0.01).trials == ("t0", "t1", "t2")


def test_identical_code_is_one_finalist_and_the_one_that_was_timed_runs(make):
    trials = [
        make(0, 1.0, code="same", inherits=True),
        make(1, 1.0, code="same"),
        make(2, 1.0, code="same", inherits=True, is_default=True),
        make(3, 1.001),
    ]
    assert choose_finalists(trials, floor=0.01).trials == ("t1", "t3")


def test_when_the_timed_one_was_rejected_later_the_first_that_inherited_runs(make):
    trials = [make(5, 1.0, code="same", inherits=True), make(4, 1.0, code="same", inherits=True)]
    assert choose_finalists(trials, floor=0.01).trials == ("t4",)


def test_code_of_an_outside_default_that_a_trial_of_the_space_shares_is_in_the_space(make):
    trials = [make(0, 1.0, code="same", inherits=True), make(9, 1.0, code="same", is_default=True, in_space=False)]
    assert choose_finalists(trials, floor=0.01).trials == ("t9",)


def test_nothing_of_the_space_measured_gives_no_finals(make):
    assert choose_finalists([], floor=0.01) == Finalists(trials=())
    assert choose_finalists([make(0, 1.0, is_default=True, in_space=False)], floor=0.01) == Finalists(trials=())


def test_an_unknown_floor_admits_as_many_as_the_largest(make):
    trials = [make(0, 1.0), make(1, 1.2), make(2, 1.24), make(3, 1.26)]
    assert choose_finalists(trials, floor=None) == choose_finalists(trials, floor=0.25)
    assert choose_finalists(trials, floor=None).trials == ("t0", "t1", "t2")


def test_equal_medians_are_taken_in_canonical_order(make):
    trials = [make(n, 1.0) for n in reversed(range(12))]
    assert choose_finalists(trials, floor=0.01).trials == tuple(f"t{n}" for n in range(8))
