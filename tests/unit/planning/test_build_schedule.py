"""What the builder makes of statements: loops, loads, hoists and the constraints it enforces."""

import pytest

from search.outcome import Rejected
from search.planning.build import ScheduleBuilder, build_schedule
from search.planning.schedule import (
    Accumulate,
    Collective,
    Compute,
    DistributedLoop,
    GlobalLoad,
    GlobalStore,
    OpenReducer,
    PrivateLoad,
    PrivateStore,
    RowCompute,
    RowLoad,
    RowStore,
    RowUpdate,
    Schedule,
)
from search.program.ir import Affine, Const, Name


def loops(schedule):
    assert isinstance(schedule, Schedule), schedule
    return [step for step in schedule.steps if isinstance(step, DistributedLoop)]


def kinds(items):
    return [type(item) for item in items]


def reduce_(into, value, op="sum", over=("col",)):
    return {"reduce": {"into": into, "op": op, "over": list(over), "value": value}}


def tile(name, value, over=("col",)):
    return {"tile": {"name": name, "over": list(over), "value": value}}


def store(tensor, value, over=("col",)):
    return {"store": {"tensor": tensor, "over": list(over), "value": value}}


def let(name, value):
    return {"let": {"name": name, "value": value}}


STAGE = {"stage": {}}


class TestKernels:
    def test_softmax_private_is_three_traversals(self, kernel_case, cpu):
        schedule = build_schedule(kernel_case("softmax"), cpu(512, vector=4))
        assert kinds(schedule.steps) == [
            OpenReducer,
            DistributedLoop,
            Collective,
            OpenReducer,
            DistributedLoop,
            Collective,
            RowCompute,
            DistributedLoop,
        ]
        assert [kinds(loop.ops) for loop in loops(schedule)] == [
            [GlobalLoad, Accumulate],
            [GlobalLoad, Compute, PrivateStore, Accumulate],
            [PrivateLoad, GlobalStore],
        ]
        assert [loop.stripe_scalars for loop in loops(schedule)] == [8, 8, 8]
        assert [step.rounds for step in schedule.steps if isinstance(step, Collective)] == [9, 9]

    def test_softmax_staged_in_its_output(self, kernel_case, cpu):
        schedule = build_schedule(kernel_case("softmax"), cpu(512, materialize="output", nontemporal=True))
        assert schedule.staged_tiles == (("e", "y"),)
        assert schedule.private_tiles == ()
        middle, last = loops(schedule)[1:]
        assert kinds(middle.ops) == [GlobalLoad, Compute, GlobalStore, Accumulate]
        assert (middle.ops[2].staged, middle.ops[2].streaming) == (True, False)
        assert (last.ops[0].tensor, last.ops[0].staged) == ("y", True)
        assert (last.ops[1].staged, last.ops[1].streaming) == (False, True)

    def test_layer_norm_merges_the_tile_with_its_reduction(self, kernel_case, cpu):
        schedule = build_schedule(kernel_case("layer_norm"), cpu())
        assert len(loops(schedule)) == 3
        assert [t.name for t in schedule.private_tiles] == ["centered"]

    def test_rms_norm_is_two_traversals_without_tiles(self, kernel_case, cpu):
        schedule = build_schedule(kernel_case("rms_norm"), cpu())
        assert len(loops(schedule)) == 2
        assert schedule.private_tiles == ()

    def test_cache_copies_once_before_the_first_reader_and_never_merges(self, kernel_case, cpu):
        schedule = build_schedule(kernel_case("rms_norm"), cpu(input="cache"))
        first, *others = loops(schedule)
        assert first.purpose == "snapshot"
        assert kinds(first.ops) == [GlobalLoad, PrivateStore]
        assert all(op.tensor != "x" for loop in others for op in loop.ops if isinstance(op, GlobalLoad))
        assert [kinds(loop.ops) for loop in others] == [
            [PrivateLoad, Accumulate],
            [PrivateLoad, GlobalLoad, GlobalStore],
        ]
        assert [(t.name, t.kind) for t in schedule.private_tiles] == [("x_snapshot", "snapshot")]

    def test_fused_snapshots_in_the_first_reduction(self, kernel_case, cpu):
        schedule = build_schedule(kernel_case("rms_norm"), cpu(input="cache", fusion="fused"))
        assert [kinds(loop.ops) for loop in loops(schedule)] == [
            [GlobalLoad, PrivateStore, Accumulate],
            [PrivateLoad, GlobalLoad, GlobalStore],
        ]

    def test_recompute_evaluates_the_tile_again_in_each_statement(self, kernel_case, cpu):
        schedule = build_schedule(kernel_case("softmax"), cpu(materialize="recompute"))
        assert schedule.private_tiles == ()
        assert [kinds(loop.ops) for loop in loops(schedule)] == [
            [GlobalLoad, Accumulate],
            [GlobalLoad, Compute, Accumulate],
            [GlobalLoad, Compute, GlobalStore],
        ]

    def test_same_inputs_give_equal_schedules(self, kernel_case, cpu):
        case = kernel_case("layer_norm")
        builder = ScheduleBuilder(case)
        builder.build(cpu(materialize="output"))
        assert builder.build(cpu(input="cache")) == build_schedule(case, cpu(input="cache"))


