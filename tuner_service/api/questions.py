"""What a lookup asks: the query parameters of ``GET /v1/winners``, or the body of its ``POST``, as an exact key."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from catalogs.fields import is_sha256
from catalogs.key import ANY_TOOLCHAIN, AnyToolchain
from catalogs.lookup import Query
from search.device.spec import CACHE_CONTEXTS, DeviceSpec
from search.errors import InvalidInput, Problem
from search.program.case import Case
from search.program.digest import program_digest
from search.program.document import parse_program
from search.program.library import kernels
from search.program.limits import ADMITTED_LIMITS, Limits
from search.program.report import Report, child
from search.program.resolve import CASE_KEYS, resolve_case
from search.selection.freeze import lookup_key
from tuner_service.api.query import parse_pairs

ANY_WORD = "any"
WHERE_KEYS = ("device", "toolchain", "catalog", "cache_context")
QUESTION_KEYS = (*CASE_KEYS, *WHERE_KEYS)


def case_of_parameters(
    *,
    kernel: str,
    dims: str,
    dtypes: str,
    params: str,
    digest: str | None,
    sent: Sequence[Mapping[str, Any]],
) -> Case:
    """The case that query parameters name. Params and dtypes that are left out take the program's defaults.

    ``sent``: the programs that were sent under the kernel's name, newest first. ``digest``: of the program with its
    params, where several have the name. Raises InvalidInput naming the query parameters.
    """
    asked = {
        "dims": _numbers(dims, name="dims"),
        "params": _numbers(params, name="params"),
        "dtypes": parse_pairs(dtypes, name="dtypes"),
    }
    named: list[dict[str, Any]] = [{"kernel": kernel}] if kernel in kernels() else []
    named += [{"program": document} for document in sent]
    if not named:
        message = "no built-in kernel has this name, and no program was sent under it"
        raise InvalidInput([Problem(field="/query/kernel", value=kernel, message=message, allowed=list(kernels()))])
    if digest is None:
        if "program" in named[0]:
            _only_one(sent, kernel)
        return resolve_case({**named[0], **asked}, pointer="/query", admitted=True)
    found: dict[str, Case] = {}
    refused: InvalidInput | None = None
    for what in named:
        try:
            case = resolve_case({**what, **asked}, pointer="/query", admitted=True)
        except InvalidInput as error:
            refused = refused or error
        else:
            found.setdefault(program_digest(case.program, case.params), case)
    if digest in found:
        return found[digest]
    if refused is not None and not found:
        raise refused
    message = f"no program of the name {kernel!r} has this digest with these params"
    raise InvalidInput([Problem(field="/query/program_digest", value=digest, message=message, allowed=list(found))])


def _only_one(sent: Sequence[Mapping[str, Any]], kernel: str) -> None:
    """Refuses a name that several programs have: which one is meant is not guessed."""
    programs = [parse_program(document, limits=ADMITTED_LIMITS) for document in sent]
    # by their defaults: not every one need have the params that were asked for
    digests = {program_digest(one, {param.name: param.default for param in one.params}) for one in programs}
    if len(digests) > 1:
        message = f"{len(digests)} programs were sent under the name {kernel!r}; say which one is meant"
        allowed = "the program_digest of an entry's key, or POST with the program itself"
        raise InvalidInput([Problem(field="/query/program_digest", value=None, message=message, allowed=allowed)])


def case_of_body(body: Mapping[str, Any], *, limits: Limits) -> Case:
    """The case of a lookup's body: a case as in a job, and beside it where to look. InvalidInput with every fault."""
    report = Report()
    report.unknown_keys(body, QUESTION_KEYS)
    for key in WHERE_KEYS:
        if not isinstance(body.get(key), str | None):
            report.add(child("", key), body[key], f"{key!r} is text", "a string, or left out")
    try:
        case = resolve_case({key: body[key] for key in body if key in CASE_KEYS}, limits=limits)
    except InvalidInput as error:
        report.extend(error.problems)
        report.raise_if_any()
        raise
    report.raise_if_any()
    return case


def question(
    case: Case,
    *,
    device: str | None,
    toolchain: str | None,
    cache_context: str | None,
    devices: Mapping[str, DeviceSpec],
    pointer: str,
) -> Query:
    """The exact key of a case on a device.

    ``device``: id, kind, or identity digest; ``toolchain``: fingerprint or ``any``. Left out, each is that of the
    one attached device, and ``cache_context`` is warm. Raises InvalidInput whose fields begin with ``pointer``.
    """
    if cache_context not in (None, *CACHE_CONTEXTS):
        message = "unknown cache context"
        problem = Problem(
            field=f"{pointer}/cache_context", value=cache_context, message=message, allowed=list(CACHE_CONTEXTS)
        )
        raise InvalidInput([problem])
    identity, fingerprint = _device(device, devices, pointer)
    return Query(
        kernel=case.kernel,
        params=dict(case.params),
        key=lookup_key(case, device=identity, toolchain="", cache_context=cache_context or "warm"),
        toolchain=_toolchain(toolchain, fingerprint, pointer),
    )


def _numbers(text: str, *, name: str) -> dict[str, int | float]:
    numbers: dict[str, int | float] = {}
    for key, value in parse_pairs(text, name=name).items():
        try:
            numbers[key] = int(value) if value.lstrip("-").isdecimal() and len(value) <= 20 else float(value)
        except ValueError:
            numbers[key] = math.nan
        if not math.isfinite(numbers[key]):
            problem = Problem(
                field=f"/query/{name}/{key}", value=value, message="not a number", allowed="a finite number"
            )
            raise InvalidInput([problem])
    return numbers


def _device(asked: str | None, devices: Mapping[str, DeviceSpec], pointer: str) -> tuple[str, str | None]:
    """Identity digest, and the toolchain fingerprint when the device is attached."""
    # No winner can be on a device that times nothing, so such a one is never meant by leaving the device out.
    meant = [d for d in devices.values() if d.timed or asked is not None]
    matching = [d for d in meant if asked in (None, d.id, d.kind, d.identity_digest)]
    if len({d.identity_digest for d in matching}) == 1:
        return matching[0].identity_digest, matching[0].toolchain_fingerprint
    if asked is not None and not matching and is_sha256(asked):
        return asked, None
    message = "several attached devices match; name one by id" if matching else "no such device is attached"
    allowed = sorted({d.id for d in devices.values()} | {d.kind for d in devices.values()})
    raise InvalidInput(
        [Problem(field=f"{pointer}/device", value=asked, message=message, allowed=[*allowed, "an identity digest"])]
    )


def _toolchain(asked: str | None, attached: str | None, pointer: str) -> str | AnyToolchain:
    if asked == ANY_WORD:
        return ANY_TOOLCHAIN
    if asked is not None and is_sha256(asked):
        return asked
    if asked is None and attached is not None:
        return attached
    message = "this is not a toolchain" if asked is not None else "the device is not attached, so name a toolchain"
    allowed = [*([attached] if attached else []), ANY_WORD, "a fingerprint: 64 hexadecimal digits"]
    raise InvalidInput([Problem(field=f"{pointer}/toolchain", value=asked, message=message, allowed=allowed)])
