"""Structured reductions with torch operations: a part by the op's direct definition, and two parts together.

Torch child only. A state is one tensor per component, in the order of ``search.program.monoids``, whose rules for NaN,
infinities and ties hold here as well. One update site is one part, so most programs never combine.
"""

from __future__ import annotations

from typing import Any

import torch

from search.program.ir import ReduceOp
from search.program.monoids import MONOIDS

Value = Any
"""A torch tensor."""
State = tuple[Value, ...]

_DTYPES = {"float32": torch.float32, "int32": torch.int32}


def empty(op: ReduceOp, shape: tuple[int, ...]) -> State:
    """The state of parts without elements."""
    return tuple(torch.full(shape, part.identity, dtype=_DTYPES[part.dtype]) for part in MONOIDS[op].components)


def part(op: ReduceOp, value: Value, where: Value | None, places: tuple[int, ...]) -> State:
    """The state of the parts along the dimensions ``places``, which are kept with extent 1.

    ``value`` (float32) and ``where`` (bool; None: every element contributes) have the whole shape. An element's place
    is its index in the order of ``places``, the last one fastest.
    """
    kept = tuple(1 if place in places else extent for place, extent in enumerate(value.shape))
    held = None if where is None else _line(where, places)
    return tuple(component.view(kept) for component in _PARTS[op](_line(value, places), held))


def combined(op: ReduceOp, held: State, other: State) -> State:
    """The state of two parts together."""
    return _COMBINED[op](held, other)


def _line(value: Value, places: tuple[int, ...]) -> Value:
    """The dimensions ``places`` as one, the last."""
    if not places:
        return value.unsqueeze(-1)
    moved = value.movedim(places, tuple(range(-len(places), 0)))
    return moved.reshape(*moved.shape[: -len(places)], -1)


def _softmax_part(line: Value, held: Value | None) -> State:
    if held is None:
        peak = torch.amax(line, -1, keepdim=True)
        return peak, torch.sum(torch.exp(line - peak), -1)
    peak = torch.amax(torch.where(held, line, -torch.inf), -1, keepdim=True)
    return peak, torch.sum(torch.where(held, torch.exp(line - peak), 0.0), -1)


def _softmax_combined(held: State, other: State) -> State:
    peak = torch.maximum(held[0], other[0])
    return peak, _rescaled(held, peak) + _rescaled(other, peak)


def _rescaled(state: State, peak: Value) -> Value:
    """A total by another peak. What -inf holds vanishes beside any larger element."""
    own, total = state
    moved = torch.where(own == -torch.inf, 0.0, total * torch.exp(own - peak))
    return torch.where(own == peak, total, moved)


def _welford_part(line: Value, held: Value | None) -> State:
    if held is None:
        mean = torch.mean(line, -1, keepdim=True)
        count = torch.full(mean.shape, float(line.shape[-1]))
        return count, mean, torch.sum(torch.square(line - mean), -1)
    count = torch.sum(held, -1, keepdim=True).float()
    mean = torch.sum(torch.where(held, line, 0.0), -1, keepdim=True) / count.clamp(min=1.0)
    return count, mean, torch.sum(torch.square(torch.where(held, line - mean, 0.0)), -1)


def _welford_combined(held: State, other: State) -> State:
    count = held[0] + other[0]
    share = other[0] / count.clamp(min=1.0)
    delta = other[1] - held[1]
    apart = held[1] * (held[0] / count.clamp(min=1.0)) + other[1] * share
    mean = torch.where(torch.isfinite(delta), held[1] + delta * share, apart)
    return count, mean, held[2] + other[2] + delta * (delta * (held[0] * share))


def _argmax_part(line: Value, held: Value | None) -> State:
    if held is None:
        # torch gives the first index among equals, and the first NaN's where there is one
        value, index = torch.max(line, -1)
        return value, index.to(torch.int32)
    value = torch.amax(torch.where(held, line, -torch.inf), -1, keepdim=True)
    best = held & torch.where(torch.isnan(value), torch.isnan(line), line == value)
    place = torch.arange(line.shape[-1], dtype=torch.int32)
    return value, torch.amin(torch.where(best, place, MONOIDS["argmax"].components[1].identity), -1)


def _argmax_combined(held: State, other: State) -> State:
    (a_value, a_index), (b_value, b_index) = held, other
    a_nan, b_nan = torch.isnan(a_value), torch.isnan(b_value)
    equal = (a_value == b_value) | (a_nan & b_nan)
    wins = (b_value > a_value) | (b_nan & ~a_nan) | (equal & (b_index < a_index))
    return torch.where(wins, b_value, a_value), torch.where(wins, b_index, a_index)


_PARTS = {"online_softmax": _softmax_part, "welford": _welford_part, "argmax": _argmax_part}
_COMBINED = {"online_softmax": _softmax_combined, "welford": _welford_combined, "argmax": _argmax_combined}