class TestMerging:
    def test_two_reductions_without_dependence_share_a_traversal(self, program_case, cpu):
        case = program_case(reduce_("top", "x", "max"), reduce_("total", "x"), store("s", "top + total", ()))
        schedule = build_schedule(case, cpu())
        (loop,) = loops(schedule)
        assert kinds(loop.ops) == [GlobalLoad, Accumulate, GlobalLoad, Accumulate]
        assert kinds(schedule.steps) == [
            OpenReducer,
            OpenReducer,
            DistributedLoop,
            Collective,
            Collective,
            RowStore,
        ]

    def test_a_dependent_reduction_starts_a_new_traversal(self, program_case, cpu):
        case = program_case(reduce_("top", "x", "max"), reduce_("total", "exp(x - top)"), store("s", "total", ()))
        assert len(loops(build_schedule(case, cpu()))) == 2

    def test_a_scalar_that_follows_from_a_collective_ends_merging_too(self, program_case, cpu):
        case = program_case(
            reduce_("top", "x", "max"),
            let("half", "0.5"),
            let("shift", "top * half"),
            reduce_("total", "x - shift"),
            store("s", "total", ()),
        )
        assert len(loops(build_schedule(case, cpu()))) == 2

    def test_an_independent_scalar_moves_before_the_loop(self, program_case, cpu):
        case = program_case(
            reduce_("top", "x", "max"),
            let("half", "bias * 0.5"),
            reduce_("total", "x * half"),
            store("s", "total + top", ()),
        )
        schedule = build_schedule(case, cpu())
        before = schedule.steps[: kinds(schedule.steps).index(DistributedLoop)]
        assert len(loops(schedule)) == 1
        assert [step.into for step in before if isinstance(step, RowCompute)] == ["half"]
        assert [step.tensor for step in before if isinstance(step, RowLoad)] == ["bias"]

    def test_a_stage_ends_merging_and_row_loads_start_again(self, program_case, cpu):
        body = (reduce_("top", "x * bias", "max"), STAGE, reduce_("total", "x * bias"))
        end = store("s", "total + top", ())
        staged = build_schedule(program_case(*body, end), cpu())
        plain = build_schedule(program_case(body[0], body[2], end), cpu())
        assert (len(loops(staged)), len(loops(plain))) == (2, 1)
        assert sum(isinstance(step, RowLoad) for step in staged.steps) == 2
        assert sum(isinstance(step, RowLoad) for step in plain.steps) == 1

    def test_other_axes_start_a_new_traversal(self, program_case, cpu):
        case = program_case(
            reduce_("a", "x"), reduce_("b", "t3", over=("col", "k")), reduce_("c", "x"), store("s", "a + b + c", ())
        )
        made = loops(build_schedule(case, cpu()))
        assert [loop.axes for loop in made] == [("col",), ("col", "k"), ("col",)]
        assert [loop.extent for loop in made] == [10, 40, 10]

    def test_row_level_work_behind_the_loop_stays_there(self, program_case, cpu):
        case = program_case(
            {"reducer": {"name": "r0", "op": "sum"}},
            {"update": {"reducer": "r0", "over": ["col"], "value": "x"}},
            {"update": {"reducer": "r0", "over": [], "value": "bias"}},
            {"update": {"reducer": "r0", "over": ["col"], "value": "r", "where": "index(col) > 2"}},
            {"finalize": {"reducer": "r0", "into": "total"}},
            store("s", "total", ()),
        )
        schedule = build_schedule(case, cpu())
        assert kinds(schedule.steps) == [OpenReducer, RowLoad, DistributedLoop, RowUpdate, Collective, RowStore]
        assert [op.where is None for op in loops(schedule)[0].ops if isinstance(op, Accumulate)] == [True, False]

    def test_statements_of_a_loop_are_named(self, kernel_case, cpu):
        named = [index for loop in loops(build_schedule(kernel_case("softmax"), cpu())) for index in loop.statements]
        assert named == sorted(set(named))
        assert len(named) == 4


