"""Dtypes of expressions: what mixes with what, and the dtype of every name of a program.

Integers known before the kernel runs (integer literals, dims, integer params and arithmetic of those) have the
pseudo dtype ``int``: they adapt to a float32 or int32 neighbour. Everything else mixes only with its own dtype and
needs ``cast``. float16 and bfloat16 elements are float32 once loaded; stores round to the tensor's dtype.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from search.program.ir import (
    STRUCTURED_OPS,
    Binary,
    Call,
    Cast,
    Compare,
    Const,
    Expr,
    Finalize,
    Index,
    Let,
    Load,
    Logical,
    Loop,
    Name,
    Program,
    Reduce,
    ReduceOp,
    Reducer,
    Select,
    Tile,
    Unary,
)
from search.program.monoids import result_dtypes
from search.program.report import Report
from search.program.walk import statements

INT = "int"
"""A compile-time integer, which adapts to its neighbours."""

BITWISE_OPS: tuple[ReduceOp, ...] = ("and", "or", "xor")
VALUE_DTYPES = ("float32", "int32", "bool")

Complain = Callable[[str], None]


def value_dtype(storage_dtype: str) -> str:
    """The dtype that an element has once it is loaded."""
    return "float32" if storage_dtype in ("float16", "bfloat16") else storage_dtype


def fits(value: str | None, wanted: str) -> bool:
    """Whether a value may stand where ``wanted`` is needed. An unknown dtype (a problem reported elsewhere) fits."""
    return value is None or value == wanted or (value == INT and wanted in ("float32", "int32"))


def infer(expr: Expr, types: Mapping[str, str], complain: Complain) -> str | None:
    """The dtype of an expression, ``INT`` included; None when it has none (then something was complained about).

    Names missing from ``types`` are somebody else's problem: they give None without a complaint.
    """
    match expr:
        case Const(value=bool()):
            return "bool"
        case Const(value=int()):
            return INT
        case Const():
            return "float32"
        case Name():
            return types.get(expr.name)
        case Load():
            dtype = types.get(expr.tensor)
            return None if dtype is None else value_dtype(dtype)
        case Index():
            return "int32"
        case Cast():
            infer(expr.value, types, complain)
            return value_dtype(expr.dtype)
        case Unary(op="not"):
            _condition(expr.operand, "not", types, complain)
            return "bool"
        case Logical():
            _condition(expr.left, expr.op, types, complain)
            _condition(expr.right, expr.op, types, complain)
            return "bool"
        case Unary():
            return _number(infer(expr.operand, types, complain), "-", complain)
        case Compare():
            _joined(expr.op, (expr.left, expr.right), types, complain)
            return "bool"
        case Select():
            _condition(expr.condition, "select", types, complain)
            then = infer(expr.then, types, complain)
            otherwise = infer(expr.otherwise, types, complain)
            if then == otherwise:
                return then
            return _join("select", then, otherwise, complain)
        case Binary(op="/"):
            return _floating("/", _joined("/", (expr.left, expr.right), types, complain), complain)
        case Binary():
            return _joined(expr.op, (expr.left, expr.right), types, complain)
        case Call(function="min" | "max"):
            return _joined(expr.function, expr.args, types, complain)
        case Call(function="abs"):
            return _joined("abs", expr.args, types, complain)
        case Call():
            return _floating(expr.function, _joined(expr.function, expr.args, types, complain), complain)


def _condition(expr: Expr, where: str, types: Mapping[str, str], complain: Complain) -> None:
    dtype = infer(expr, types, complain)
    if dtype not in (None, "bool"):
        complain(f"'{where}' needs a condition, not {dtype}; compare it with something")


def _number(dtype: str | None, where: str, complain: Complain) -> str | None:
    if dtype == "bool":
        complain(f"'{where}' needs numbers, not a condition; use select or cast")
        return None
    return dtype


def _floating(where: str, dtype: str | None, complain: Complain) -> str | None:
    if dtype == "int32":
        complain(f"'{where}' works on float32, not int32; use cast(value, float32)")
        return None
    return "float32" if dtype == INT else dtype


def _join(where: str, left: str | None, right: str | None, complain: Complain) -> str | None:
    if left is None or right is None or left == right:
        return left and right
    if "bool" not in (left, right) and INT in (left, right):
        return right if left == INT else left
    complain(f"'{where}' mixes {left} and {right}; use cast(value, dtype)")
    return None


def _joined(where: str, args: tuple[Expr, ...], types: Mapping[str, str], complain: Complain) -> str | None:
    dtypes = [_number(infer(arg, types, complain), where, complain) for arg in args]
    dtype = dtypes[0]
    for other in dtypes[1:]:
        dtype = _join(where, dtype, other, complain)
    return dtype


def expression_dtype(expr: Expr, types: Mapping[str, str]) -> str:
    """float32, int32 or bool. ``types`` as ``program_dtypes`` gives them; InvalidInput for an ill-typed expression.

    A compile-time integer that no neighbour adapted is int32.
    """
    report = Report()
    dtype = infer(expr, types, lambda message: report.add("", None, message))
    if dtype is None and not report.problems:
        report.add("", None, "the expression uses a name of unknown dtype", sorted(types))
    report.raise_if_any()
    assert dtype is not None
    return "int32" if dtype == INT else dtype


def reduce_dtype(op: ReduceOp, value: str | None) -> str:
    """The accumulator dtype of the ``reduce`` sugar, from its value's dtype."""
    if op in STRUCTURED_OPS:
        return "float32"
    return "int32" if value == "int32" or op in BITWISE_OPS else "float32"


