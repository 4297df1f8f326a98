"""Order, size and uniqueness of candidates."""

import itertools

from search.space.candidate import Candidate, CpuMapping
from search.space.resolve import resolve_space


def test_the_default_space_of_softmax_is_the_product(kernel_case):
    space = resolve_space({}, kernel_case("softmax"), "cpu")
    wanted = [
        Candidate(
            width=width,
            input=word,
            fusion="separate",
            materialize=materialize,
            vector=1,
            unroll=1,
            partials=1,
            mapping=CpuMapping(local_lanes=width, row_block=1, simd_scope=scope, nontemporal=stream),
        )
        for width, word, materialize, scope, stream in itertools.product(
            (8, 16, 32, 64), ("reload", "cache"), ("private", "output"), ("none", "main", "all"), (False, True)
        )
    ]
    assert list(space.candidates()) == wanted
    assert space.size == len(wanted) == 96


def test_width_and_its_own_number_are_one_value(kernel_case):
    space = resolve_space({"width": [8, 16], "local_lanes": ["width", 16, 1]}, kernel_case("softmax"), "cpu")
    lanes = [(c.width, c.mapping.local_lanes) for c in space.candidates()]
    assert sorted(set(lanes)) == [(8, 1), (8, 8), (8, 16), (16, 1), (16, 16)]
    assert space.size == len(lanes) == len(set(space.candidates()))


def test_cuda_candidates_have_cuda_mappings(kernel_case):
    space = resolve_space({}, kernel_case("softmax"), "cuda")
    candidates = list(space.candidates())
    assert len(candidates) == space.size == 6 * 2 * 2 * 2 * 2
    assert {c.target for c in candidates} == {"cuda"}


def test_enumeration_is_lazy(kernel_case):
    space = resolve_space({"unroll": list(range(1, 17)), "partials": [1, 2, 4, 8]}, kernel_case("softmax"), "cpu")
    assert next(space.candidates()).width == 8
    assert space.size == 96 * 64
