"""Is the winner the same when one case is searched again? Five searches, then one long re-measurement of them all.

    python bench/winner_stability.py                                   softmax 64x256 over 24 candidates
    python bench/winner_stability.py rms_norm 1024x4096 --space width=16,32,64 --space simd_scope=none,all
    python bench/winner_stability.py --json                            the same as JSON, with every sample

Each search is ``search.pipeline.tune`` in processes of its own; machine code of equal sources comes from the artifact
store. Kernels are told apart by machine code. Afterwards every finalist of every search is timed again, interleaved
under the acceptance protocol, in several sittings with fresh processes. The searches have no part in those samples, but
the fastest of the re-measurement is chosen by them, so a regret is, if anything, too large.
Exit status 1 when a search names no winner or a winner cannot be measured again. No time is judged.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from pathlib import Path
from typing import Any

from search.device.spec import DeviceSpec
from search.errors import InvalidInput, TunerError
from search.ledger import CaseState
from search.measuring.attach import attached_devices
from search.measuring.protocol import MeasureItem
from search.measuring.run import Measurer
from search.pipeline import tune
from search.program.case import Case
from search.program.library import kernels
from search.program.resolve import resolve_case
from search.selection.contender import Contender
from search.selection.winner import select
from search.stats.compare import paired_ratios
from search.stats.summary import median
from tuner_service.cli.errors import CommandError
from tuner_service.cli.output import print_line, print_table, say
from tuner_service.cli.request import parse_shape, parse_space
from tuner_service.cli.words import candidate_words, case_words, percent_words, seconds_words, times_words

SPACE = ["width=16,32,64", "simd_scope=none,all", "nontemporal=false"]
"""24 candidates of a kernel with a tile, 12 of one without."""


@dataclass(frozen=True, kw_only=True)
class Searched:
    """What one search said. Codes are ``artifact_sha256``."""

    winner: Contender
    tie_set: frozenset[str]
    """Codes that the search could not tell from its fastest."""
    finalists: Mapping[str, MeasureItem]
    """Code → what was timed in the finals."""
    contenders: tuple[Contender, ...]
    winner_seconds: float
    """Median of the finals."""
    noise_floor: float | None


def searched(state: CaseState) -> Searched:
    """A settled ledger as this benchmark needs it. ValueError when it has no winner."""
    if state.settled is None or state.settled.winner is None or state.finals is None:
        raise ValueError(f"no winner: {state.settled.error if state.settled else 'not settled'}")
    contenders = {contender.id: contender for contender in state.contenders()}
    samples = state.finals.samples.samples_seconds
    code_samples = {contenders[trial].code: taken for trial, taken in samples.items() if trial in contenders}
    winner = contenders[state.settled.winner]
    items = {}
    for trial in samples:
        artifact = state.trial(trial).artifact
        if trial in contenders and artifact is not None:
            items[contenders[trial].code] = MeasureItem(id=contenders[trial].code, artifact=artifact)
    return Searched(
        winner=winner,
        tie_set=frozenset(contenders[trial].code for trial in state.settled.tie_set),
        finalists=items,
        contenders=tuple(contenders.values()),
        winner_seconds=median(code_samples[winner.code]),
        noise_floor=state.settled.noise_floor,
    )


def flip_rate(codes: Sequence[str]) -> float:
    """Share of the pairs of searches that named different machine code: 0 when all agree, 1 when no two do."""
    pairs = list(combinations(codes, 2))
    return sum(one != other for one, other in pairs) / len(pairs) if pairs else 0.0


def report(
    found: Sequence[Searched], samples_seconds: Mapping[str, Sequence[float]], *, sittings: int
) -> dict[str, Any]:
    """What the searches and the re-measurement (code → samples of all sittings, paired by place) say together.

    ValueError when a winner was not measured again.
    """
    winners = [one.winner.code for one in found]
    lost = [candidate_words(o.winner.candidate.document()) for o in found if o.winner.code not in samples_seconds]
    if lost:
        raise ValueError(f"could not be measured again: {', '.join(lost)}")
    # One contender a code, so that the re-measurement has a tie set by the same rule as a search.
    by_code = {c.code: replace(c, id=c.code, inherits=False) for one in found for c in one.contenders if c.in_space}
    again = select(samples_seconds, by_code.values(), sittings=sittings)
    assert again.leader is not None
    rows = []
    for code in sorted(samples_seconds, key=lambda code: median(samples_seconds[code])):
        if code not in by_code:
            continue
        against = paired_ratios(samples_seconds[code], samples_seconds[again.leader])
        rows.append(
            {
                "code": code,
                "candidate": by_code[code].candidate.document(),
                "won": winners.count(code),
                "median_seconds": median(samples_seconds[code]),
                "regret": against.median - 1,
                "ratio": {"median": against.median, "min": against.low, "max": against.high},
                "tied": code in again.tie_set,
            }
        )
    regrets = {row["code"]: row["regret"] for row in rows}
    return {
        "searches": [
            {
                "winner": one.winner.candidate.document(),
                "code": one.winner.code,
                "median_seconds": one.winner_seconds,
                "ties": len(one.tie_set),
                "holds_every_winner": one.tie_set >= set(winners),
                "noise_floor": one.noise_floor,
                "regret": regrets[one.winner.code],
            }
            for one in found
        ],
        "flip_rate": flip_rate(winners),
        "distinct_winners": len(set(winners)),
        "searches_whose_tie_set_holds_every_winner": sum(one.tie_set >= set(winners) for one in found),
        "all_tied_when_measured_again": set(winners) <= set(again.tie_set),
        "measured_again": rows,
        "samples_seconds": {code: list(taken) for code, taken in samples_seconds.items()},
    }


def measure_again(
    device: DeviceSpec, case: Case, items: Iterable[MeasureItem], work: Path, *, sittings: int
) -> dict[str, list[float]]:
    """Code → samples of every sitting in turn, seconds per call; codes that failed in any sitting are left out."""
    wanted = list(items)
    samples: dict[str, list[float]] = {item.id: [] for item in wanted}
    for number in range(sittings):
        # Each sitting begins with another one, in new processes: memory lies elsewhere.
        turned = wanted[number % len(wanted) :] + wanted[: number % len(wanted)]
        with Measurer(device, work / "measuring") as measurer:
            taken = measurer.finals(case, turned, protocol="acceptance").samples_seconds
        for code in samples:
            samples[code] += taken.get(code, ())
        say(f"sitting {number + 1} of {sittings}: {len(taken)} kernels, interleaved")
    most = max(len(taken) for taken in samples.values())
    return {code: taken for code, taken in samples.items() if len(taken) == most}


def run(given: argparse.Namespace) -> dict[str, Any]:
    """Search, measure again, report."""
    device = attached_devices(given.data_dir)[0]
    dims = parse_shape(given.shape, kernels()[given.kernel].program.dims)
    case = resolve_case({"kernel": given.kernel, "dims": dims})
    found = []
    for number in range(given.searches):
        state = tune(case, device=device, work_dir=given.data_dir, space=parse_space(given.space), baselines=())
        found.append(searched(state))
        say(f"search {number + 1} of {given.searches}: {candidate_words(found[-1].winner.candidate.document())}")
    # The finalist that runs for a code may differ from search to search; its machine code does not.
    items = {code: item for one in found for code, item in one.finalists.items()}
    again = measure_again(device, case, items.values(), given.data_dir, sittings=given.sittings)
    return {"device": device.name, "case": case_words(case.document()), **report(found, again, sittings=given.sittings)}


def show(found: Mapping[str, Any]) -> None:
    """The report as text."""
    searches = found["searches"]
    print_line(f"{found['case']} on {found['device']}, one thread, searched {len(searches)} times")
    print_table(
        ["search", "winner", ">finals median", ">ties", ">noise floor", "its ties hold every winner", ">regret"],
        [
            [
                str(number),
                candidate_words(one["winner"]),
                seconds_words(one["median_seconds"]),
                str(one["ties"]),
                percent_words(one["noise_floor"]),
                "yes" if one["holds_every_winner"] else "no",
                percent_words(one["regret"]),
            ]
            for number, one in enumerate(searches, 1)
        ],
    )
    rounds = len(next(iter(found["samples_seconds"].values())))
    print_line()
    print_line(f"Measured again: {rounds} interleaved rounds of the acceptance protocol")
    print_table(
        ["kernel", ">won", ">median", ">over the fastest", "range of the rounds", "tied with it"],
        [
            [
                candidate_words(row["candidate"]),
                str(row["won"]),
                seconds_words(row["median_seconds"]),
                times_words(row["ratio"]["median"]),
                f"[{times_words(row['ratio']['min'])}, {times_words(row['ratio']['max'])}]",
                "yes" if row["tied"] else "no",
            ]
            for row in found["measured_again"]
        ],
    )
    holding = found["searches_whose_tie_set_holds_every_winner"]
    worst = max(one["regret"] for one in searches)
    tied = "lie in one tie set" if found["all_tied_when_measured_again"] else "do not lie in one tie set"
    print_line()
    print_line(f"{found['distinct_winners']} distinct; flip rate {percent_words(found['flip_rate'])} of pairs")
    print_line(f"tie sets that hold every winner: {holding} of {len(searches)} searches'; measured again, they {tied}")
    print_line(f"largest regret of a winner against the fastest of the re-measurement: {percent_words(worst)}")
    print_line("A range is what the rounds showed, not a confidence interval.")


def main() -> int:
    """Print the table, or JSON."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("kernel", nargs="?", default="softmax", choices=sorted(kernels()))
    parser.add_argument("shape", nargs="?", default="64x256")
    parser.add_argument("--space", action="append", metavar="KNOB=A,B", help=f"default: {' '.join(SPACE)}")
    parser.add_argument("--searches", type=int, default=5)
    parser.add_argument("--sittings", type=int, default=6, help="of 9 rounds each")
    parser.add_argument("--data-dir", type=Path, default=Path(".data/bench-stability"))
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    if min(given.searches, given.sittings) < 1:
        parser.error("--searches and --sittings are at least 1")
    given.space = given.space or SPACE
    try:
        found = run(given)
    except InvalidInput as error:
        parser.error("; ".join(f"{p.field}: {p.message} (given {p.value!r})" for p in error.problems))
    except CommandError as error:
        parser.error(str(error))
    except (ValueError, TunerError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    if given.json:
        json.dump(found, sys.stdout, indent=2, ensure_ascii=False)
        print()
    else:
        show(found)
    return 0


if __name__ == "__main__":
    sys.exit(main())
