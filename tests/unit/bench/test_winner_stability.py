"""What the stability benchmark makes of searches and a re-measurement whose answers are known."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from search.selection.contender import Contender
from search.space.candidate import Candidate, CpuMapping

SCRIPT = Path(__file__).parents[3] / "bench" / "winner_stability.py"


@pytest.fixture(scope="module")
def bench() -> Any:
    spec = importlib.util.spec_from_file_location("bench_winner_stability", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module: ModuleType = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    yield module
    del sys.modules[spec.name]


def contender(code: str, width: int, ordinal: int) -> Contender:
    candidate = Candidate(
        width=width,
        input="reload",
        fusion="separate",
        materialize="output",
        vector=1,
        unroll=1,
        partials=1,
        mapping=CpuMapping(local_lanes=width, row_block=1, simd_scope="none", nontemporal=False),
    )
    return Contender(
        id=f"case-{ordinal}",
        ordinal=ordinal,
        candidate=candidate,
        in_space=True,
        is_default=False,
        code=code,
        median_seconds=1.0,
    )


FAST, SLOW = contender("fast", 8, 0), contender("slow", 16, 1)


def search(bench: Any, winner: Contender, ties: set[str]) -> Any:
    return bench.Searched(
        winner=winner,
        tie_set=frozenset(ties),
        finalists={},
        contenders=(FAST, SLOW),
        winner_seconds=1.0,
        noise_floor=0.01,
    )


@pytest.mark.parametrize(
    ("codes", "rate"), [("aaaaa", 0.0), ("aaaab", 0.4), ("aaabb", 0.6), ("abcde", 1.0), ("a", 0.0)]
)
def test_flips_are_counted_over_pairs(bench: Any, codes: str, rate: float) -> None:
    assert bench.flip_rate(list(codes)) == pytest.approx(rate)


def test_a_slower_winner_has_its_regret_and_is_in_no_tie_set(bench: Any) -> None:
    found = [search(bench, FAST, {"fast"}), search(bench, FAST, {"fast", "slow"}), search(bench, SLOW, {"slow"})]
    rounds = [1.0 + 0.01 * (number % 3) for number in range(27)]
    said = bench.report(found, {"slow": [1.5 * taken for taken in rounds], "fast": rounds}, sittings=1)
    assert [one["regret"] for one in said["searches"]] == pytest.approx([0.0, 0.0, 0.5])
    assert [one["holds_every_winner"] for one in said["searches"]] == [False, True, False]
    assert said["searches_whose_tie_set_holds_every_winner"] == 1
    assert said["all_tied_when_measured_again"] is False
    assert said["flip_rate"] == pytest.approx(2 / 3)
    assert [(row["code"], row["won"], row["tied"]) for row in said["measured_again"]] == [
        ("fast", 2, True),
        ("slow", 1, False),
    ]
    bench.show({"case": "softmax 8×33", "device": "this CPU", **said})


def test_winners_that_cannot_be_told_apart_tie(bench: Any, capsys: pytest.CaptureFixture[str]) -> None:
    found = [search(bench, FAST, {"fast", "slow"}), search(bench, SLOW, {"fast", "slow"})]
    fast = [1.0, 1.1] * 10
    said = bench.report(found, {"fast": fast, "slow": list(reversed(fast))}, sittings=1)
    assert said["all_tied_when_measured_again"] is True
    assert said["searches_whose_tie_set_holds_every_winner"] == 2
    bench.show({"case": "softmax 8×33", "device": "this CPU", **said})
    printed = capsys.readouterr().out
    assert "2 of 2 searches'" in printed
    assert "they lie in one tie set" in printed


def test_a_winner_that_was_not_measured_again_is_an_error(bench: Any) -> None:
    with pytest.raises(ValueError, match="could not be measured again: W16"):
        bench.report([search(bench, SLOW, {"slow"})], {"fast": [1.0] * 9}, sittings=1)
