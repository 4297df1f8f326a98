"""How deferred reducers are planned: strict chains, arrays, serial loops; and what may be read across an effect."""

from search.outcome import Rejected
from search.planning.build import build_schedule
from search.planning.default import default_candidate
from search.planning.demand import demand
from search.planning.plan import plan_of
from search.planning.schedule import (
    Accumulate,
    Collective,
    DistributedLoop,
    GlobalLoad,
    GlobalStore,
    PrivateLoad,
    RowLoad,
    RowUpdate,
    SerialLoop,
    flat_steps,
)
from search.program.document import dump_program
from search.program.resolve import resolve_case
from search.space.resolve import resolve_space

STRICT = {"reducer": {"name": "fold", "op": "sum", "order": "strict"}}
UPDATE = {"update": {"reducer": "fold", "over": ["col"], "value": "x"}}
CLOSE = {"finalize": {"reducer": "fold", "into": "total"}}
STORE = {"store": {"tensor": "s", "over": [], "value": "total"}}


def loops(schedule):
    return [step for step in schedule.steps if isinstance(step, DistributedLoop)]


def collectives(schedule):
    return [step for step in schedule.steps if isinstance(step, Collective)]


class TestStrictFolds:
    def test_one_chain_has_no_partials_and_no_rounds(self, program_case, cpu):
        case = program_case(STRICT, UPDATE, CLOSE, STORE)
        for partials in (1, 4):
            schedule = build_schedule(case, cpu(8, partials=partials, row_block=2))
            assert [(step.strict, step.rounds) for step in collectives(schedule)] == [(True, 0)]
            assert schedule.partial_scalars == 2
            assert [loop.serial for loop in loops(schedule)] == [True]

    def test_lanes_wait_for_the_chain(self, program_case, cpu):
        strict, free = (
            demand(build_schedule(program_case(opened, UPDATE, CLOSE, STORE, cols=100), cpu(8))).per_lane
            for opened in (STRICT, {"reducer": {"name": "fold", "op": "sum"}})
        )
        assert (strict.scalar_rounds, free.scalar_rounds) == (100, 13)
        assert (strict.collective_rounds, free.collective_rounds) == (0, 3)
        assert strict.global_read_bytes == free.global_read_bytes == 13 * 4

    def test_partials_are_inert_when_every_fold_is_strict(self, program_case):
        other = [
            {"reduce": {"into": "top", "op": "max", "over": ["col"], "value": "x"}},
            {"store": {"tensor": "y", "over": ["col"], "value": "x - top"}},
        ]
        for more, inert in (([], True), (other, False)):
            space = resolve_space({"partials": [1, 2]}, program_case(STRICT, UPDATE, CLOSE, STORE, *more), "cpu")
            assert ("partials" in space.inert_knobs) == inert

    def test_one_site_is_through_before_the_next_begins(self, program_case, cpu):
        row = {"update": {"reducer": "fold", "over": [], "value": "1.0"}}
        copy = {"store": {"tensor": "y", "over": ["col"], "value": "x"}}
        free = {"reducer": {"name": "fold", "op": "sum"}}
        for body, found in (
            ([STRICT, UPDATE, UPDATE, CLOSE, STORE], 2),
            ([free, UPDATE, UPDATE, CLOSE, STORE], 1),
            ([STRICT, copy, UPDATE, CLOSE, STORE], 1),
            ([STRICT, copy, row, UPDATE, CLOSE, STORE], 2),
            ([free, copy, row, UPDATE, CLOSE, STORE], 1),
        ):
            schedule = build_schedule(program_case(*body), cpu())
            assert len(loops(schedule)) == found, body
            if row in body and found == 2:
                order = [type(step) for step in schedule.steps if isinstance(step, DistributedLoop | RowUpdate)]
                assert order == [DistributedLoop, RowUpdate, DistributedLoop]

    def test_no_strict_fold_is_fused(self, program_case, cpu):
        case = program_case(STRICT, UPDATE, CLOSE, {"store": {"tensor": "y", "over": ["col"], "value": "x / total"}})
        rejected = build_schedule(case, cpu(input="cache", fusion="fused"))
        assert (rejected.reason, rejected.detail["rule"]) == ("fusion_illegal", "strict_fold")
        assert plan_of(build_schedule(case, cpu(input="cache"))).private_scalars == 2


def array(index, **more):
    return [
        {"reducer": {"name": "bins", "op": "sum", "shape": ["k"]}},
        {"update": {"reducer": "bins", "over": ["col", "k"], "value": "t3", "index": [index], **more}},
        {"finalize": {"reducer": "bins", "into": "found"}},
        {"store": {"tensor": "y3", "over": ["col", "k"], "value": "found * x"}},
    ]


