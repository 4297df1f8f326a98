"""Index text: products, sums and coordinates with the trivial cases folded, so that the emitted source reads well."""

from __future__ import annotations

from collections.abc import Mapping, Sequence


def product(text: str, factor: int) -> str:
    """``text * factor`` with the trivial cases folded."""
    if text == "0" or factor == 0:
        return "0"
    if factor == 1:
        return text
    if text.isdigit():
        return str(int(text) * factor)
    return f"({text}) * {factor}" if " + " in text or " - " in text else f"{text} * {factor}"


def join(*terms: str) -> str:
    """The sum of index terms, constants gathered at the end."""
    constant = sum(int(term) for term in terms if term.lstrip("-").isdigit())
    names = [term for term in terms if not term.lstrip("-").isdigit()]
    if not names:
        return str(constant)
    text = " + ".join(names)
    if constant:
        text += f" + {constant}" if constant > 0 else f" - {-constant}"
    return text


def coordinates(axes: Sequence[str], extents: Mapping[str, int], flat: str) -> dict[str, str]:
    """Each axis's coordinate from the flattened element ``flat``, the last axis fastest."""
    out = {}
    below = 1
    for axis in reversed(axes):
        text = flat if below == 1 else f"{flat} // {below}"
        out[axis] = (
            text if axis == axes[0] else f"({text}) % {extents[axis]}" if below > 1 else f"{flat} % {extents[axis]}"
        )
        below *= extents[axis]
    return out


def halves(count: int) -> tuple[int, ...]:
    """Strides of a tree over a power of two: count/2, count/4, …, 1."""
    out = []
    while count > 1:
        count //= 2
        out.append(count)
    return tuple(out)
