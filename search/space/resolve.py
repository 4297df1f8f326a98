"""A caller's ``space`` document → Space. Reports everything wrong with it at once."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from search.errors import InvalidInput, Problem
from search.program.algorithms import WRITTEN, AlgorithmWord, algorithms
from search.program.case import Case
from search.program.desugar import desugar
from search.program.ir import Reducer, Store, Tile
from search.program.report import Report, child, shown
from search.space.candidate import InputWord, TargetKind
from search.space.enumerate import MAX_CANDIDATES_PER_CASE, InputValue, Space
from search.space.knobs import KNOBS, Knob, target_knobs
from search.space.uses import Use, cacheable_inputs, statement_uses, storable_inputs, streamable

MAX_PROBLEMS_PER_KNOB = 20
ROW_GROUPS = ("row_block", "rows_per_block")
"""Knobs that say how many rows are worked on together."""


def resolve_space(
    document: Any, case: Case, target: TargetKind, *, pointer: str = "/space", exact: bool = False
) -> Space:
    """The space that a document (knob → list) describes for one case; missing knobs take the target's default lists.

    InvalidInput with every problem, pointers under ``pointer``: unknown knobs and knobs of another target (allowed:
    the target's), lists that are empty or no lists, duplicates, values outside the domain, ``input`` maps that name
    what cannot be cached, more than ``MAX_CANDIDATES_PER_CASE`` candidates (counted before any is made).

    Several rows at a time (``ROW_GROUPS``) may be refused, by a limit of the mapping, the budget, or the lowering: one
    row at a time is always in the space beside them. ``exact``: not here; the lists are of a space that was resolved
    before, or of one candidate.
    """
    knobs = {knob.name: knob for knob in target_knobs(target)}
    if not isinstance(document, Mapping):
        message = "a space is an object: knob to list of values"
        raise InvalidInput([Problem(field=pointer, value=shown(document), message=message, allowed=list(knobs))])
    program = _ProgramFacts.of(case)
    report = Report()
    for name, value in document.items():
        if name not in knobs:
            _report_unknown(report, name, value, target, knobs, pointer)
    lists: dict[str, tuple[Any, ...]] = {}
    for knob in knobs.values():
        given = document[knob.name] if knob.name in document else knob.default(target, case)
        legal = _report_list(report, knob, given, program, f"{pointer}/{knob.name}")
        if legal and knob.name in ROW_GROUPS and not exact:
            given = (*given, knob.inert)
        lists[knob.name] = _canonical(knob, given, program) if legal else ()
    report.raise_if_any()
    inert = program.inert_knobs(lists)
    lists = {name: (knobs[name].inert,) if name in inert else values for name, values in lists.items()}
    space = Space(target=target, lists=lists, inert_knobs=tuple(name for name in knobs if name in inert))
    if space.size > MAX_CANDIDATES_PER_CASE:
        message = f"the space has {space.size} candidates for this case; shorten some lists"
        allowed = f"at most {MAX_CANDIDATES_PER_CASE} candidates per case"
        raise InvalidInput([Problem(field=pointer, value=space.size, message=message, allowed=allowed)])
    return space


@dataclass(frozen=True, kw_only=True)
class _ProgramFacts:
    """What the space needs to know of a program."""

    case: Case
    uses: tuple[Use, ...]
    storable: tuple[str, ...]
    cacheable: tuple[str, ...]
    algorithms: tuple[AlgorithmWord, ...]

    @classmethod
    def of(cls, case: Case) -> _ProgramFacts:
        uses = statement_uses(desugar(case.program))
        return cls(
            case=case,
            uses=uses,
            storable=storable_inputs(case, uses),
            cacheable=cacheable_inputs(case, uses),
            algorithms=algorithms(case.program),
        )

    def inert_knobs(self, lists: Mapping[str, Sequence[Any]]) -> set[str]:
        """Knobs that cannot matter. Conservative: only where no operation of the program could depend on the knob."""
        statements = [use.statement for use in self.uses]
        inert: set[str] = set()
        if not any(isinstance(statement, Tile) for statement in statements):
            inert.add("materialize")
        if self.algorithms == (WRITTEN,):
            inert.add("algorithm")
        if not self.cacheable and all(value == "reload" for value in lists["input"]):
            inert |= {"input", "fusion"}
        if not any(isinstance(statement, Reducer) and statement.order != "strict" for statement in statements):
            inert.add("partials")
        if not any(use.distributed for use in self.uses):
            inert |= {"vector", "unroll"}
        if not any(isinstance(statement, Store) and streamable(self.case, statement) for statement in statements):
            inert.add("nontemporal")
        return inert & set(lists)


def _report_unknown(
    report: Report, name: Any, value: Any, target: TargetKind, knobs: Mapping[str, Knob], pointer: str
) -> None:
    elsewhere = [other for knob in KNOBS if knob.name == name for other in knob.defaults]
    message = f"{name} is a knob of {', '.join(elsewhere)}, not of {target}" if elsewhere else "unknown knob"
    report.add(child(pointer, name), value, message, list(knobs))


def _report_list(report: Report, knob: Knob, values: Any, program: _ProgramFacts, field: str) -> bool:
    """Reports what is wrong with one knob's list; True when nothing is."""
    allowed = list(program.algorithms if knob.name == "algorithm" else knob.domain)
    if not isinstance(values, list | tuple):
        report.add(field, values, "a knob takes a list of values", allowed)
        return False
    if not values:
        report.add(field, [], "an empty list leaves no candidate; leave the knob out for its default list", allowed)
        return False
    before = len(report.problems)
    seen: set[str] = set()
    for position, value in enumerate(values):
        here = child(field, position)
        wrong = len(report.problems)
        if knob.name == "input" and isinstance(value, Mapping):
            _report_map(report, value, program, here)
        elif not knob.allowed(value):
            report.add(here, value, f"not a value of {knob.name} ({knob.meaning})", allowed)
        if len(report.problems) == wrong:
            text = json.dumps(value, sort_keys=True)
            if text in seen:
                report.add(here, value, "this value stands twice", allowed)
            seen.add(text)
        if len(report.problems) - before >= MAX_PROBLEMS_PER_KNOB:
            break
    if knob.name == "algorithm" and len(report.problems) == before and not set(values) & set(program.algorithms):
        message = "no statements of this program match what these algorithms replace"
        report.add(field, list(values), message, allowed)
    return len(report.problems) == before


def _report_map(report: Report, value: Mapping[str, Any], program: _ProgramFacts, field: str) -> None:
    for tensor, word in value.items():
        if tensor not in program.storable:
            known = tensor in {t.name for t in program.case.program.tensors}
            message = (
                "this tensor cannot be cached: only inputs with row and column axes, read where each lane stands, can"
                if known
                else "the program has no such tensor"
            )
            report.add(child(field, tensor), word, message, list(program.storable))
        elif word not in ("reload", "cache"):
            report.add(child(field, tensor), word, "a tensor is reloaded or cached", ["reload", "cache"])


def _canonical(knob: Knob, values: Sequence[Any], program: _ProgramFacts) -> tuple[Any, ...]:
    """Values in domain order; ``input`` maps as words where a word says the same, else after the words."""
    if knob.name == "algorithm":
        # words that match nothing here are left out, so that one space can serve several cases
        return tuple(word for word in program.algorithms if word in values)
    if knob.name != "input":
        return tuple(member for member in knob.domain if any(v == member and type(v) is type(member) for v in values))
    cached = {_cached_by(value, program) for value in values}
    # Fewer cached tensors first, as reload stands before cache; words stand before maps.
    order = sorted(cached, key=lambda names: (names not in ((), program.cacheable), len(names), names))
    return tuple(_input_value(names, program) for names in order)


def _cached_by(value: Any, program: _ProgramFacts) -> tuple[str, ...]:
    """The tensors that a word or map caches, in declaration order."""
    if isinstance(value, Mapping):
        return tuple(name for name in program.storable if value.get(name) == "cache")
    return program.cacheable if value == "cache" else ()


def _input_value(cached: tuple[str, ...], program: _ProgramFacts) -> InputValue:
    if not cached:
        return "reload"
    if cached == program.cacheable:
        return "cache"
    words: dict[str, InputWord] = dict.fromkeys(program.cacheable, "reload")
    words |= dict.fromkeys(cached, "cache")
    return tuple(sorted(words.items()))
