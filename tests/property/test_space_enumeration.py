"""Any legal space: no duplicates, size by arithmetic, and an order that the caller's order does not touch."""

import random

from hypothesis import given, settings
from hypothesis import strategies as st

from search.errors import InvalidInput
from search.program.resolve import resolve_case
from search.space.candidate import Candidate
from search.space.knobs import target_knobs
from search.space.resolve import resolve_space

CASES = [resolve_case({"kernel": name, "dims": {"rows": 7, "cols": 100}}) for name in ("softmax", "rms_norm")]


def space_or_problems(document, case, target):
    try:
        return resolve_space(document, case, target)
    except InvalidInput as refused:
        return refused.problems


documents = {
    target: st.fixed_dictionaries(
        {},
        optional={
            knob.name: st.lists(st.sampled_from(knob.domain), min_size=1, max_size=3, unique_by=repr)
            for knob in target_knobs(target)
        },
    )
    for target in ("cpu", "cuda")
}
cases_and_documents = st.sampled_from(["cpu", "cuda"]).flatmap(
    lambda target: st.tuples(st.just(target), st.sampled_from(CASES), documents[target])
)


@settings(max_examples=60, deadline=None)
@given(cases_and_documents, st.randoms(use_true_random=False))
def test_candidates_are_unique_counted_and_canonical(drawn, rng: random.Random):
    target, case, document = drawn
    space = space_or_problems(document, case, target)
    if isinstance(space, tuple):
        (problem,) = space
        if problem.field == "/space/algorithm":
            assert not set(document["algorithm"]) & set(problem.allowed)
        else:
            assert problem.value > 20_000
        return
    candidates = list(space.candidates())
    assert len(candidates) == len(set(candidates)) == space.size

    shuffled = {
        name: rng.sample(values, len(values)) for name, values in rng.sample(list(document.items()), len(document))
    }
    assert list(resolve_space(shuffled, case, target).candidates()) == candidates

    for candidate in rng.sample(candidates, min(5, len(candidates))):
        assert Candidate.from_document(candidate.document()) == candidate


anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5) | st.sampled_from(["cache", "x", 8]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3) | st.just("x"), inner, max_size=2),
    max_leaves=6,
)
names = st.sampled_from([knob.name for knob in target_knobs("cpu")]) | st.text(max_size=6)


@settings(max_examples=200, deadline=None)
@given(st.dictionaries(names, anything | st.lists(anything, max_size=4), max_size=4) | anything)
def test_arbitrary_json_is_a_space_or_invalid_input(document):
    space = space_or_problems(document, CASES[0], "cpu")
    if isinstance(space, tuple):
        assert space
        assert all(problem.field.startswith("/space") for problem in space)
    else:
        assert space.size >= 1
