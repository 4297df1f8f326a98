"""Coverage, order and clocks: every round has every arm of every case, in balanced order, one after another."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TypeVar

from catalogs.auditing.book import Book
from catalogs.auditing.cases import AuditedCase
from catalogs.auditing.records import AuditedRecord

_LATER = ("D", "I", "A")
T = TypeVar("T")


def order_of_round(number: int, cases: Sequence[AuditedCase]) -> list[tuple[int, str]]:
    """(case, arm) of each record of a round, in the order in which they must have been timed."""
    kernels = ["R", "C"] if number % 2 == 0 else ["C", "R"]
    first = [*kernels, "T"] if number // 2 % 2 == 0 else ["T", *kernels]
    arms = [*first, *_rotated(_LATER, number)]
    return [(case.index, arm) for case in _rotated(cases, number) for arm in arms if arm in case.measured]


def check_order(
    records: Sequence[AuditedRecord], cases: Mapping[int, AuditedCase], rounds: int, book: Book, *, complete: bool
) -> None:
    """That the records are those of every round, in its order. ``complete``: every case of the bundle could be read."""
    by_round: dict[int, list[AuditedRecord]] = {}
    for record in records:
        by_round.setdefault(record.document["round"], []).append(record)
    for number in sorted(by_round.keys() - set(range(rounds))):
        for record in by_round[number]:
            book.find(record.name, f"there are {rounds} rounds, from 0 on", field="round")
    missing_rounds = [number for number in range(rounds) if number not in by_round]
    for number in missing_rounds:
        book.find(f"round {number}", "has no records: a round is missing")
    for number in sorted(set(range(rounds)) - set(missing_rounds)):
        _check_round(number, by_round[number], cases, book, complete=complete)
        book.checked["rounds"] += 1
    numbers = [record.document["round"] for record in records]
    if numbers != sorted(numbers):
        at = next(n for n in range(1, len(numbers)) if numbers[n] < numbers[n - 1])
        book.find(records[at].name, "stands after a record of a later round", field="round")
    _check_balance(records, cases, rounds, book)


def check_clocks(records: Sequence[AuditedRecord], book: Book) -> None:
    """That each record began after the one before it had ended, by both clocks."""
    whole = [record for record in records if record.whole]
    for before, record in itertools.pairwise(whole):
        if record.started < before.finished:
            book.find(
                record.name, f"before {before.name} had finished: they overlap or are reversed", field="started_at"
            )
        if record.document["started_monotonic_seconds"] < before.document["finished_monotonic_seconds"]:
            message = f"before {before.name} had finished: they overlap or are reversed"
            book.find(record.name, message, field="started_monotonic_seconds")
        book.checked["pairs of neighbours in time"] += 1


def _check_round(
    number: int, found: Sequence[AuditedRecord], cases: Mapping[int, AuditedCase], book: Book, *, complete: bool
) -> None:
    expected = order_of_round(number, list(cases.values()))
    got = [record.place[1:] for record in found]
    for case, arm in Counter(expected) - Counter(got):
        book.find(f"round {number}", f"no record of {cases[case].name}, arm {arm}: a record is missing")
    for record in found:
        case = record.document["case"]
        if case in cases and record.place[1:] not in expected:
            book.find(record.name, f"{cases[case].name} has no such arm to measure: a record too many", field="arm")
        elif case not in cases and complete:
            book.find(record.name, "there is no such case", field="case")
    if not complete:
        return
    for place, record in enumerate(found):
        if record.document.get("position") != place:
            book.find(record.name, f"it is record {place} of its round: positions leave none out", field="position")
            break
    if Counter(expected) == Counter(got) and expected != got:
        at = next(n for n in range(len(expected)) if expected[n] != got[n])
        case, arm = expected[at]
        book.find(found[at].name, f"the order of round {number} has case {case}, arm {arm} here: the order was changed")


def _check_balance(records: Sequence[AuditedRecord], cases: Mapping[int, AuditedCase], rounds: int, book: Book) -> None:
    """Each of R and C, and each of kernels and torch, comes first equally often, and so do all four combinations."""
    places = {record.place: position for position, record in enumerate(records)}
    for case in cases.values():
        arms = [arm for arm in ("R", "C", "T") if arm in case.measured]
        if len(arms) < 2:
            continue
        seen: Counter[tuple[str, ...]] = Counter()
        for number in range(rounds):
            at = {arm: places.get((number, case.index, arm)) for arm in arms}
            if None in at.values():
                break  # a missing record is found elsewhere
            ordered = sorted(arms, key=lambda arm: at[arm] or 0)
            seen[tuple(ordered)] += 1
        else:
            book.checked["balances"] += 1
            if len(set(seen.values())) != 1 or len(seen) != 2 ** (len(arms) - 1):
                told = ", ".join(f"{' '.join(order)}: {count}" for order, count in sorted(seen.items()))
                book.find(case.name, f"the order of its arms is not balanced over the rounds ({told})")


def _rotated(items: Sequence[T], by: int) -> list[T]:
    turn = by % len(items) if items else 0
    return [*items[turn:], *items[:turn]]