class TestArrays:
    def test_every_partial_is_a_whole_array_and_every_element_is_combined(self, program_case, cpu):
        schedule = build_schedule(program_case(*array("index(k)"), ks=5), cpu(8, partials=2))
        assert [step.rounds for step in collectives(schedule)] == [5 * 3]
        assert schedule.partial_scalars == 5 * 2
        assert [(a.name, a.axes, a.extents) for a in schedule.arrays] == [("found", ("k",), (5,))]
        assert schedule.private_scalars == 0

    def test_what_only_a_condition_proves_is_clamped(self, program_case, cpu):
        guarded = {"where": "cast(x, int32) >= 0 and cast(x, int32) <= ks - 1"}
        for index, more, clamped in (
            ("index(k)", {}, False),
            ("max(min(cast(x, int32), ks - 1), 0)", {}, False),
            ("cast(x, int32)", guarded, True),
        ):
            (first, _) = loops(build_schedule(program_case(*array(index, **more)), cpu()))
            (op,) = [op for op in first.ops if isinstance(op, Accumulate)]
            assert [(one.extent, one.clamped) for one in op.index] == [(4, clamped)]

    def test_no_array_is_fused(self, program_case, cpu):
        rejected = build_schedule(
            program_case(*array("index(k)")), cpu(input=(("t3", "cache"),), fusion="fused", materialize="recompute")
        )
        assert (rejected.reason, rejected.detail["rule"]) == ("fusion_illegal", "reducer_array")


class TestLoops:
    def streamed(self, program_case, *inside, ks=4):
        inside = inside or ({"update": {"reducer": "acc", "over": ["col"], "value": "t3[col, i] * x"}},)
        return program_case(
            {"reducer": {"name": "acc", "op": "sum"}},
            {"loop": {"count": "ks", "index": "i", "body": list(inside)}},
            {"finalize": {"reducer": "acc", "into": "total"}},
            {"store": {"tensor": "y3", "over": ["col", "k"], "value": "total * x"}},
            ks=ks,
        )

    def test_many_tiles_and_one_collective(self, program_case, cpu):
        schedule = build_schedule(self.streamed(program_case), cpu(8))
        (loop,) = [step for step in schedule.steps if isinstance(step, SerialLoop)]
        assert (loop.trips, loop.count, loop.index) == (4, "ks", "i")
        assert len(collectives(schedule)) == 1
        assert not any(isinstance(step, Collective) for step, _ in flat_steps(loop.steps))

    def test_what_a_loop_holds_counts_once_per_trip(self, program_case, cpu):
        one, four = (demand(build_schedule(self.streamed(program_case, ks=ks), cpu(8))).per_program for ks in (1, 4))
        assert four.scalar_rounds - 4 * 10 == 10 * 4
        assert one.scalar_rounds == 10 + 10
        assert four.global_read_bytes == 4 * (2 * 4 * 10) + 4 * 10 * 4
        assert four.collective_rounds == one.collective_rounds == 3

    def test_a_snapshot_is_taken_once_before_the_loop(self, program_case, cpu):
        schedule = build_schedule(self.streamed(program_case), cpu(input=(("x", "cache"),)))
        assert isinstance(schedule, Rejected)  # x is read over other axes behind the loop
        inside = {"update": {"reducer": "acc", "over": ["col"], "value": "x * weight"}}
        case = program_case(
            {"reducer": {"name": "acc", "op": "sum"}},
            {"loop": {"count": "cols", "body": [inside]}},
            {"finalize": {"reducer": "acc", "into": "total"}},
            {"store": {"tensor": "y", "over": ["col"], "value": "x / total"}},
        )
        schedule = build_schedule(case, cpu(input="cache"))
        reads = [
            (type(op), times)
            for step, times in flat_steps(schedule.steps)
            if isinstance(step, DistributedLoop)
            for op in step.ops
            if isinstance(op, GlobalLoad | PrivateLoad) and "weight" not in op.into
        ]
        assert reads == [(GlobalLoad, 1), (PrivateLoad, 10), (PrivateLoad, 1)]
        rejected = build_schedule(case, cpu(input="cache", fusion="fused"))
        assert rejected.detail["rule"] == "cross_scope"

    def test_a_row_scalar_of_the_body_is_loaded_on_every_trip(self, program_case, cpu):
        inside = {"update": {"reducer": "acc", "over": ["col"], "value": "x * t3[0, i]"}}
        schedule = build_schedule(self.streamed(program_case, inside), cpu())
        assert [times for step, times in flat_steps(schedule.steps) if isinstance(step, RowLoad)] == [4]


