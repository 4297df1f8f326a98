"""The results of an acceptance, worked out again from the raw samples: ratios, classes, margins, states, verdict."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from catalogs.auditing import arithmetic
from catalogs.auditing.book import Book
from catalogs.auditing.cases import AuditedCase
from catalogs.auditing.records import AuditedRecord
from catalogs.auditing.shapes import METRICS, OPPONENTS, RESULT, RESULTS

_DECIDING_METRIC = "device_batch"
_DECIDING_ARMS = ("R", "D", "I")


def check_results(
    document: Any, cases: Mapping[int, AuditedCase], records: Sequence[AuditedRecord], rounds: int, book: Book,
    *, cases_stated: int, canary: bool,
) -> None:  # fmt: skip
    """That the stated results are those of the records. A case that lacks a record cannot be worked out again.

    ``canary``: the replay ran on another toolchain than the candidate was frozen with, so nothing is accepted by it.
    """
    if not book.fits("results", document, RESULTS):
        return
    values = {record.place: record for record in records if record.whole}
    stated = document["cases"]
    if len(stated) != cases_stated:
        book.find("results", f"{len(stated)} cases, the bundle has {cases_stated}", field="cases")
    states = []
    for position, result in enumerate(stated):
        where = f"results.cases[{position}]"
        if not book.fits(where, result, RESULT):
            continue
        book.equal(where, "index", result["index"], position, "its place")
        case = cases.get(position)
        if case is None:
            continue
        for field in ("kernel", "params", "dims", "dtypes", "key_digest"):
            if field in result:
                book.equal(f"{where} ({case.name})", field, result[field], case.document[field], "the case's")
        complete = all((number, position, arm) in values for number in range(rounds) for arm in case.measured)
        if complete and case.codes_are_sound:
            states.append(_check_case(f"{where} ({case.name})", result, case, values, rounds, book))
    reasons = document["reasons"]
    if len(states) == cases_stated:
        verdict = "accepted" if all(state == "ok" for state in states) and not canary else "rejected"
        says = "what a replay on another toolchain gives" if canary else "what the cases' states say"
        book.equal("results", "verdict", document["verdict"], verdict, says)
        book.checked["verdicts recomputed"] += 1
    if document["verdict"] == "accepted" and reasons:
        book.find("results", "an accepted catalog has none", field="reasons")
    if document["verdict"] == "rejected" and not reasons:
        book.find("results", "a rejected catalog has at least one", field="reasons")


def _check_case(
    where: str, result: Mapping[str, Any], case: AuditedCase, values: Mapping[tuple[int, int, str], AuditedRecord],
    rounds: int, book: Book,
) -> str:  # fmt: skip
    """Compare one case's results; its state as the records have it."""

    def of(arm: str, metric: str) -> list[float]:
        timed = case.stand_in(arm)
        return [values[(number, case.index, timed)].value(metric) for number in range(rounds)]

    deciding = []
    for metric in METRICS:
        for name, arm in OPPONENTS.items():
            field, stated = f"metrics.{metric}.{name}", result["metrics"][metric][name]
            if case.arms[arm] is None:
                if stated is not None:
                    book.find(where, f"the case has no arm {arm}", field=field)
                continue
            found = arithmetic.compare(of(arm, metric), of("C", metric), same_code=case.same_code(arm))
            book.checked["ratios recomputed"] += rounds
            book.checked["classes recomputed"] += 1
            if metric == _DECIDING_METRIC and arm in _DECIDING_ARMS:
                deciding.append(found.median)
            if stated is None:
                book.find(where, f"missing, though arm {arm} was measured", field=field)
                continue
            book.equal(where, f"{field}.class", stated["class"], found.word, "what the rounds' ratios say")
            for figure, wanted in (("median", found.median), ("min", found.low), ("max", found.high)):
                member = f"ratio_{figure}"
                book.equal(where, f"{field}.{member}", stated[member], wanted, "the figure of the rounds' ratios")
    spread = arithmetic.spread(of("A", _DECIDING_METRIC), of("C", _DECIDING_METRIC))
    if "spread" in result:
        book.equal(where, "spread", result["spread"], spread, "the A/A spread of the records")
    book.equal(where, "margin", result["margin"], arithmetic.margin(spread), "max(0.02, A/A spread)")
    state = arithmetic.state(spread, deciding)
    book.equal(where, "state", result["state"], state, "what its ratios and margin say")
    book.checked["margins recomputed"] += 1
    return state