def tile_dtype(value: str) -> str:
    """The dtype in which a tile of such values is kept."""
    return "float32" if value == INT else value


def declared_dtypes(program: Program, dtypes: Mapping[str, str] | None = None) -> dict[str, str]:
    """Dtypes of params, dims and tensors (integer params and dims are ``INT``); ``dtypes`` overrides the defaults."""
    types = {param.name: INT if type(param.default) is int else "float32" for param in program.params}
    types |= dict.fromkeys(program.dims, INT)
    types |= tensor_dtypes(program, dtypes or {})
    return types


def tensor_dtypes(program: Program, dtypes: Mapping[str, str]) -> dict[str, str]:
    """Every tensor's dtype: the given one, else that of the tensor it is like, else its default."""
    types: dict[str, str] = {}
    for tensor in program.tensors:
        own = dtypes.get(tensor.name) or tensor.dtype
        if tensor.like is not None and own is None:
            model = {other.name: other for other in program.tensors}.get(tensor.like)
            own = dtypes.get(tensor.like) or (model.dtype if model else None)
        types[tensor.name] = own or "float32"
    return types


def program_dtypes(program: Program, dtypes: Mapping[str, str] | None = None) -> dict[str, str]:
    """The dtype of every name, locals included; reducers have the dtype of their accumulators.

    Give the case's ``dtypes`` to resolve tensors. Meant for verified programs: what cannot be typed is left out.
    """
    types = declared_dtypes(program, dtypes)
    ops: dict[str, ReduceOp] = {}
    for _, statement in statements(program.body):
        match statement:
            case Reducer():
                types[statement.name] = statement.dtype
                ops[statement.name] = statement.op
            case Finalize():
                held = types.get(statement.reducer, "float32")
                # the wrong number of results is the verifier's complaint
                types |= zip(statement.results, result_dtypes(ops.get(statement.reducer, "sum"), held), strict=False)
            case Reduce():
                held = reduce_dtype(statement.op, infer(statement.value, types, _ignore))
                types |= zip(statement.results, result_dtypes(statement.op, held), strict=False)
            case Loop(index=str() as index):
                types[index] = "int32"
            case Let() | Tile():
                dtype = infer(statement.value, types, _ignore)
                if dtype is not None:
                    types[statement.name] = tile_dtype(dtype) if isinstance(statement, Tile) else dtype
            case _:
                pass
    return types


def _ignore(message: str) -> None:
    """Complaints belong to the verifier."""
