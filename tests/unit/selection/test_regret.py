"""Regret: the score's choice against the in-search minimum."""

import pytest

from search.selection.regret import predict


def test_regret_is_the_choices_median_over_the_minimum_less_one(make):
    prediction = predict([make(0, 1.5, score=3.0), make(1, 1.0, score=4.0), make(2, 9.0, score=None)])
    assert prediction is not None
    assert prediction.trial == "t0"
    assert prediction.regret == pytest.approx(0.5)


def test_equal_scores_are_taken_in_canonical_order(make):
    prediction = predict([make(2, 1.0, score=3.0), make(1, 2.0, score=3.0)])
    assert prediction is not None
    assert (prediction.trial, prediction.regret) == ("t1", 1.0)


def test_the_score_is_blameless_when_it_finds_the_fastest(make):
    prediction = predict([make(0, 1.0, score=0.0), make(1, 2.0, score=1.0)])
    assert prediction is not None
    assert prediction.regret == 0.0


def test_a_default_outside_the_space_is_neither_choice_nor_minimum(make):
    prediction = predict([make(0, 2.0, score=5.0), make(1, 1.0, score=1.0, is_default=True, in_space=False)])
    assert prediction is not None
    assert (prediction.trial, prediction.regret) == ("t0", 0.0)


def test_without_a_score_there_is_no_choice(make):
    assert predict([]) is None
    assert predict([make(0, 1.0)]) is None
