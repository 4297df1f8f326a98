"""Whether a reload stayed a reload, told from two kernels' machine code; and which candidate is the other one."""

from dataclasses import replace
from typing import Any

import pytest

from search.lowering.contract import CodeFacts
from search.lowering.merged import reload_merged
from search.space.candidate import Candidate, CudaMapping
from search.space.twin import cached_twin

CACHED = CodeFacts(
    source_sha256="s",
    artifact_sha256="cached",
    static_instructions=100,
    static_branches=2,
    stack_bytes=0,
    widest_vector_bits=32,
    code_bytes=1600,
    memory_instructions={"LDG": {"32": 2, "128": 2}, "STG": {"32": 4}},
)


@pytest.mark.parametrize(
    ("changes", "merged"),
    [
        ({"artifact_sha256": "cached"}, True),
        ({"memory_instructions": {"LDG": {"32": 4}}}, True),
        ({"memory_instructions": {"LDG": {"32": 12}}}, False),
        ({"memory_instructions": {"LDG": {"32": 3}}, "static_branches": 5}, False),
        ({"memory_instructions": {}}, True),
    ],
    ids=["the same code", "as many loads", "more loads", "fewer sites in rolled loops", "none at all"],
)
def test_loads_are_counted_beside_the_cached_twin(changes: dict[str, Any], merged: bool) -> None:
    fields = {"artifact_sha256": "reload", **changes}
    assert reload_merged(replace(CACHED, **fields), CACHED) is merged


def test_code_that_counts_no_loads_says_nothing() -> None:
    cpu = replace(CACHED, memory_instructions=None)
    assert reload_merged(cpu, cpu) is None


def test_some_loads_of_a_reload_are_merged_if_the_text_has_more_of_them() -> None:
    """Three phases of a pass and a tail plan 6 loads; 4 are there: more than the twin's 2, and two are gone."""
    twin = replace(CACHED, memory_instructions={"LDG": {"32": 2}})
    partly = replace(twin, artifact_sha256="reload", memory_instructions={"LDG": {"32": 4}}, planned_load_sites=6)
    assert reload_merged(partly, twin) is True
    assert reload_merged(partly) is True
    whole = replace(partly, memory_instructions={"LDG": {"32": 6}})
    assert reload_merged(whole, twin) is False
    assert reload_merged(whole) is None


def candidate(**knobs: Any) -> Candidate:
    plain = {"vector": 1, "unroll": 1, "partials": 1, "input": "reload", "fusion": "separate", "materialize": "private"}
    return Candidate(width=32, mapping=CudaMapping(rows_per_block=4), **{**plain, **knobs})


def test_the_twin_caches_every_input_and_differs_in_nothing_else() -> None:
    assert cached_twin(candidate()) == candidate(input="cache")
    assert cached_twin(candidate(input=(("r", "cache"), ("x", "reload")))) == candidate(input="cache")
    assert cached_twin(candidate(input="cache")) is None
    assert cached_twin(candidate(input="cache", fusion="fused")) is None
