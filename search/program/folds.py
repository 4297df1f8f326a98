"""Left folds of a numpy array: in index order, or by magnitude. Child side."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
FoldOrder = Literal["given", "ascending", "descending"]


def left_fold(
    combine: np.ufunc,
    start: Array,
    value: Array,
    places: tuple[int, ...],
    order: FoldOrder,
    shuffle: np.random.Generator | None = None,
) -> Array:
    """``start`` combined with the elements along ``places`` one after the other, in the shape of ``start``.

    Index order is that of ``places``, the last one fastest; else from the smallest magnitude up, or the largest down.
    ``shuffle`` gives a random order, the same for every row.
    """
    kept = value.ndim - len(places)
    line = np.moveaxis(value, places, range(kept, value.ndim))
    line = line.reshape(*line.shape[:kept], -1)
    if shuffle is not None:
        line = line[..., shuffle.permutation(line.shape[-1])]
    if order != "given":
        line = np.take_along_axis(line, np.argsort(np.abs(line), axis=-1), axis=-1)
    if order == "descending":
        line = line[..., ::-1]
    line = np.concatenate([start.reshape(*line.shape[:-1], 1), line], axis=-1)
    folded: Array = combine.accumulate(line, axis=-1)[..., -1].reshape(start.shape)
    return folded


def flat_lines(values: Sequence[Array], shape: tuple[int, ...], order: Sequence[int]) -> list[Array]:
    """Each array broadcast to ``shape`` and laid out flat, the dimensions in ``order`` first, the last one fastest."""
    places = [*order, *(place for place in range(len(shape)) if place not in order)]
    return [np.broadcast_to(value, shape).transpose(places).reshape(-1) for value in values]


def scatter(
    combine: np.ufunc,
    total: Array,
    value: Array,
    places: Sequence[Array],
    enabled: Array,
    shuffle: np.random.Generator | None,
) -> None:
    """Combine each enabled value into the element of ``total`` at its places, one after the other, in place."""
    chosen = np.flatnonzero(enabled)
    if shuffle is not None:
        chosen = shuffle.permutation(chosen)
    combine.at(total, tuple(place[chosen] for place in places), value[chosen])
