"""From command-line words to the body of ``POST /v1/jobs``. The service checks what the words mean."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from search.errors import InvalidInput
from tuner_service.cli.errors import BadOptionError, CommandError
from tuner_service.strict_json import parse_list, parse_object

Document = dict[str, Any]


def read_program(path: Path) -> Document:
    """The program document in a file."""
    try:
        return parse_object(path.read_bytes(), what="the file")
    except OSError as error:
        raise BadOptionError("--program", str(path), f"cannot be read: {error.strerror or error}") from None
    except InvalidInput as error:
        raise BadOptionError("--program", str(path), str(error), allowed="a program document") from None


def parse_pairs(option: str, words: Sequence[str] | None) -> dict[str, str]:
    """``NAME=VALUE`` words, also several in one word with commas; each name once."""
    pairs: dict[str, str] = {}
    for word in words or ():
        for part in word.split(","):
            name, equals, value = part.partition("=")
            if not equals or not name.strip() or not value.strip():
                raise BadOptionError(option, word, "is not NAME=VALUE", allowed="NAME=VALUE[,NAME=VALUE…]")
            if name.strip() in pairs:
                raise BadOptionError(option, word, f"gives {name.strip()!r} twice")
            pairs[name.strip()] = value.strip()
    return pairs


def parse_number(option: str, word: str) -> int | float:
    """A finite number; an integer stays one."""
    try:
        return int(word)
    except ValueError:
        pass
    try:
        number = float(word)
    except ValueError:
        number = math.nan
    if not math.isfinite(number):
        raise BadOptionError(option, word, "is not a finite number", allowed="a number, like 1e-5")
    return number


def parse_extent(option: str, word: str, text: str) -> int:
    """One extent of a shape: an integer. Whether it is large enough or too large, the service says."""
    try:
        return int(text)
    except ValueError:
        raise BadOptionError(option, word, f"{text!r} is not an integer", allowed="positive integers") from None


def parse_shape(word: str, dims: Sequence[str]) -> dict[str, int]:
    """``1024x4096`` as extents, in the order of ``dims``."""
    parts = word.lower().replace("×", "x").split("x")
    if len(parts) != len(dims):
        raise BadOptionError(
            "--shape", word, f"has {len(parts)} extents, the kernel has {len(dims)}", allowed="x".join(dims).upper()
        )
    return {name: parse_extent("--shape", word, part.strip()) for name, part in zip(dims, parts, strict=True)}


def parse_dims(words: Sequence[str] | None, shapes: Sequence[str] | None, names: Sequence[str]) -> list[dict[str, int]]:
    """The extents of every case, from ``--shape`` and ``--dims`` words. At least one."""
    cases = [parse_shape(word, names) for word in shapes or ()]
    for word in words or ():
        pairs = parse_pairs("--dims", [word])
        cases.append({name: parse_extent("--dims", word, text) for name, text in pairs.items()})
    if not cases:
        raise CommandError(f"give at least one --shape {'x'.join(names).upper()} or --dims {'=…,'.join(names)}=…")
    return cases


def parse_space(words: Sequence[str] | None) -> dict[str, list[Any]]:
    """``KNOB=A,B`` words; integers and true/false become such, ``KNOB=[…]`` is read as JSON."""
    space: dict[str, list[Any]] = {}
    for word in words or ():
        knob, equals, text = word.partition("=")
        if not equals or not knob.strip():
            raise BadOptionError("--space", word, "is not KNOB=VALUES", allowed="KNOB=A,B or KNOB=[JSON]")
        if knob.strip() in space:
            raise BadOptionError("--space", word, f"gives {knob.strip()!r} twice")
        space[knob.strip()] = _knob_values(word, text.strip())
    return space


def _knob_values(word: str, text: str) -> list[Any]:
    if text.startswith("["):
        try:
            return parse_list(text, what="the list")
        except InvalidInput as error:
            raise BadOptionError("--space", word, str(error)) from None
    return [_knob_value(part.strip()) for part in text.split(",")] if text else []


def _knob_value(word: str) -> Any:
    if word in ("true", "false"):
        return word == "true"
    try:
        return int(word)
    except ValueError:
        return word


def parse_budget(word: str) -> int | None:
    """``--budget``: an integer, or ``none`` for unlimited."""
    if word.lower() in ("none", "null", "unlimited"):
        return None
    try:
        return int(word)
    except ValueError:
        raise BadOptionError("--budget", word, "is not an integer", allowed="an integer ≥ 0, or none") from None


def build_cases(
    stated: Mapping[str, Any],
    *,
    shapes: Sequence[str] | None,
    dims: Sequence[str] | None,
    kernel_document: Callable[[str], Mapping[str, Any]],
) -> list[Document]:
    """The ``cases`` of a request, from what :func:`read_words` gave.

    ``kernel_document(name)`` is asked for the order of a built-in kernel's dims.
    """
    names = list(kernel_document(stated["kernel"])["dims"]) if "kernel" in stated else _program_dims(stated["program"])
    return [{**stated, "dims": extents} for extents in parse_dims(dims, shapes, names)]


def _program_dims(document: Mapping[str, Any]) -> list[str]:
    listed = document.get("dims")
    return [str(name) for name in listed] if isinstance(listed, list) else []


def read_words(
    *,
    kernel: str | None,
    program: Path | None,
    shapes: Sequence[str] | None,
    dims: Sequence[str] | None,
    params: Sequence[str] | None,
    dtypes: Sequence[str] | None,
    space: Sequence[str] | None = None,
    budget: str | None = None,
    labels: Sequence[str] | None = None,
) -> Document:
    """What every case says: kernel or program, params, dtypes. Reads the program once: it may come from a pipe.

    Raises what is wrong with any of the words and files as such: call it before a service is looked for or started.
    Only the shapes of a built-in kernel are left to :func:`build_cases`, as they need its dims.
    """
    if program is None:
        for word in dims or ():
            for text in parse_pairs("--dims", [word]).values():
                parse_extent("--dims", word, text)
    if (kernel is None) == (program is None):
        raise CommandError("name one kernel, or give one --program FILE")
    stated: Document = {"kernel": kernel} if program is None else {"program": read_program(program)}
    if params:
        stated["params"] = {n: parse_number("--param", t) for n, t in parse_pairs("--param", params).items()}
    if dtypes:
        stated["dtypes"] = dict(parse_pairs("--dtype", dtypes))
    if program is not None:
        parse_dims(dims, shapes, _program_dims(stated["program"]))
    build_request(cases=[], device="", space=space, budget=budget, labels=labels)
    return stated


def build_request(
    *,
    cases: Sequence[Mapping[str, Any]],
    device: str,
    space: Sequence[str] | None,
    budget: str | None,
    baselines: Sequence[str] | None = None,
    labels: Sequence[str] | None = None,
    priority: int | None = None,
    limits: Mapping[str, float] | None = None,
    spills_allowed: bool = True,
    cache_context: str | None = None,
) -> Document:
    """The body of ``POST /v1/jobs``; what was not said is left out, so that the service's defaults hold."""
    body: Document = {"cases": [dict(case) for case in cases], "device": device}
    if space:
        body["space"] = parse_space(space)
    if budget is not None:
        body["private_budget_scalars"] = parse_budget(budget)
    if not spills_allowed:
        body["spills_allowed"] = False
    if cache_context is not None:
        body["cache_context"] = cache_context
    if baselines:
        body["baselines"] = [] if list(baselines) == ["none"] else list(baselines)
    if labels:
        body["labels"] = dict(parse_pairs("--label", labels))
    if priority is not None:
        body["priority"] = priority
    if limits:
        body["limits"] = dict(limits)
    return body
