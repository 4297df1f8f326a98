"""The Python helpers at the top of an emitted text: thin names for the functions of ``tuner.h`` and ``tuner.cuh``."""

from __future__ import annotations

_F32 = '''def f32({a}):
    """A constant, exact to the bit (TileLang prints seven digits)."""
    return T.call_pure_extern(F32, "tuner_f32", T.uint32(struct.unpack("<I", struct.pack("<f", {a}))[0]))'''

_GUARDS = {
    "live_row": '''def live_row(row, rows):
    """Whether a row is there: the last packet may hang over."""
    return T.call_pure_extern(I32, "tuner_live_row", row, rows) != 0''',
    "live_slot": '''def live_slot(slot, first, rows):
    """Whether a slot of the packet that begins at row ``first`` has a row: the last packet may hang over."""
    return T.call_pure_extern(I32, "tuner_live_slot", slot, first, rows) != 0''',
}
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
    "stream_i32": '''def stream_i32(target, packet, count):
    """Non-temporal copy of a packet of int32."""
    return T.call_extern(I32, "tuner_stream_i32", target, packet, count)''',
    "stream_u16": '''def stream_u16(target, packet, count):
    """Non-temporal copy of a packet of 16-bit elements."""
    return T.call_extern(I32, "tuner_stream_u16", target, packet, count)''',
    "load_float16": '''def load_float16(target, source, count):
    """A block of float16, widened to float32."""
    return T.call_extern(I32, "tuner_load_float16", target, source, count)''',
    "store_float16": '''def store_float16(target, source, count):
    """A block of float32, rounded to float16."""
    return T.call_extern(I32, "tuner_store_float16", target, source, count)''',
}

_FLOAT_CALLS = {
    "named": "a",
    "sub": "a, b",
    "mul": "a, b",
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
    "from_float16": "bits",
    "from_bfloat16": "bits",
    "round_float16": "a",
    "round_bfloat16": "a",
}
_BITS_CALLS = {"to_float16": "a", "to_bfloat16": "a"}
_INT_CALLS = {
    "named_i32": "a",
    "add_i32": "a, b",
    "sub_i32": "a, b",
    "mul_i32": "a, b",
    "neg_i32": "a",
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

_CALLS = (("F32", _FLOAT_CALLS), ("U16", _BITS_CALLS), ("I32", _INT_CALLS))


def helper_source(name: str) -> str:
    """Definition of one helper."""
    if name == "f32":
        return _F32.format(a="value")
    for texts in (_GUARDS, _MARKS):
        if name in texts:
            return texts[name]
    dtype, args = next((dtype, calls[name]) for dtype, calls in _CALLS if name in calls)
    return f'def {name}({args}):\n    return T.call_extern({dtype}, "tuner_{name}", {args})'
