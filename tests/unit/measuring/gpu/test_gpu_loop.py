"""Batches as graphs, rotation through copies, groups and their conditions. Rehearsed: no time here is real."""

from __future__ import annotations

import pytest

from search.lowering.contract import Argument
from search.measuring.gpu.card import Process, foreign
from search.measuring.gpu.conditions import MOST_REPEATS, Contended
from search.measuring.gpu.driver import DriverFault, fault_kind
from search.measuring.gpu.loop import MOST_NODES, Loop
from search.measuring.gpu.rehearsal import RehearsalCard, RehearsalDriver, Script
from search.measuring.gpu.sampler import Sampler
from search.measuring.protocol import PHASES, Protocol, timing_document, timing_from_document

SHORT = Protocol(name="test", warmup_seconds=0.001, samples=5, batch_seconds=0.0005)


class Recorded(RehearsalDriver):
    """Notes which address each launch had, in order."""

    def __init__(self, script: Script | None = None) -> None:
        self.launched: list[int] = []
        super().__init__(script or Script(), lambda symbol, tensors, dims: None)

    def call(self, address: int):
        bound = self.bind("k", blocks=1, threads=32, arguments=[(Argument(name="x", kind="tensor"), address)])

        def noted() -> None:
            self.launched.append(address)
            bound()

        return noted


def test_a_batch_is_replayed_and_its_time_is_of_the_calls_asked_for() -> None:
    driver = Recorded(Script(usual_seconds=2e-6))
    loop = Loop(driver, [driver.call(1)])
    assert loop.device_seconds(1) == pytest.approx(2e-6)
    assert loop.device_seconds(100) == pytest.approx(200e-6)
    assert len(driver.launched) == 101
    count = 3 * MOST_NODES + 1  # four replays of one graph, a few calls more than asked for
    assert loop.device_seconds(count) == pytest.approx(2e-6 * count)
    assert 0 <= len(driver.launched) - 101 - count < 4
    assert driver.log.count("capture") == 2


def test_cold_calls_rotate_and_never_meet_a_copy_before_all_others() -> None:
    driver = Recorded()
    copies = list(range(7))
    loop = Loop(driver, [driver.call(copy) for copy in copies])
    for phase in ("device", "host", "device", "settle"):
        for count in (2, 1, 7, 1, 1, 10, 2 * MOST_NODES + 3):
            if phase == "settle":
                loop.settle()
            elif phase == "device":
                loop.device_seconds(count)
            else:
                loop.host_seconds(count)
    assert len(driver.launched) > 4 * MOST_NODES
    assert driver.launched == [place % 7 for place in range(len(driver.launched))]
    loop.host_seconds(3)
    before = len(driver.launched)
    assert loop.device_seconds(10) == pytest.approx(10 * Script().usual_seconds)  # the way to the first is not timed
    assert driver.launched[before:] == [*range(3, 7), *([*range(7)] * 2)]


def test_warming_up_goes_by_the_devices_clock() -> None:
    driver = Recorded(Script(usual_seconds=1e-3))
    assert Loop(driver, [driver.call(1)]).warm_seconds_per_call(0.1) == pytest.approx(1e-3)
    assert 100 <= len(driver.launched) <= 130
    slow = Recorded(Script(usual_seconds=10.0))
    assert Loop(slow, [slow.call(1)]).warm_seconds_per_call(0.1) == pytest.approx(10.0)
    assert len(slow.launched) == 3


def test_phases_carry_their_conditions_through_json() -> None:
    driver = Recorded(Script(usual_seconds=5e-6))
    sampler = Sampler(RehearsalCard(Script(clocks_hz=(1_700_000_000,))))
    loop = Loop(driver, [driver.call(1)], in_flight=sampler.in_flight)
    timing = sampler.phases(loop, SHORT, tuple(PHASES))
    assert list(timing) == list(PHASES)
    assert timing["device_batch"].calls_per_sample == 100
    assert timing["device_batch"].median_seconds == pytest.approx(5e-6)
    assert timing["device_single"].calls_per_sample == timing["e2e_single"].calls_per_sample == 1
    conditions = timing["device_batch"].conditions
    assert conditions is not None
    assert conditions["deviates"] is None
    assert len(conditions["states"]) == SHORT.samples  # one a sample, none of the warm-up
    assert conditions["states"][-1]["sm_clock_hz"] == 1_700_000_000
    assert timing_from_document(timing_document(timing)) == timing


