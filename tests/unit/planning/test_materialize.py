"""Which output holds which tile."""

from search.planning.build import build_schedule
from search.planning.schedule import DistributedLoop, GlobalLoad, GlobalStore

COL = ["col"]


def tile(name, value):
    return {"tile": {"name": name, "over": COL, "value": value}}


def total(of, into="total"):
    return {"reduce": {"into": into, "op": "sum", "over": COL, "value": of}}


def store(tensor, value, over=COL):
    return {"store": {"tensor": tensor, "over": over, "value": value}}


def test_each_tile_takes_the_first_free_output(program_case, cpu):
    case = program_case(
        tile("a", "x * 2"), tile("b", "r * 2"), total("a + b"), store("y", "a / total"), store("z", "b / total")
    )
    schedule = build_schedule(case, cpu(materialize="output"))
    # y's final store comes before b is read for the last time only in z's statement: b may take z, a takes y.
    assert schedule.staged_tiles == (("a", "y"), ("b", "z"))
    assert schedule.private_scalars == 0


def test_a_tile_that_finds_no_output_stays_private(program_case, cpu):
    case = program_case(tile("a", "x * 2"), tile("b", "r * 2"), total("a + b"), store("y", "a / total + b"))
    schedule = build_schedule(case, cpu(materialize="output"))
    assert schedule.staged_tiles == (("a", "y"),)
    assert [t.name for t in schedule.private_tiles] == ["b"]


def test_a_tile_read_after_the_final_store_cannot_stay_there(program_case, cpu):
    case = program_case(tile("a", "x * 2"), total("a"), store("y", "a / total"), store("z", "a * total"))
    assert build_schedule(case, cpu(materialize="output")).staged_tiles == (("a", "z"),)


def test_an_output_written_before_the_tile_is_taken(program_case, cpu):
    case = program_case(
        store("y", "x + 1"), tile("a", "x * 2"), total("a"), total("a * total", "second"), store("s", "second", [])
    )
    rejected = build_schedule(case, cpu(materialize="output"))
    assert (rejected.stage, rejected.reason) == ("constraints", "no_output_staging")
    assert rejected.detail["tiles"]["a"] == {
        "s": "its axes are not the tile's",
        "y": "it is written before the tile",
    }


def test_other_axes_cannot_hold_a_tile(program_case, cpu):
    case = program_case(tile("a", "x * 2"), total("a"), total("a * total", "second"), store("s", "second", []))
    assert build_schedule(case, cpu(materialize="output")).reason == "no_output_staging"


def test_another_dtype_cannot_hold_a_tile(program_case, cpu):
    case = program_case(tile("a", "cast(x, int32)"), total("a"), store("y", "cast(a, float32) + cast(total, float32)"))
    rejected = build_schedule(case, cpu(materialize="output"))
    assert rejected.detail["tiles"]["a"]["y"] == "its dtype is float32, the tile's int32"


def test_reading_again_in_the_storing_statement_is_fine(program_case, cpu):
    case = program_case(tile("a", "x * 2"), total("a"), store("y", "a * a / total"))
    assert build_schedule(case, cpu(materialize="output")).staged_tiles == (("a", "y"),)


def test_an_output_whose_value_is_the_tile_goes_on_holding_it(program_case, cpu):
    case = program_case(tile("a", "x * 2"), store("y", "a"), total("a"), store("z", "a * total"))
    schedule = build_schedule(case, cpu(materialize="output"))
    assert schedule.staged_tiles == (("a", "y"),)
    first, last = (step for step in schedule.steps if isinstance(step, DistributedLoop))
    stored = [(op.tensor, op.staged) for loop in (first, last) for op in loop.ops if isinstance(op, GlobalStore)]
    assert stored == [("y", True), ("z", False)], "y is written once"
    assert [op.tensor for op in last.ops if isinstance(op, GlobalLoad)] == ["y"]


def test_a_store_of_the_tile_alone_is_no_traversal_of_its_own(program_case, cpu):
    # the stage keeps the store out of every other traversal
    case = program_case(tile("a", "x * 2"), total("a"), store("s", "total", []), {"stage": {}}, store("y", "a"))
    plans = [build_schedule(case, cpu(materialize=word)) for word in ("output", "private")]
    loops = [[step for step in plan.steps if isinstance(step, DistributedLoop)] for plan in plans]
    assert [len(found) for found in loops] == [1, 2]
    assert [op.staged for loop in loops[0] for op in loop.ops if isinstance(op, GlobalStore)] == [True]
