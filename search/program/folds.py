"""Left folds of a numpy array: in index order, or by magnitude. Child side."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
FoldOrder = Literal["given", "ascending", "descending"]


def left_fold(combine: np.ufunc, start: Array, value: Array, places: tuple[int, ...], order: FoldOrder) -> Array:
    """``start`` combined with the elements along ``places`` one after the other, in the shape of ``start``.

    Index order is that of ``places``, the last one fastest; else from the smallest magnitude up, or the largest down.
    """
    kept = value.ndim - len(places)
    line = np.moveaxis(value, places, range(kept, value.ndim))
    line = line.reshape(*line.shape[:kept], -1)
    if order != "given":
        line = np.take_along_axis(line, np.argsort(np.abs(line), axis=-1), axis=-1)
    if order == "descending":
        line = line[..., ::-1]
    line = np.concatenate([start.reshape(*line.shape[:-1], 1), line], axis=-1)
    folded: Array = combine.accumulate(line, axis=-1)[..., -1].reshape(start.shape)
    return folded