@pytest.mark.parametrize(
    ("script", "repeats", "word"),
    [
        (Script(throttle_reasons=(("sw_power_cap",),)), 0, None),
        (Script(throttle_reasons=(("hw_thermal_slowdown",),)), MOST_REPEATS, "throttled: hw_thermal_slowdown"),
        (Script(throttle_reasons=(("hw_slowdown",), ("hw_slowdown",), ())), 1, None),
        (Script(clocks_hz=(1_900_000_000, 1_200_000_000)), MOST_REPEATS, "clock 1200 MHz, others ran at 1900 MHz"),
        (Script(clocks_hz=(1_900_000_000, 1_850_000_000)), 0, None),
    ],
)
def test_a_group_that_deviates_is_taken_again_and_then_marked(script: Script, repeats: int, word: str | None) -> None:
    sampler = Sampler(RehearsalCard(script))
    taken = 0

    def take() -> int:
        nonlocal taken
        taken += 1
        sampler.in_flight()
        sampler.in_flight()
        return taken

    found, conditions = sampler.group(take)
    assert found == taken == 1 + repeats
    assert (conditions["repeats"], conditions["deviates"]) == (repeats, word)


def test_a_group_is_judged_by_all_of_its_moments() -> None:
    """What was slow or hot in the middle is not forgotten for a good end."""
    slow = Script(clocks_hz=(1_900_000_000, 1_200_000_000, *[1_900_000_000] * 3))
    hot = Script(throttle_reasons=((), ("hw_thermal_slowdown",), (), (), ()))
    for script in (slow, hot):
        sampler = Sampler(RehearsalCard(script))

        def take(sampler: Sampler = sampler) -> None:
            for _ in range(5):
                sampler.in_flight()

        _, conditions = sampler.group(take)
        assert conditions["repeats"] == 1
        assert conditions["deviates"] is None
        assert len(conditions["states"]) == 5


def test_a_clock_that_rises_while_warming_up_is_no_deviation() -> None:
    driver = Recorded(Script(usual_seconds=1e-4))
    sampler = Sampler(RehearsalCard(Script(clocks_hz=(300_000_000, 900_000_000, 1_900_000_000))))
    loop = Loop(driver, [driver.call(1)], in_flight=sampler.in_flight)
    conditions = sampler.phases(loop, SHORT, ("device_batch",))["device_batch"].conditions
    assert conditions is not None
    assert (conditions["repeats"], conditions["deviates"]) == (0, None)


@pytest.mark.parametrize("looks", [((77,),), ((), (77,))])
def test_others_on_the_card_before_or_after_a_group(looks: tuple[tuple[int, ...], ...]) -> None:
    sampler = Sampler(RehearsalCard(Script(strangers=looks)))
    with pytest.raises(Contended, match="77"):
        sampler.group(lambda: None)
    sampler.ours = {77}
    sampler.group(lambda: None)


def test_idle_neighbours_are_no_load_and_untold_ones_are() -> None:
    idle, untold = Process(pid=1, active=False), Process(pid=2, active=None)
    assert foreign([idle, untold, Process(pid=3, active=True)], [3]) == (untold,)


def test_a_poisoned_context_answers_nothing_any_more() -> None:
    driver = Recorded(Script(faults={"k": "CUDA_ERROR_ILLEGAL_ADDRESS"}))
    call = driver.call(1)
    call()  # asynchronous: the launch itself says nothing
    for attempt in (driver.synchronize, call, lambda: driver.allocate(1)):
        with pytest.raises(DriverFault) as fault:
            attempt()
        assert fault.value.kind == "poisoned"


def test_faults_by_what_comes_after_them() -> None:
    assert fault_kind("CUDA_ERROR_OUT_OF_MEMORY") == "out_of_memory"
    assert fault_kind("CUDA_ERROR_NO_DEVICE") == "lost"
    assert fault_kind("CUDA_ERROR_ILLEGAL_ADDRESS") == "poisoned"
    assert fault_kind("CUDA_ERROR_INVALID_VALUE") == "refused"
