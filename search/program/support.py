"""Which dtypes tensors may have, and which may stand for one another."""

from __future__ import annotations

from search.program.dtypes import value_dtype
from search.program.ir import DTYPE_BYTES

SUPPORTED_DTYPES = tuple(DTYPE_BYTES)
"""Dtypes of tensors."""


def interchangeable(dtype: str) -> tuple[str, ...]:
    """The dtypes that a case may choose for a tensor that its program declares as ``dtype``.

    Those whose elements are the same once loaded: what the program's expressions mean does not depend on the choice.
    """
    return tuple(other for other in SUPPORTED_DTYPES if value_dtype(other) == value_dtype(dtype))
