"""The Python helpers at the top of an emitted text: thin names for the functions of ``tuner.h``."""

from __future__ import annotations

_F32 = '''def f32({a}):
    """A constant, exact to the bit (TileLang prints seven digits)."""
    return T.call_pure_extern(F32, "tuner_f32", T.uint32(struct.unpack("<I", struct.pack("<f", {a}))[0]))'''

_MARKS = {
    "unroll": '''def unroll(factor):
    """Asks the C compiler to unroll the next loop (a pragma in the C text)."""
    return T.call_extern(I32, "TUNER_UNROLL", factor)''',
    "simd": '''def simd():
    """Asks the C compiler to vectorise the next loop (a pragma in the C text)."""
    return T.call_extern(I32, "TUNER_SIMD")''',
    "stream": '''def stream(target, packet, count):
    """Non-temporal copy of a packet."""
    return T.call_extern(I32, "tuner_stream", target, packet, count)''',
}

_FLOAT_CALLS = {
    "named": "a",
    "sub": "a, b",
    "neg": "a",
    "exp": "a",
    "log": "a",
    "sqrt": "a",
    "rsqrt": "a",
    "tanh": "a",
    "erf": "a",
    "sigmoid": "a",
    "absolute": "a",
    "minimum": "a, b",
    "maximum": "a, b",
    "select": "c, a, b",
}
_INT_CALLS = {
    "named_i32": "a",
    "absolute_i32": "a",
    "minimum_i32": "a, b",
    "maximum_i32": "a, b",
    "select_i32": "c, a, b",
    "truncate": "a",
    "bit_and": "a, b",
    "bit_or": "a, b",
    "bit_xor": "a, b",
    "lt": "a, b",
    "le": "a, b",
    "gt": "a, b",
    "ge": "a, b",
    "eq": "a, b",
    "ne": "a, b",
    "logical_and": "a, b",
    "logical_or": "a, b",
    "logical_not": "a",
}


def helper_source(name: str) -> str:
    """Definition of one helper (KeyError: no such helper)."""
    if name == "f32":
        return _F32.format(a="value")
    if name in _MARKS:
        return _MARKS[name]
    dtype, args = ("F32", _FLOAT_CALLS[name]) if name in _FLOAT_CALLS else ("I32", _INT_CALLS[name])
    return f'def {name}({args}):\n    return T.call_extern({dtype}, "tuner_{name}", {args})'
