"""Exact lookup: hit or explained miss, never a guess."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from catalogs import ANY_TOOLCHAIN, Entry, FormatError, Hit, LookupKey, Miss, Query, lookup


def key(**changes: Any) -> LookupKey:
    fields: dict[str, Any] = {
        "program_digest": "p" * 64,
        "dims": {"rows": 1024, "cols": 4096},
        "dtypes": {"x": "float32"},
        "device": "d" * 64,
        "toolchain": "t" * 64,
    }
    return LookupKey(**{**fields, **changes})


def entry(
    kernel: str = "rms_norm", trial: str = "trl_1", params: dict[str, float] | None = None, **changes: Any
) -> Entry:
    return Entry(
        key=key(**changes),
        kernel=kernel,
        params=params if params is not None else {"eps": 1e-6},
        candidate={"width": 32},
        plan={"private_scalars": 0},
        code={"source_sha256": "s"},
        protocol={"name": "finals"},
        numerics={"exp": "polynomial"},
        median_seconds=1e-5,
        samples_sha256="x",
        tie_set=(trial,),
        job_id="job_1",
        trial_id=trial,
    )


def query(toolchain: Any = "t" * 64, params: dict[str, float] | None = None, **changes: Any) -> Query:
    return Query(kernel="rms_norm", params=params or {"eps": 1e-6}, key=key(**changes), toolchain=toolchain)


def test_equal_key_hits() -> None:
    found = lookup([entry(dims={"rows": 1, "cols": 1}), entry(trial="trl_2")], query())
    assert isinstance(found, Hit)
    assert found.entry.trial_id == "trl_2"


def test_the_first_of_equal_keys_is_served() -> None:
    found = lookup([entry(trial="new"), entry(trial="old")], query())
    assert isinstance(found, Hit)
    assert found.entry.trial_id == "new"


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"dims": {"rows": 1024, "cols": 4095}}, "dims.cols"),
        ({"dtypes": {"x": "float16"}}, "dtypes.x"),
        ({"device": "e" * 64}, "device"),
        ({"toolchain": "u" * 64}, "toolchain"),
        ({"threads": 2}, "threads"),
        ({"metric": "e2e_batch"}, "metric"),
        ({"cache_context": "cold"}, "cache_context"),
        ({"aliasing": "x=y"}, "aliasing"),
        ({"program_digest": "q" * 64}, "program_digest"),
        ({"dims": {"rows": 1024}}, "dims.cols"),
        ({"dims": {"rows": 1024, "cols": 4096, "heads": 2}}, "dims.heads"),
    ],
)
def test_every_key_field_alone_makes_a_miss_that_names_it(changes: dict[str, Any], field: str) -> None:
    found = lookup([entry(**changes)], query())
    assert isinstance(found, Miss)
    assert list(found.nearest[0].differs) == [field]
    assert field in found.reason


def test_a_changed_param_is_named_instead_of_the_digest() -> None:
    found = lookup([entry(params={"eps": 1e-5}, program_digest="q" * 64)], query())
    assert isinstance(found, Miss)
    assert found.nearest[0].differs == {"params.eps": (1e-6, 1e-5)}


def test_any_toolchain_must_be_said_out_loud() -> None:
    other = entry(toolchain="u" * 64)
    assert isinstance(lookup([other], query()), Miss)
    assert isinstance(lookup([other], query(toolchain=ANY_TOOLCHAIN)), Hit)


def test_nearest_are_sorted_by_fields_then_distance_and_capped() -> None:
    entries = [entry(trial=f"t{n}", dims={"rows": 1024, "cols": 4096 << n}) for n in range(1, 9)]
    entries.insert(0, entry(trial="far", dims={"rows": 2, "cols": 2}, device="e" * 64))
    found = lookup(entries, query())
    assert isinstance(found, Miss)
    assert [m.entry.trial_id for m in found.nearest] == ["t1", "t2", "t3", "t4", "t5"]


def test_a_key_that_was_tuned_again_and_again_takes_one_place_the_newest() -> None:
    shapes = [4096 << n for n in range(1, 8)]
    entries = [entry(trial=f"{cols}-{age}", dims={"rows": 1024, "cols": cols}) for age in range(3) for cols in shapes]
    found = lookup(entries, query())
    assert isinstance(found, Miss)
    assert [miss.entry.trial_id for miss in found.nearest] == [f"{cols}-0" for cols in shapes[:5]]


def test_entries_that_differ_in_the_same_way_take_one_place() -> None:
    """Of another toolchain each, when any toolchain will do; of another program each, when the param explains it."""
    found = lookup(
        [entry(trial=f"t{n}", toolchain=f"{n}" * 64, dims={"rows": 1, "cols": 4096}) for n in range(4)],
        query(toolchain=ANY_TOOLCHAIN),
    )
    assert isinstance(found, Miss)
    assert [miss.entry.trial_id for miss in found.nearest] == ["t0"]
    said = [entry(trial=f"t{n}", toolchain=f"{n}" * 64, dims={"rows": 1, "cols": 4096}) for n in range(4)]
    told_apart = lookup(said, query())
    assert isinstance(told_apart, Miss)
    assert [miss.entry.trial_id for miss in told_apart.nearest] == ["t0", "t1", "t2", "t3"]


def test_another_kernel_is_not_near() -> None:
    found = lookup([entry(kernel="softmax", program_digest="q" * 64)], query())
    assert isinstance(found, Miss)
    assert found.nearest == ()
    assert "rms_norm" in found.reason


def test_entry_round_trip_and_digest() -> None:
    one = entry()
    again = Entry.from_document(one.document())
    assert again == one
    assert again.digest == one.digest
    assert dataclasses.replace(one, median_seconds=2e-5).digest != one.digest


def test_a_newer_or_broken_entry_is_refused_by_field() -> None:
    document = entry().document()
    with pytest.raises(FormatError, match="schema_version"):
        Entry.from_document({**document, "schema_version": 99})
    del document["plan"]
    with pytest.raises(FormatError, match="plan"):
        Entry.from_document(document)
    with pytest.raises(FormatError, match=r"key\.colour"):
        LookupKey.from_document({**key().document(), "colour": 1})


def test_key_digest_ignores_the_order_of_dims() -> None:
    assert key(dims={"cols": 4096, "rows": 1024}).digest == key().digest
    assert key(extra={"block": 1}).digest != key().digest
