"""What a job or plan asks for: the JSON body resolved, or everything that is wrong with it at once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from search.device.spec import (
    CACHE_CONTEXTS,
    DTYPES_BY_TARGET,
    CacheContext,
    DeviceSpec,
    check_cache_context,
    check_spills_allowed,
)
from search.errors import InvalidInput, Problem
from search.measuring.protocol import BASELINES
from search.planning.budget import DEFAULT_BUDGET_SCALARS, validate_budget
from search.program.case import Case
from search.program.digest import program_digest
from search.program.limits import DEFAULT_LIMITS
from search.program.limits import Limits as ProgramLimits
from search.program.report import Report, child
from search.program.resolve import resolve_case
from search.program.size import program_nodes
from search.space.candidate import TargetKind
from search.space.enumerate import MAX_CANDIDATES_PER_CASE, Space
from search.space.knobs import target_knobs
from search.space.resolve import resolve_space
from tuner_service.counting import counted
from tuner_service.jobs.limits import DEFAULT_PRIORITY, read_limits, read_priority

KEYS = (
    *("cases", "device", "space", "private_budget_scalars", "spills_allowed"),
    *("protocol", "cache_context", "baselines", "labels", "priority", "limits"),
)
SEARCH_PROTOCOLS = ("search",)
"""Protocols that a job may ask for: finals and acceptance are not ways to search."""
DEFAULT_DEVICE = "cpu"
LABEL_NAME_CHARS, LABEL_VALUE_CHARS = 64, 256
_NONE: Mapping[str, DeviceSpec] = {}


@dataclass(frozen=True, kw_only=True)
class Limits:
    """How much one request may ask for."""

    cases: int = 64
    candidates_per_case: int = MAX_CANDIDATES_PER_CASE
    candidates_per_job: int = 200_000
    planned_nodes: int = 20_000_000
    """Candidates × nodes of their program, all cases together: planning walks them, for minutes at most."""
    labels: int = 32
    program: ProgramLimits = field(default=DEFAULT_LIMITS)


@dataclass(frozen=True, kw_only=True)
class ResolvedCase:
    """One case of a request with its space."""

    case: Case
    space: Space


@dataclass(frozen=True, kw_only=True)
class ResolvedRequest:
    """A request with every default resolved. ``document`` is its JSON; sent again it resolves to the same."""

    document: Mapping[str, Any]
    device: DeviceSpec
    cases: tuple[ResolvedCase, ...]
    budget_scalars: int | None
    baselines: tuple[str, ...]
    protocol: str
    labels: Mapping[str, str]
    priority: int
    spills_allowed: bool = True
    cache_context: CacheContext = "warm"


def resolve_request(
    body: Any, *, devices: Mapping[str, DeviceSpec], limits: Limits, away: Mapping[str, DeviceSpec] = _NONE
) -> ResolvedRequest:
    """The complete request that a JSON body describes. ``devices``: id → spec, the unavailable ones included.

    ``away``: devices that may be named although they cannot be used now, the likeliest of a kind first.

    InvalidInput with every problem found; ``field`` is a JSON pointer into the body.
    """
    report = Report()
    body = report.members(body, KEYS, not_an_object="a request is a JSON object")
    device = _device(body.get("device", DEFAULT_DEVICE), devices, away, report)
    cases = _cases(body.get("cases"), limits, device, report)
    target = _target(body.get("device", DEFAULT_DEVICE), {**away, **devices})
    lists = _lists(body.get("space", {}), tuple(cases.values()), target)
    resolved = _spaces(lists, cases, target, limits, report)
    budget = _budget(body, report)
    protocol = body.get("protocol", SEARCH_PROTOCOLS[0])
    if protocol not in SEARCH_PROTOCOLS:
        report.add("/protocol", protocol, "unknown protocol", list(SEARCH_PROTOCOLS))
    spills_allowed, cache_context = _spills_allowed(body, device, report), _cache_context(body, device, report)
    baselines = _baselines(body, device, report)
    labels = read_labels(body.get("labels", {}), limits, report)
    priority = read_priority(body.get("priority", DEFAULT_PRIORITY), report)
    seconds = read_limits(body.get("limits", {}), report)
    if device is not None:
        _widths(resolved, device, report)
    report.raise_if_any()
    assert device is not None
    document = {
        "cases": [item.case.document() for item in resolved],
        "device": body.get("device", DEFAULT_DEVICE),
        "space": lists,
        "private_budget_scalars": budget,
        "protocol": protocol,
        "baselines": list(baselines),
        "labels": labels,
        # Said only where they are not what they always were, so that older requests stay as they are.
        **({} if spills_allowed else {"spills_allowed": False}),
        **({} if cache_context == "warm" else {"cache_context": cache_context}),
        **({"priority": priority} if priority != DEFAULT_PRIORITY else {}),
        **({"limits": seconds} if seconds else {}),
    }
    return ResolvedRequest(
        document=document,
        device=device,
        cases=tuple(resolved),
        budget_scalars=budget,
        baselines=baselines,
        protocol=protocol,
        labels=labels,
        priority=priority,
        spills_allowed=spills_allowed,
        cache_context=cache_context,
    )


def _device(
    name: Any, devices: Mapping[str, DeviceSpec], away: Mapping[str, DeviceSpec], report: Report
) -> DeviceSpec | None:
    """The device of that id, or the first usable one of that kind; else one that is away and may be named.

    Where one of the kind is here and of no use, no other is meant: the reason is what the caller needs to hear.
    """
    named, absent = _called(name, devices), _called(name, away)
    usable = [spec for spec in named if spec.available]
    if usable:
        return usable[0]
    if absent and (not named or any(spec.id in devices for spec in absent)):
        return min(absent, key=lambda spec: spec.id not in devices)
    if named:
        reasons = "; ".join(f"{spec.id}: {spec.reason or 'no reason known'}" for spec in named)
        others = sorted({word for spec in devices.values() if spec.available for word in (spec.kind, spec.id)})
        allowed = others or "none: no attached device can be used now"
        report.add("/device", name, f"this device is unavailable ({reasons})", allowed)
        return None
    known = sorted({word for spec in (*devices.values(), *away.values()) for word in (spec.kind, spec.id)})
    message = "unknown device: nothing of this name was ever attached; give a kind or an id"
    report.add("/device", name, message, known or "none: no device was ever attached, see `tuner worker`")
    return None


def _called(name: Any, devices: Mapping[str, DeviceSpec]) -> list[DeviceSpec]:
    return [spec for spec in devices.values() if isinstance(name, str) and name in (spec.id, spec.kind)]


def _target(name: Any, devices: Mapping[str, DeviceSpec]) -> TargetKind:
    """Whose knobs a body for this device means, also where there is no such device: its other faults are told too."""
    for spec in devices.values():
        if name in (spec.id, spec.kind):
            return spec.target
    return "cuda" if isinstance(name, str) and name.startswith(("cuda", "nvidia")) else "cpu"


def _cases(given: Any, limits: Limits, device: DeviceSpec | None, report: Report) -> dict[int, Case]:
    """Position → case, for those that resolve."""
    allowed = f"a list of 1 to {limits.cases} cases"
    if not isinstance(given, list) or not given:
        report.add(
            "/cases", given, "at least one case is needed" if given == [] else "expected a list of cases", allowed
        )
        return {}
    if len(given) > limits.cases:
        report.add("/cases", len(given), f"{counted(len(given), 'case')} in one job", allowed)
        return {}
    cases: dict[int, Case] = {}
    for position, document in enumerate(given):
        pointer = f"/cases/{position}"
        try:
            case = resolve_case(document, pointer=pointer, limits=limits.program)
        except InvalidInput as error:
            report.extend(error.problems)
            continue
        allowed_dtypes = DTYPES_BY_TARGET.get(device.target) if device else None
        for tensor, dtype in case.dtypes.items():
            if allowed_dtypes is not None and dtype not in allowed_dtypes:
                field_ = child(f"{pointer}/dtypes", tensor)
                report.add(field_, dtype, "this device has no such dtype", list(allowed_dtypes))
        cases[position] = case
    _report_repeated(cases, given, report)
    return cases


def _report_repeated(cases: Mapping[int, Case], given: list[Any], report: Report) -> None:
    """Each case once: however its kernel was named and its defaults were said, its key is what counts."""
    first: dict[Any, int] = {}
    for position, case in cases.items():
        key = (
            program_digest(case.program, case.params),
            tuple(sorted(case.dims.items())),
            tuple(sorted(case.dtypes.items())),
        )
        earlier = first.setdefault(key, position)
        if earlier != position:
            message = f"this is the same case as /cases/{earlier}: program, params, dims and dtypes are equal"
            report.add(f"/cases/{position}", given[position], message, "each case once")


def _spaces(
    given: Any, cases: Mapping[int, Case], target: TargetKind, limits: Limits, report: Report
) -> list[ResolvedCase]:
    """The space of every case; a problem that several cases share is told once."""
    resolved: list[ResolvedCase] = []
    problems: dict[tuple[str, str], Problem] = {}
    candidates = nodes = 0
    for position, case in cases.items():
        try:
            space = resolve_space(given, case, target)
        except InvalidInput as error:
            problems |= {(p.field, p.message): p for p in error.problems if (p.field, p.message) not in problems}
            continue
        candidates += space.size
        nodes += space.size * program_nodes(case.program)
        if space.size > limits.candidates_per_case:
            message = f"the space has {counted(space.size, 'candidate')} for case {position}; shorten some lists"
            allowed = f"at most {limits.candidates_per_case} candidates per case"
            report.add("/space", space.size, message, allowed)
        resolved.append(ResolvedCase(case=case, space=space))
    if not cases:
        problems = _without_cases(given, target)
    if candidates > limits.candidates_per_job:
        allowed = f"at most {limits.candidates_per_job} candidates per job"
        report.add("/space", candidates, f"the job has {counted(candidates, 'candidate')} over all cases", allowed)
    if nodes > limits.planned_nodes:
        message = f"planning would walk {nodes} nodes: candidates times the size of their program; shorten some lists"
        report.add("/space", nodes, message, f"at most {limits.planned_nodes} nodes of programs, over all candidates")
    report.extend(problems.values())
    return resolved


def _without_cases(given: Any, target: TargetKind) -> dict[tuple[str, str], Problem]:
    """What is wrong with a space whatever the case, so that a body with bad cases hears of its space as well."""
    if isinstance(given, Mapping) and isinstance(words := given.get("input"), list):
        given = {**given, "input": [word for word in words if not isinstance(word, Mapping)] or ["reload"]}
    stand_in = resolve_case({"kernel": "softmax", "dims": {"rows": 1, "cols": 1}})
    try:
        resolve_space(given, stand_in, target)
    except InvalidInput as error:
        return {(p.field, p.message): p for p in error.problems}
    return {}


def _lists(given: Any, cases: Sequence[Case], target: TargetKind) -> Any:
    """Every knob's list: the caller's, or what the device's default ones for these cases hold together.

    What is no object stays as it is, to be refused; so does what stands beside no legal case.
    """
    if not isinstance(given, Mapping) or not cases:
        return given
    lists = dict(given)
    for knob in target_knobs(target):
        if knob.name not in given:
            wanted = {value for case in cases for value in knob.default(target, case)}
            lists[knob.name] = [value for value in knob.domain if value in wanted]
    return lists


def _widths(cases: list[ResolvedCase], device: DeviceSpec, report: Report) -> None:
    wide = sorted({width for item in cases for width in item.space.lists["width"] if width > device.max_width})
    if wide:
        report.add("/space/width", wide, f"{device.id} cannot run such widths", f"<= {device.max_width}")


def _budget(body: Mapping[str, Any], report: Report) -> int | None:
    budget = body.get("private_budget_scalars", DEFAULT_BUDGET_SCALARS)
    try:
        return validate_budget(budget)
    except InvalidInput as error:
        report.extend(error.problems)
        return None


def _spills_allowed(body: Mapping[str, Any], device: DeviceSpec | None, report: Report) -> bool:
    given = body.get("spills_allowed", True)
    if not isinstance(given, bool):
        report.add("/spills_allowed", given, "expected true or false", [True, False])
        return True
    if device is not None:
        try:
            check_spills_allowed(given, device)
        except InvalidInput as error:
            report.extend(error.problems)
    return given


def _cache_context(body: Mapping[str, Any], device: DeviceSpec | None, report: Report) -> CacheContext:
    given = body.get("cache_context", "warm")
    known = next((word for word in CACHE_CONTEXTS if word == given), None)
    if known is None:
        allowed = list(device.cache_contexts if device else CACHE_CONTEXTS)
        report.add("/cache_context", given, "unknown cache context", allowed)
        return "warm"
    if device is not None:
        try:
            check_cache_context(known, device)
        except InvalidInput as error:
            report.extend(error.problems)
    return known


def _baselines(body: Mapping[str, Any], device: DeviceSpec | None, report: Report) -> tuple[str, ...]:
    """The baselines asked for, or the device's default ones. Nothing that was asked for is left out in silence."""
    given = body.get("baselines", list(device.default_baselines) if device else [])
    if not isinstance(given, list):
        report.add("/baselines", given, "expected a list of baselines", list(BASELINES))
        return ()
    if given and device is not None and device.untimed:
        report.add("/baselines", given, f"{device.untimed}, so no baseline can be compared with anything", [])
        return ()
    for position, name in enumerate(given):
        if name not in BASELINES:
            report.add(f"/baselines/{position}", name, "unknown baseline", list(BASELINES))
        elif name in given[:position]:
            report.add(f"/baselines/{position}", name, "this baseline stands twice", list(BASELINES))
        if position >= 2 * len(BASELINES):
            break
    return tuple(given)


def read_labels(given: Any, limits: Limits, report: Report) -> dict[str, str]:
    """The labels that a body gives; what is wrong with them is reported."""
    if not isinstance(given, Mapping):
        report.add("/labels", given, "labels are an object: name to text", "an object of texts")
        return {}
    if len(given) > limits.labels:
        report.add("/labels", len(given), f"{len(given)} labels", f"at most {limits.labels} labels")
        return {}
    allowed = f"a name of 1 to {LABEL_NAME_CHARS} and a text of at most {LABEL_VALUE_CHARS} characters"
    for name, value in given.items():
        if not isinstance(name, str) or not 0 < len(name) <= LABEL_NAME_CHARS or not name.isprintable() or "=" in name:
            message = "a label's name is printable, without =, and not endless"
            report.add(child("/labels", str(name)), name, message, allowed)
        elif not isinstance(value, str) or len(value) > LABEL_VALUE_CHARS or "\0" in value:
            report.add(child("/labels", name), value, "a label's value is a text, and not endless", allowed)
    return dict(given)
