"""The tensors of one call, put in declared order, and what may be wrong between them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from search.errors import InvalidInput, Problem
from search.jit.signature import Layout, Signature

Pair = tuple[int, int]


def arrange(
    kernel: str, signature: Signature, tensors: Sequence[Any], out: Any, named: Mapping[str, Any]
) -> tuple[Any, ...]:
    """Every tensor in declared order, None for outputs that are not given; see ``Kernel.__call__``.

    InvalidInput for tensors that the kernel does not have, are given twice, or are missing.
    """
    names = [spec.name for spec in signature.tensors]
    if len(tensors) > len(names):
        message = f"{kernel} takes {len(signature.inputs)} inputs, or all of its {len(names)} tensors"
        raise InvalidInput([Problem(field="", value=len(tensors), message=message, allowed=names)])
    places = range(len(names)) if len(tensors) > len(signature.inputs) else signature.inputs
    given = [(names[place], tensor) for place, tensor in zip(places, tensors, strict=False)]
    found: dict[str, Any] = {}
    problems: list[Problem] = []
    for name, tensor in [*given, *named.items(), *_outputs(kernel, signature, out)]:
        if name not in names:
            message = f"{kernel} has no tensor {name!r}"
            problems.append(Problem(field=f"/{name}", value=name, message=message, allowed=names))
        elif name in found:
            problems.append(Problem(field=f"/{name}", value=name, message="given twice", allowed="once"))
        elif tensor is not None:
            found[name] = tensor
    outputs = [names[place] for place in signature.outputs]
    for place in signature.inputs:
        if names[place] not in found:
            problems.append(Problem(field=f"/{names[place]}", value=None, message="missing", allowed="a tensor"))
    if any(name in found for name in outputs):
        for name in outputs:
            if name not in found:
                message = "give every output, or none"
                problems.append(Problem(field=f"/{name}", value=None, message=message, allowed="a tensor"))
    if problems:
        raise InvalidInput(problems)
    return tuple([found.get(name) for name in names])


def overlaps(signature: Signature, addresses: Sequence[int], layout: Layout, pairs: Sequence[Pair]) -> list[Problem]:
    """Each pair (an output, another tensor) that shares memory."""
    problems = []
    for one, other in pairs:
        low = max(addresses[one], addresses[other])
        high = min(addresses[one] + layout.byte_sizes[one], addresses[other] + layout.byte_sizes[other])
        if low < high:
            name, beside = signature.tensors[one].name, signature.tensors[other].name
            message = f"output {name!r} shares {high - low} bytes with {beside!r}; outputs overlap nothing"
            problems.append(Problem(field=f"/{name}", value=beside, message=message, allowed="memory of its own"))
    return problems


def apart(signature: Signature, addresses: Sequence[int]) -> list[Problem]:
    """Each output that declares to be written over an input and was given other memory."""
    problems = []
    for output, given in signature.shared.items():
        if addresses[output] != addresses[given]:
            name, beside = signature.tensors[output].name, signature.tensors[given].name
            message = f"output {name!r} is written over {beside!r}: give the same tensor for both, or {beside!r} alone"
            problems.append(Problem(field=f"/{name}", value="another tensor", message=message, allowed=beside))
    return problems


def output_pairs(signature: Signature) -> tuple[Pair, ...]:
    """Every pair of tensors of which one is an output, that one first; not an output and its own input."""
    outputs = signature.outputs
    return tuple(
        (one, other)
        for one in outputs
        for other in range(len(signature.tensors))
        if other != one and not (other in outputs and other < one) and signature.shared.get(one) != other
    )


def _outputs(kernel: str, signature: Signature, out: Any) -> list[tuple[str, Any]]:
    """The outputs that ``out`` names."""
    names = [signature.tensors[place].name for place in signature.outputs]
    if out is None:
        return []
    if isinstance(out, Mapping):
        wrong = [name for name in out if name not in names]
        if wrong:
            message = f"{wrong[0]!r} is no output of {kernel}"
            raise InvalidInput([Problem(field=f"/out/{wrong[0]}", value=wrong[0], message=message, allowed=names)])
        return list(out.items())
    given = list(out) if isinstance(out, list | tuple) else [out]
    if len(given) != len(names):
        message = f"{kernel} has {len(names)} outputs"
        raise InvalidInput([Problem(field="/out", value=len(given), message=message, allowed=names)])
    return list(zip(names, given, strict=True))