class TestLoads:
    def test_identical_loads_of_a_statement_are_one(self, program_case, cpu):
        (loop,) = loops(build_schedule(program_case(store("y", "x * x + x")), cpu()))
        assert kinds(loop.ops) == [GlobalLoad, GlobalStore]

    def test_a_fixed_column_is_loaded_once_per_row(self, program_case, cpu):
        case = program_case(reduce_("a", "x[0]"), reduce_("b", "x"), store("s", "a + b", ()))
        schedule = build_schedule(case, cpu())
        (row_load,) = [step for step in schedule.steps if isinstance(step, RowLoad)]
        assert row_load.index == (Affine(terms=(("row", 1),)), Affine(terms=(), constant=0))
        (loop,) = loops(schedule)
        assert kinds(loop.ops) == [Accumulate, GlobalLoad, Accumulate]

    def test_generated_names_avoid_the_programs(self, program_case, cpu):
        case = program_case(
            let("x_0", "2.0"),
            let("x_snapshot", "3.0"),
            reduce_("total", "x * x_0"),
            store("y", "x * total + x_snapshot"),
        )
        schedule = build_schedule(case, cpu(input="cache"))
        intos = [op.into for loop in loops(schedule) for op in loop.ops if hasattr(op, "into")]
        assert len(set(intos)) == len(intos)
        assert not {"x_0", "x_snapshot"} & {*intos, *(t.name for t in schedule.private_tiles)}

    def test_expressions_hold_no_loads(self, kernel_case, cpu):
        for word in ("reload", "cache"):
            text = repr(build_schedule(kernel_case("layer_norm"), cpu(input=word)).steps)
            assert " Load(" not in text
            assert "(Load(" not in text

    def test_scalars_have_dtypes(self, program_case, cpu):
        case = program_case(let("b2", "bias * 2"), reduce_("total", "x * b2"), store("s", "total", ()))
        names = dict(build_schedule(case, cpu()).scalar_dtypes)
        assert names == {"bias_0": "float32", "b2": "float32", "total": "float32"}


class TestTiles:
    def test_a_private_tile_counts_even_when_only_its_own_loop_reads_it(self, program_case, cpu):
        """The semantics page counts *all* private tiles; only a staged or recomputed one counts 0."""
        case = program_case(tile("t", "x * 2"), store("y", "t + 1"))
        private = build_schedule(case, cpu(materialize="private"))
        assert [t.name for t in private.private_tiles] == ["t"]
        assert private.private_scalars == private.private_tiles[0].stripe_scalars > 0
        for materialize in ("output", "recompute"):
            schedule = build_schedule(case, cpu(materialize=materialize))
            assert (schedule.private_tiles, schedule.staged_tiles) == ((), ())

    def test_two_axes_are_one_flattened_domain(self, program_case, cpu):
        over = ("col", "k")
        case = program_case(
            tile("t", "t3 * 2", over), reduce_("total", "t", over=over), store("y3", "t / total", over), cols=5, ks=7
        )
        schedule = build_schedule(case, cpu(8, vector=2))
        (storage,) = schedule.private_tiles
        assert (storage.extent, storage.stripe_scalars, storage.allocated_scalars) == (35, 5, 6)

    def test_a_chain_of_sixty_tiles_recomputes_without_growing(self, program_case, cpu):
        body = [tile("v0", "x + 1"), *(tile(f"v{i}", f"v{i - 1} * v{i - 1}") for i in range(1, 60))]
        case = program_case(*body, reduce_("total", "v59"), store("y", "v59 / total"))
        schedule = build_schedule(case, cpu(materialize="recompute"))
        assert [len(loop.ops) for loop in loops(schedule)] == [62, 62]

    def test_a_tile_read_over_more_axes_can_only_be_recomputed(self, program_case, cpu):
        case = program_case(tile("t", "x * 2"), store("y3", "t3 * t", ("col", "k")))
        for materialize in ("private", "output"):
            rejected = build_schedule(case, cpu(materialize=materialize))
            assert (rejected.stage, rejected.reason) == ("constraints", "tile_crosses_lanes")
            assert rejected.detail["tiles"] == {"t": ["col", "k"]}
        assert isinstance(build_schedule(case, cpu(materialize="recompute")), Schedule)

    def test_an_axis_of_one_point_crosses_no_lane(self, program_case, cpu):
        case = program_case(tile("t", "x * 2"), store("y3", "t3 * t", ("col", "k")), ks=1)
        assert [t.extent for t in build_schedule(case, cpu()).private_tiles] == [10]

    def test_an_input_that_recompute_moves_across_lanes_is_not_cached(self, program_case, cpu):
        case = program_case(tile("t", "x * 2"), reduce_("total", "x"), store("y3", "t3 * t + total", ("col", "k")))
        rejected = build_schedule(case, cpu(input="cache", materialize="recompute"))
        assert (rejected.reason, rejected.detail["tensors"]) == ("input_not_cacheable", ["x"])