def sharing(case, output="y", given="x"):
    """The case with an output written over an input."""
    document = dump_program(case.program)
    document["tensors"][output]["aliases"] = given
    return resolve_case({"program": document, "dims": dict(case.dims)})


TWICE = [
    {"store": {"tensor": "y", "over": ["col"], "value": "x * 2"}},
    {"reduce": {"into": "total", "op": "sum", "over": ["col"], "value": "x"}},
    {"store": {"tensor": "s", "over": [], "value": "total"}},
]
TILE = {"tile": {"name": "t", "over": ["col"], "value": "x - bias"}}


class TestSharedBuffers:
    def verdict(self, case, candidate):
        built = build_schedule(case, candidate)
        return built.reason if isinstance(built, Rejected) else "planned"

    def test_reload_after_the_write_is_rejected_and_a_snapshot_is_not(self, program_case, cpu):
        case = sharing(program_case(*TWICE))
        rejected = build_schedule(case, cpu())
        assert (rejected.stage, rejected.reason) == ("constraints", "reload_across_effect")
        assert (rejected.detail["tensor"], rejected.detail["overwritten_by"]) == ("x", "y")
        assert (rejected.detail["reads"], rejected.detail["effect"]) == ([0, 2], 0)
        assert self.verdict(case, cpu(input="cache")) == "planned"
        assert self.verdict(program_case(*TWICE), cpu()) == "planned"
        default = default_candidate(case, "cpu")
        assert (default.input, self.verdict(case, default)) == ("cache", "planned")

    def test_reading_before_the_write_and_while_writing_is_legal(self, program_case, cpu):
        case = sharing(program_case(*TWICE[1:], TWICE[0]))
        for word in ("reload", "cache"):
            assert self.verdict(case, cpu(input=word)) == "planned"

    def test_a_stage_between_two_reads_counts_as_an_effect(self, program_case, cpu):
        case = sharing(program_case(*TWICE[1:], {"stage": {}}, TWICE[0]))
        assert self.verdict(case, cpu()) == "reload_across_effect"
        assert self.verdict(case, cpu(input="cache")) == "planned"
        assert self.verdict(program_case(*TWICE[1:], {"stage": {}}, TWICE[0]), cpu()) == "planned"

    def test_a_tile_that_is_read_behind_the_write_is_kept_not_recomputed(self, program_case, cpu):
        behind = {"reduce": {"into": "total", "op": "sum", "over": ["col"], "value": "t"}}
        case = sharing(program_case(TILE, TWICE[0], behind, TWICE[2]))
        assert self.verdict(case, cpu(materialize="private")) == "planned"
        assert self.verdict(case, cpu(materialize="recompute")) == "reload_across_effect"
        staged = build_schedule(case, cpu(materialize="output"))
        assert staged.reason == "no_output_staging"
        assert "may share its buffer with x" in repr(staged.detail)

    def test_a_store_waits_for_reads_of_other_elements(self, program_case, cpu):
        turned = {"tile": {"name": "t", "over": ["col"], "value": "x[cols - 1 - col]"}}
        store = {"store": {"tensor": "y", "over": ["col"], "value": "t"}}
        case = program_case(turned, store)
        assert len(loops(build_schedule(case, cpu()))) == 1
        assert len(loops(build_schedule(sharing(case), cpu()))) == 2
        assert self.verdict(sharing(case), cpu(materialize="recompute")) == "reload_across_effect"

    def test_an_input_first_read_behind_the_write_is_snapshot_before_it(self, program_case, cpu):
        over = {"store": {"tensor": "y", "over": ["col"], "value": "weight"}}
        case = sharing(program_case(over, *TWICE[1:]))
        assert self.verdict(case, cpu()) == "reload_across_effect"
        schedule = build_schedule(case, cpu(input="cache"))
        snapshot, write, *_ = loops(schedule)
        assert snapshot.purpose == "snapshot"
        assert any(isinstance(op, GlobalStore) for op in write.ops)

    def test_a_row_scalar_is_loaded_once_and_kept(self, program_case, cpu):
        store = {"store": {"tensor": "y", "over": ["col"], "value": "weight - x[0]"}}
        last = {"store": {"tensor": "s", "over": [], "value": "x[0]"}}
        assert self.verdict(sharing(program_case(store, last)), cpu()) == "planned"
        assert self.verdict(sharing(program_case(store, {"stage": {}}, last)), cpu()) == "reload_across_effect"
