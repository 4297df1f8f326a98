"""Documents in words."""

from __future__ import annotations

import pytest

from tuner_service.cli import words

PLAIN = {
    "width": 32,
    "vector": 1,
    "unroll": 1,
    "partials": 1,
    "input": "reload",
    "fusion": "separate",
    "materialize": "output",
}


def test_a_plain_candidate_is_short() -> None:
    mapping = {"local_lanes": 32, "row_block": 1, "simd_scope": "none", "nontemporal": False}
    assert words.candidate_words({**PLAIN, "mapping": mapping}) == "W32 reload output simd:none"


def test_every_knob_that_is_not_plain_shows() -> None:
    mapping = {"local_lanes": 1, "row_block": 4, "simd_scope": "all", "nontemporal": True}
    candidate = {
        **PLAIN,
        "width": 8,
        "vector": 4,
        "unroll": 2,
        "partials": 8,
        "input": {"x": "cache", "a": "reload"},
        "fusion": "fused",
        "algorithm": "online",
        "mapping": mapping,
    }
    assert words.candidate_words(candidate) == "W8 a:reload,x:cache fused output online V4 U2 P8 L1 rows×4 simd:all nt"


def test_candidates_of_another_target_are_words_too() -> None:
    mapping = {"rows_per_block": 4, "min_blocks": 2}
    assert words.candidate_words({**PLAIN, "mapping": mapping}) == "W32 reload output R4 min_blocks2"


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (None, "–"),
        (4.2e-9, "4.2 ns"),
        (1.234e-6, "1.23 µs"),
        (9.5e-5, "95 µs"),
        (1.234e-4, "123 µs"),
        (0.0021, "2.1 ms"),
        (0.6, "600 ms"),
        (1.5, "1.5 s"),
        (151.0, "151 s"),
    ],
)
def test_seconds_have_a_unit_that_fits(seconds: float | None, text: str) -> None:
    assert words.seconds_words(seconds) == text


def test_outcomes_name_stage_and_reason() -> None:
    assert words.outcome_words({"outcome": "measured"}) == "measured"
    rejected = {"outcome": "rejected", "stage": "timeout", "reason": "no_result"}
    assert words.outcome_words(rejected) == "rejected: timeout/no_result"


def test_details_are_cut_and_stay_on_one_line() -> None:
    text = words.detail_words({"output": "first\nsecond" + "x" * 200, "budget": 64})
    assert "\n" not in text
    assert text.startswith("output=first second")
    assert text.endswith("…, budget=64")


@pytest.mark.parametrize(
    ("ratio", "text"),
    [
        (17.345, "17.34"),
        (1.0, "1.00"),
        (0.4249, "0.42"),
        (0.0999, "0.10"),
        (0.05, "0.05"),
        (0.0349, "0.035"),
        (0.0003412, "0.00034"),
        (0.0000123, "1.2e-05"),
        (0.0, "0.00"),
    ],
)
def test_a_small_ratio_never_reads_as_zero(ratio: float, text: str) -> None:
    assert words.times_words(ratio) == text
    assert words.ratio_words({"median": ratio, "min": 0.25, "max": 1}) == f"{text} [0.25, 1.00]"
