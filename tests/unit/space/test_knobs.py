"""Domains and default lists exactly as the semantics page tables them."""

import pytest

from search.space.candidate import Candidate, CpuMapping, CudaMapping
from search.space.knobs import KNOBS, default_lists, target_knobs

CPU = {
    "width": [8, 16, 32, 64],
    "algorithm": ["written"],
    "input": ["reload", "cache"],
    "fusion": ["separate"],
    "materialize": ["private", "output"],
    "vector": [1],
    "unroll": [1],
    "partials": [1],
    "local_lanes": ["width"],
    "row_block": [1],
    "simd_scope": ["none", "main", "all"],
    "nontemporal": [False, True],
}
CUDA = {
    "width": [32, 64, 128, 256, 512, 1024],
    "algorithm": ["written"],
    "input": ["reload", "cache"],
    "fusion": ["separate"],
    "materialize": ["private", "recompute"],
    "vector": [1, 4],
    "unroll": [1],
    "partials": [1],
    "rows_per_block": [1, 4],
    "min_blocks": [0],
}
DOMAINS = {
    "width": [1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024],
    "algorithm": ["written", "online", "welford"],
    "input": ["reload", "cache"],
    "fusion": ["separate", "fused"],
    "materialize": ["private", "output", "recompute"],
    "vector": [1, 2, 4, 8, 16],
    "unroll": list(range(1, 17)),
    "partials": [1, 2, 4, 8],
    "row_block": [1, 2, 4],
    "simd_scope": ["none", "main", "all"],
    "nontemporal": [False, True],
    "rows_per_block": [1, 2, 4, 8, 16, 32],
    "min_blocks": [0, 1, 2, 4, 8],
}


def test_default_lists():
    assert default_lists("cpu") == CPU
    assert default_lists("cuda") == CUDA


@pytest.mark.parametrize("name", DOMAINS)
def test_domains(name):
    (knob,) = [knob for knob in KNOBS if knob.name == name]
    assert list(knob.domain) == DOMAINS[name]


@pytest.mark.parametrize("knob", KNOBS, ids=lambda knob: knob.name)
def test_defaults_and_inert_values_are_legal(knob):
    for values in knob.defaults.values():
        assert all(knob.allowed(value) for value in values)
    assert knob.allowed(knob.inert)


def test_a_bool_is_no_number_and_a_float_no_integer():
    width, nontemporal = (next(k for k in KNOBS if k.name == name) for name in ("width", "nontemporal"))
    assert not width.allowed(True)
    assert not width.allowed(8.0)
    assert not nontemporal.allowed(1)
    assert not width.allowed([8])


@pytest.mark.parametrize(("target", "mapping"), [("cpu", CpuMapping), ("cuda", CudaMapping)])
def test_each_knob_is_a_field_of_the_candidate(target, mapping):
    knobs = target_knobs(target)
    assert {k.name for k in knobs if k.in_mapping} == set(mapping.__dataclass_fields__)
    assert {k.name for k in knobs if not k.in_mapping} == set(Candidate.__dataclass_fields__) - {"mapping"}
