"""The structured monoids as CUDA: a struct of the components, its combination as an op of TileLang's collective.

The expressions are those of ``search.program.monoids``, rendered as C++ calls of the functions of ``tuner.cuh``. A warp
exchanges a struct component by component, by a specialisation of TileLang's shuffle.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

from search.lowering.expressions import FLOAT, INT, Scope, Value, nearest_float32
from search.program.ir import ReduceOp
from search.program.monoids import MONOIDS, Monoid

_C_TYPES = {"float32": "float", "int32": "int"}


@dataclass(frozen=True, kw_only=True)
class CxxScope(Scope):
    """Expressions as C++: calls carry the prefix of our functions, constants are bits."""

    def call(self, helper: str, dtype: str, *args: Value) -> Value:
        """A call of a function of ``tuner.cuh``."""
        return Value(text=f"tuner_{helper}({', '.join(arg.text for arg in args)})", dtype=dtype, opaque=True)

    def constant(self, number: float) -> Value:
        """A float32 constant, exact to the bit."""
        (bits,) = struct.unpack("<I", struct.pack("<f", nearest_float32(number)))
        return Value(text=f"tuner_f32(0x{bits:08x}u)", dtype=FLOAT)

    def converted(self, value: Value) -> Value:
        """Conversion of an int32 to float32."""
        return Value(text=f"(float)({value.text})", dtype=FLOAT)


def struct_name(op: ReduceOp) -> str:
    """The C++ name of a monoid: ``online_softmax`` → ``OnlineSoftmax``."""
    return "".join(word.capitalize() for word in op.split("_"))


def monoid_code() -> str:
    """C++ of every structured monoid, to stand behind ``tuner.cuh``."""
    return "\n".join(_code(monoid) for monoid in MONOIDS.values())


def _code(monoid: Monoid) -> str:
    name, parts = struct_name(monoid.op), monoid.components
    fields = " ".join(f"{_C_TYPES[part.dtype]} {part.name};" for part in parts)
    shuffled = ", ".join(f"shfl_xor_sync(mask, value.{part.name}, offset)" for part in parts)
    pointers = ", ".join(f"{_C_TYPES[part.dtype]} *{part.name}" for part in parts)
    held = ", ".join(f"*{part.name}" for part in parts)
    stores = " ".join(f"*{part.name} = all.{part.name};" for part in parts)
    lines = [
        f"namespace tuner {{ struct {name} {{ {fields} }}; }}",
        "namespace tl {",
        f"template <> __device__ __forceinline__ tuner::{name} "
        f"shfl_xor_sync(unsigned mask, tuner::{name} value, int offset) {{",
        f"  return {{{shuffled}}};",
        "}",
        "}",
        "namespace tuner {",
        f"struct {name}Op {{",
        f"  __device__ __forceinline__ {name} operator()({name} const &a, {name} const &b) {{",
        *(f"    {line}" for line in _combination(monoid)),
        "  }",
        "};",
        f"template <int lanes, int threads> static __device__ __forceinline__ int reduce_{monoid.op}({pointers}) {{",
        f"  {name} all = all_reduce<{name}Op, lanes, threads>({name}{{{held}}});",
        f"  {stores}",
        "  return 0;",
        "}",
        "}",
    ]
    return "\n".join(lines) + "\n"


def _combination(monoid: Monoid) -> list[str]:
    names = {
        f"{side}_{part.name}": Value(text=f"{side}.{part.name}", dtype=part.dtype)
        for part in monoid.components
        for side in ("a", "b")
    }
    scope = CxxScope(names=names, coordinates={}, used=set())
    components = {part.name: part.dtype for part in monoid.components}
    lines = []
    for name, expr in monoid.combine:
        value = scope.render_as(expr, components[name]) if name in components else scope.render(expr)
        kind = "float" if value.dtype == FLOAT else "int"
        lines.append(f"{kind} {name} = {value.text};")
        names[name] = Value(text=name, dtype=FLOAT if value.dtype == FLOAT else INT)
    return [*lines, f"return {{{', '.join(components)}}};"]
