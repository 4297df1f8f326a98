"""How deferred reducers are planned: chains of strict folds."""

from search.planning.build import build_schedule
from search.planning.demand import demand
from search.planning.plan import plan_of
from search.planning.schedule import Collective, DistributedLoop
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

    def test_no_strict_fold_is_fused(self, program_case, cpu):
        case = program_case(STRICT, UPDATE, CLOSE, {"store": {"tensor": "y", "over": ["col"], "value": "x / total"}})
        rejected = build_schedule(case, cpu(input="cache", fusion="fused"))
        assert (rejected.reason, rejected.detail["rule"]) == ("fusion_illegal", "strict_fold")
        assert plan_of(build_schedule(case, cpu(input="cache"))).private_scalars == 2
