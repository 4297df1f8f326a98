"""What the operators, functions and scalar reductions of programs are in numpy. Child side."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from search.program.ir import ReduceOp

Array = npt.NDArray[Any]

REDUCTIONS: dict[ReduceOp, np.ufunc] = {
    "sum": np.add,
    "product": np.multiply,
    "max": np.maximum,
    "min": np.minimum,
    "and": np.bitwise_and,
    "or": np.bitwise_or,
    "xor": np.bitwise_xor,
}
ARITHMETIC: dict[str, np.ufunc] = {"+": np.add, "-": np.subtract, "*": np.multiply, "/": np.true_divide}
COMPARISONS: dict[str, np.ufunc] = {
    "<": np.less,
    "<=": np.less_equal,
    ">": np.greater,
    ">=": np.greater_equal,
    "==": np.equal,
    "!=": np.not_equal,
}
_erf_of_float = np.frompyfunc(math.erf, 1, 1)

FUNCTIONS: dict[str, Callable[[Array], Array]] = {
    "exp": np.exp,
    "log": np.log,
    "sqrt": np.sqrt,
    "rsqrt": lambda x: 1 / np.sqrt(x),
    "tanh": np.tanh,
    "erf": lambda x: np.asarray(_erf_of_float(x)).astype(x.dtype),
    "sigmoid": lambda x: 1 / (1 + np.exp(-x)),
}