class TestConstraints:
    @pytest.mark.parametrize(
        ("knobs", "reason"),
        [
            ({"width": 16, "local_lanes": 3}, "local_lanes_not_divisor"),
            ({"width": 16, "local_lanes": 32}, "local_lanes_not_divisor"),
            ({"width": 8, "nontemporal": True}, "nontemporal_width"),
            ({"fusion": "fused"}, "fusion_needs_cache"),
        ],
    )
    def test_illegal_combinations(self, kernel_case, cpu, knobs, reason):
        rejected = build_schedule(kernel_case("softmax"), cpu(**knobs))
        assert isinstance(rejected, Rejected)
        assert (rejected.stage, rejected.reason) == ("constraints", reason)
        assert rejected.detail

    @pytest.mark.parametrize(
        ("width", "local_lanes", "vector", "streams"),
        [
            (16, 16, 1, True),
            (64, 32, 1, True),
            (64, 16, 1, True),
            (32, 8, 2, True),
            (16, 1, 16, True),
            (64, 8, 1, False),
            (16, 4, 2, False),
            (16, 1, 8, False),
        ],
    )
    def test_stores_stream_where_a_row_s_lanes_fill_lines(self, kernel_case, cpu, width, local_lanes, vector, streams):
        knobs = {"local_lanes": local_lanes, "vector": vector}
        case = kernel_case("softmax")
        schedule = build_schedule(case, cpu(width, nontemporal=True, **knobs))
        stores = [op.streaming for loop in loops(schedule) for op in loop.ops if isinstance(op, GlobalStore)]
        assert stores == [streams]
        plain = build_schedule(case, cpu(width, **knobs))
        assert (schedule.steps == plain.steps) == (not streams)

    def test_blocks_have_at_most_1024_threads(self, kernel_case, cuda):
        assert build_schedule(kernel_case("softmax"), cuda(256, rows_per_block=8)).reason == "threads_per_block"
        assert build_schedule(kernel_case("softmax"), cuda(256, rows_per_block=4)).lanes_per_row == 256

    def test_whole_program_lanes_need_no_collective_rounds(self, kernel_case, cpu):
        schedule = build_schedule(kernel_case("softmax", cols=9), cpu(8, local_lanes=1, row_block=2, partials=4))
        assert [step.rounds for step in schedule.steps if isinstance(step, Collective)] == [0, 0]
        assert (schedule.private_scalars, schedule.partial_scalars) == (18, 16)

    def test_a_map_caches_what_it_names_and_nothing_else(self, program_case, cpu):
        case = program_case(reduce_("a", "x * r"), store("y", "x * r / a"))
        schedule = build_schedule(case, cpu(input=(("r", "cache"), ("x", "reload"))))
        assert [t.name for t in schedule.private_tiles] == ["r_snapshot"]
        foreign = build_schedule(case, cpu(input=(("y", "cache"),)))
        assert (foreign.reason, foreign.detail["allowed"]) == ("input_not_cacheable", ["r", "x"])

    def test_fusing_an_input_without_later_consumer_allocates_nothing(self, program_case, cpu):
        case = program_case(reduce_("a", "x * r"), store("s", "a", ()))
        named = (("x", "cache"),)
        separate = build_schedule(case, cpu(input=named))
        fused = build_schedule(case, cpu(input=named, fusion="fused"))
        assert [t.name for t in separate.private_tiles] == ["x_snapshot"]
        assert fused.private_tiles == ()
        assert [kinds(loop.ops) for loop in loops(fused)] == [[GlobalLoad, GlobalLoad, Accumulate]]


def test_seeds_stand_in_the_collective(program_case, cpu):
    case = program_case(
        {"reducer": {"name": "r0", "op": "max", "seed": "bias"}},
        {"update": {"reducer": "r0", "over": ["col"], "value": "x"}},
        {"finalize": {"reducer": "r0", "into": "top"}},
        store("s", "top + 1.0", ()),
    )
    schedule = build_schedule(case, cpu())
    (collective,) = [step for step in schedule.steps if isinstance(step, Collective)]
    assert collective.seed == Name(name="bias_0") == schedule.reducers[0].seed
    assert kinds(schedule.steps) == [RowLoad, OpenReducer, DistributedLoop, Collective, RowStore]
    assert Const(value=1.0) == schedule.steps[-1].value.right
