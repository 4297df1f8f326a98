"""The figures of the semantics page, "Access demand"."""

from dataclasses import replace

import pytest

from search.planning.build import build_schedule
from search.planning.demand import Access, demand

KERNELS = ["softmax", "rms_norm", "layer_norm"]


def lane(case, candidate):
    return demand(build_schedule(case, candidate)).per_lane


def difference(new, old):
    return {name: value - vars(old)[name] for name, value in vars(new).items() if value != vars(old)[name]}


@pytest.mark.parametrize("kernel", KERNELS)
def test_cache_minus_reload(kernel, kernel_case, cpu):
    case = kernel_case(kernel, cols=4096)
    reload, cache = (lane(case, cpu(512, vector=4, input=word)) for word in ("reload", "cache"))
    assert difference(cache, reload) == {
        "scalar_rounds": 8,
        "global_read_bytes": -32,
        "private_read_bytes": 64,
        "private_write_bytes": 32,
    }


@pytest.mark.parametrize("kernel", KERNELS)
def test_fused_minus_reload(kernel, kernel_case, cpu):
    case = kernel_case(kernel, cols=4096)
    reload = lane(case, cpu(512, vector=4))
    fused = lane(case, cpu(512, vector=4, input="cache", fusion="fused"))
    assert difference(fused, reload) == {
        "global_read_bytes": -32,
        "private_read_bytes": 32,
        "private_write_bytes": 32,
    }


def test_fusing_saves_65536_work_units_on_64_by_256(kernel_case, cpu):
    case = kernel_case("rms_norm", rows=64, cols=256)

    def work(fusion):
        program = demand(build_schedule(case, cpu(8, input="cache", fusion=fusion))).per_program
        return case.rows * sum(value for name, value in vars(program).items() if name.endswith("_bytes"))

    assert work("separate") - work("fused") == 65_536


def test_without_later_consumer_the_snapshots_write_vanishes_too(program_case, cpu):
    case = program_case(
        {"reduce": {"into": "total", "op": "sum", "over": ["col"], "value": "x"}},
        {"store": {"tensor": "s", "over": [], "value": "total"}},
    )
    reload = lane(case, cpu())
    assert lane(case, cpu(input=(("x", "cache"),), fusion="fused")) == reload
    assert difference(lane(case, cpu(input=(("x", "cache"),))), reload) == {
        "scalar_rounds": 2,
        "private_read_bytes": 8,
        "private_write_bytes": 8,
    }


def test_softmax_counted_by_hand(kernel_case, cpu):
    counted = demand(build_schedule(kernel_case("softmax", cols=10), cpu(4)))
    # Three traversals of 10 elements, stripe 3; x read in two of them, e written and read once, y written.
    assert counted.available
    assert counted.per_program == Access(
        scalar_rounds=30,
        collective_rounds=4,
        global_read_bytes=80,
        global_write_bytes=40,
        private_read_bytes=40,
        private_write_bytes=40,
    )
    assert counted.per_lane == Access(
        scalar_rounds=9,
        collective_rounds=4,
        global_read_bytes=24,
        global_write_bytes=12,
        private_read_bytes=12,
        private_write_bytes=12,
    )


def test_each_loop_rounds_on_its_own(program_case, cpu):
    case = program_case(
        {"reduce": {"into": "a", "op": "sum", "over": ["col"], "value": "x"}},
        {"reduce": {"into": "b", "op": "sum", "over": ["col", "k"], "value": "t3"}},
        {"store": {"tensor": "s", "over": [], "value": "a + b"}},
        cols=5,
        ks=5,
    )
    assert lane(case, cpu(4)).scalar_rounds == 2 + 7


def test_both_branches_of_a_select_count_and_row_scalars_do_not(program_case, cpu):
    case = program_case({"store": {"tensor": "y", "over": ["col"], "value": "select(bias > 0, x, r)"}}, cols=8)
    counted = lane(case, cpu(8))
    assert (counted.global_read_bytes, counted.global_write_bytes) == (8, 4)


def test_a_staged_tile_counts_as_global(kernel_case, cpu):
    private, staged = (lane(kernel_case("softmax"), cpu(512, materialize=word)) for word in ("private", "output"))
    assert difference(staged, private) == {
        "global_read_bytes": 32,
        "global_write_bytes": 32,
        "private_read_bytes": -32,
        "private_write_bytes": -32,
    }


@pytest.mark.parametrize(("lanes", "rounds"), [(1, 0), (2, 1), (4, 2), (32, 5), (64, 6)])
def test_collective_rounds(lanes, rounds, kernel_case, cpu):
    counted = lane(kernel_case("softmax"), cpu(64, local_lanes=lanes))
    assert counted.collective_rounds == 2 * rounds


def test_what_the_analysis_does_not_know_is_zero_and_says_why(kernel_case, cpu):
    known = build_schedule(kernel_case("softmax"), cpu())
    counted = demand(replace(known, unavailable="a construct of tomorrow"))
    assert counted.document() == {
        "available": False,
        "unavailable_reason": "a construct of tomorrow",
        "per_program": Access().document(),
        "per_lane": Access().document(),
    }


def test_json_names_the_contracts_fields(kernel_case, cpu):
    document = demand(build_schedule(kernel_case("softmax"), cpu())).document()
    assert set(document) == {"available", "per_program", "per_lane"}
    assert set(document["per_lane"]) == {
        "scalar_rounds",
        "collective_rounds",
        "global_read_bytes",
        "global_write_bytes",
        "private_read_bytes",
        "private_write_bytes",
    }
